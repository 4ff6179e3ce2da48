"""Users' commands during a crawl: each command line is one process, and its calls take no time."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha1
from random import Random
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin import control
from scrapy_dq.frontier.admin.control import Command
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.admin.retry import retry as retry_failed
from scrapy_dq.frontier.admin.seen import forget as forget_seen
from scrapy_dq.frontier.model import FrontierError
from simulation.network import BlockingClient
from simulation.plan import FAULTS_END_S
from simulation.pusher import Pusher
from simulation.queue_user import QueueUser
from simulation.store import CRAWL
from simulation.virtual import BEGIN_S, Process

if TYPE_CHECKING:
    from simulation.schedule import Schedule

AGAIN_S = 0.5


def run(schedule: Schedule, name: str) -> None:
    """Run a command now."""
    schedule.noted("command", name)
    schedule.commands[name] += 1
    client = BlockingClient(schedule.network, Process(schedule.world, name))
    with suppress(RedisError, FrontierError):  # a user would repeat the command; only RESUME is repeated
        _BY_NAME[name](schedule, client, Random(f"{schedule.plan.seed} {name} {schedule.commands[name]}"))


def _pause(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    _hold(schedule, client, random, Command.PAUSE)


def _drain(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    _hold(schedule, client, random, Command.DRAIN)


def _hold(schedule: Schedule, client: BlockingClient, random: Random, action: Command) -> None:
    def resume() -> None:
        try:
            control.steer(client, CRAWL, Command.RESUME)
        except (RedisError, FrontierError):
            schedule.world.at(schedule.world.now + AGAIN_S, resume)

    schedule.world.at(schedule.world.now + random.uniform(0.1, 0.5), resume)
    control.steer(client, CRAWL, action)


def resume_again(schedule: Schedule) -> None:
    """Resume a crawl that is still on hold, because Redis may have lost the command to resume."""
    if schedule.world.now > BEGIN_S + 2 * FAULTS_END_S and schedule.store.run(
        "HGET", keys.meta(CRAWL), "hold"
    ):
        client = BlockingClient(schedule.network, Process(schedule.world, "resume"))
        with suppress(RedisError, FrontierError):
            control.steer(client, CRAWL, Command.RESUME)


def _stop(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    control.steer(client, CRAWL, Command.STOP)


def _limit(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    host = schedule.plan.pages[0].host.decode()
    what = {"delay_s": random.choice((0.0, 0.05)), "concurrency": random.choice((0, 1, 3))}
    control.limit(client, CRAWL, host, **what, block_s=random.choice((None, 0.2)))  # type: ignore[arg-type]


def _feed(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    if schedule.plan.setup.fed:
        command = schedule.feed_command(random.randrange(len(schedule.plan.pages)))
        client.execute_command(*command)


def _push(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    name = f"pusher{len(schedule.pushers)}"
    schedule.pushers.append(Pusher(schedule.network, schedule.setup, schedule.plan.pages, name, random))


def _queue(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    if not schedule.plan.setup.run_name:  # a Queue may begin the next run
        name = f"queue{len(schedule.queues)}"
        schedule.queues.append(QueueUser(schedule.network, schedule.setup, schedule.plan.pages, name, random))


def _forget(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    page = random.randrange(len(schedule.plan.pages))
    schedule.forgotten.add(page)
    fingerprint = sha1(b"%d.0." % page).digest()
    forget_seen(client, CRAWL, [(fingerprint, fingerprint)])


def _retry(schedule: Schedule, client: BlockingClient, random: Random) -> None:
    overview = peek(client, CRAWL)
    if overview is not None:
        retry_failed(client, CRAWL, overview, failed=lambda record: True)


_BY_NAME = {
    "pause": _pause, "drain": _drain, "stop": _stop, "limit": _limit, "feed": _feed, "push": _push,
    "queue": _queue, "forget": _forget, "retry": _retry,
}  # fmt: skip
