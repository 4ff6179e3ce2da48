"""A password or a certificate is replaced during a crawl."""

from __future__ import annotations

from pathlib import Path

from support import outages
from support.certificates import DAY, Authority
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl, StartRedis
from support.proxy import RedisProxy
from support.waiting import wait_until

NOT_ACCEPTED = "the certificate of Redis is not accepted: renew it, or correct ssl_ca_certs"
SITE = {"pages": 500, "latency_s": 0.3}


def test_a_crawl_survives_the_rotation_of_its_password(
    start_redis: StartRedis, fault_crawl: MakeCrawl
) -> None:
    """When connections are cut, a worker with the old password waits. A worker with the new one crawls."""
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
            wait_until(lambda w=worker: "denies access" in w.text, "the worker reports the reason", 30)
        leases = crawl.leases()
        assert not {word for word in (">old", ":old@") if word in first.text}
        first.terminate()  # Redis refuses its leave, so other workers have to reclaim its leases
        (third,) = crawl.start(settings={"REDIS_URL": new})
        done = len(crawl.done)
        wait_until(lambda: len(crawl.done) > done + 50, "the worker with the new password crawls")
        admin.execute_command("ACL", "SETUSER", "crawler", ">old")
        verdict = crawl.end(120)
    crawl.note(verdict, may_repeat=leases)
    assert not verdict.lost
    assert verdict.repeats <= leases
    assert (second.close_reason, third.close_reason) == ("finished", "finished")
    assert verdict.leases_left == 0
    assert second.text.count("denies access") == 1
    assert "Check the user and password in REDIS_URL" in second.text
    assert not outages.lines(second, "ERROR", "CRITICAL")  # the second or the third worker reclaims the first


def test_a_crawl_waits_while_the_certificate_of_redis_is_expired(
    start_redis: StartRedis, fault_crawl: MakeCrawl, tmp_path: Path
) -> None:
    """Workers send nothing to a server with an expired certificate, and continue with a new certificate."""
    server, authority = start_redis(appendonly=True), Authority(tmp_path)
    with RedisProxy(server.url, authority.context()) as proxy:
        through = f"{proxy.url}?ssl_ca_certs={authority.path}"
        # On a busy machine, the workers may return at very different times. No worker should be declared
        # dead.
        patient = {"DQ_WORKER_TTL": 60}
        crawl = fault_crawl(server, through=through, site=SITE, spider=GATHERED, settings=patient)
        workers = start_together(crawl)
        crawl.wait_for_part(0.05)
        proxy.present(authority.context(-DAY))
        wait_until(lambda: proxy.connections == 0, "the connections are cut")
        sent = proxy.commands
        for worker in workers:
            wait_until(lambda w=worker: NOT_ACCEPTED in w.text, "the worker reports the reason", 30)
        served = proxy.commands
        proxy.present(authority.context())
        crawl.end_whole(timeout_s=120)
    for worker in workers:
        assert worker.text.count(NOT_ACCEPTED) == 1
        assert "certificate has expired" in worker.text
        outages.assert_no_outage_logged(worker)
    assert sent == served, served - sent
