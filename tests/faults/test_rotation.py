"""What a crawl needs to reach Redis is replaced in mid-crawl: its password, its certificate."""

from __future__ import annotations

from pathlib import Path

from support import outages
from support.certificates import DAY, Authority
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl, StartRedis
from support.proxy import RedisProxy
from support.waiting import wait_until

NOT_ACCEPTED = "the certificate of Redis is not accepted: renew it, or correct ssl_ca_certs"
SITE = {"pages": 2_000, "latency_s": 0.02}


def test_a_password_that_is_rotated_in_mid_crawl(start_redis: StartRedis, fault_crawl: MakeCrawl) -> None:
    """A worker with the old one waits when its connections have ended; one with the new one goes on."""
    server = start_redis(appendonly=True)
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "crawler", "on", ">old", "~*", "+@all")
        old, new = (server.url.replace("redis://", f"redis://crawler:{word}@") for word in ("old", "new"))
        crawl = fault_crawl(server, through=old, site=SITE, spider=GATHERED)
        first, second = start_together(crawl)
        crawl.wait_for_part(0.05)
        admin.execute_command("ACL", "SETUSER", "crawler", ">new", "<old")
        admin.execute_command("CLIENT", "KILL", "USER", "crawler")
        for worker in first, second:
            wait_until(lambda w=worker: "denies access" in w.text, "the reason is told", 30)
        leases = crawl.leases()
        assert not {word for word in (">old", ":old@") if word in first.text}
        first.terminate()  # one is replaced while Redis refuses it; what it holds is found by the others
        (third,) = crawl.start(settings={"REDIS_URL": new})
        done = len(crawl.done)
        wait_until(lambda: len(crawl.done) > done + 50, "pages by the new password")
        admin.execute_command("ACL", "SETUSER", "crawler", ">old")
        verdict = crawl.end(120)
    crawl.note(verdict, may_repeat=leases)
    assert not verdict.lost
    assert verdict.repeats <= leases
    assert (second.close_reason, third.close_reason) == ("finished", "finished")
    assert verdict.leases_left == 0
    assert second.text.count("denies access") == 1
    assert "Check the user and password in REDIS_URL" in second.text
    assert not outages.lines(second, "ERROR", "CRITICAL")  # it or the third finds that the first is dead


def test_a_certificate_that_expires_in_mid_crawl(
    start_redis: StartRedis, fault_crawl: MakeCrawl, tmp_path: Path
) -> None:
    """Nothing is sent to whoever presents it; with a new one the crawl goes on."""
    server, authority = start_redis(appendonly=True), Authority(tmp_path)
    with RedisProxy(server.url, authority.context()) as proxy:
        through = f"{proxy.url}?ssl_ca_certs={authority.path}"
        # On a busy machine one worker is back long before the other: nobody is to be taken for dead here.
        patient = {"DQ_WORKER_TTL": 60}
        crawl = fault_crawl(server, through=through, site=SITE, spider=GATHERED, settings=patient)
        workers = start_together(crawl)
        crawl.wait_for_part(0.05)
        proxy.present(authority.context(-DAY))
        wait_until(lambda: proxy.connections == 0, "the connections are cut")
        sent = proxy.commands
        for worker in workers:
            wait_until(lambda w=worker: NOT_ACCEPTED in w.text, "the reason is told", 30)
        served = proxy.commands
        proxy.present(authority.context())
        crawl.end_whole(timeout_s=120)
    for worker in workers:
        assert worker.text.count(NOT_ACCEPTED) == 1
        assert "certificate has expired" in worker.text
        outages.assert_quiet(worker)
    assert sent == served, served - sent
