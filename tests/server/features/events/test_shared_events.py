"""Events at two replicas on one Redis and one state: each reaches who waits for it at either, at once and once."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path

from tests.clients.raw_client import PATIENCE
from tests.server.features.events.event_service import events_of
from tests.server.features.events.test_streams import active, next_name, stream
from tests.server.features.events.test_subscriptions import NEVER, FakeSender, Post, create, subscribe, unsubscribe
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_replicas as run_replicas
from tests.servers.http_in_process import Inside, inside
from toolgate.server.base.bus.bus import Bus
from toolgate.server.base.principals.principal import GrantKey

Run = Callable[..., None]
PEOPLE = [f"person {number}" for number in range(24)]  # one replica has all once in eight million runs


class Replica:
    """A server in this process. `sender` has what it posted."""

    def __init__(self, here: Inside, bus: Bus) -> None:
        self.here = here
        self.sender = FakeSender()
        self.events = events_of(here.app)
        self.events.open_webhooks(self.sender, self._find_valid, None, NEVER)
        self.events.log.start()
        self.shared = self.events.share(bus)

    async def _find_valid(self, grants: Collection[GrantKey]) -> Collection[GrantKey]:
        return grants


async def replicas(stack: AsyncExitStack, folder: Path, *buses: Bus) -> list[Replica]:
    """Return replicas that know each other."""
    made = [Replica(await stack.enter_async_context(inside(folder)), bus) for bus in buses]
    for bus in buses:
        await bus.topics.subscribe("events", lambda _: None, lambda: None).confirm()
    for replica in made:
        await replica.events.run_deliveries()
    return made


async def posts(made: Collection[Replica], count: int) -> list[Post]:
    """Return all deliveries, once there are so many."""
    async with asyncio.timeout(PATIENCE):
        while len(found := [post for replica in made for post in replica.sender.posts]) < count:
            await asyncio.sleep(0.01)
    return found


def test_a_stream_brings_an_event_of_another_replica_at_once(run_replicas: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with AsyncExitStack() as stack:
            first, second = await replicas(stack, tmp_path, one, two)
            opened = stream(first.here, "ada")
            await active(opened)
            await create(second.here, "of the second")
            async with asyncio.timeout(5):  # a heartbeat, which looks again, takes 15 seconds
                assert await next_name(opened) == "of the second"
            await opened.hang_up()

    run_replicas(check)


def test_each_event_is_posted_once_wherever_it_and_its_subscription_were_made(
    run_replicas: Run, tmp_path: Path
) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with AsyncExitStack() as stack:
            made = await replicas(stack, tmp_path, one, two)
            first, second = made
            for number, who in enumerate(PEOPLE):
                await subscribe(made[number % 2].here, who)
                for replica in made:
                    await create(replica.here, f"of {who}", who)
            found = await posts(made, 48)
            assert all(replica.sender.posts for replica in made)  # they share the work
            assert len({post.id for post in found}) == len(found) == 48
            await unsubscribe(second.here, PEOPLE[0])  # it was made at the first
            await first.events.terminate_rights({(PEOPLE[2], "client")})
            for replica in made:
                for who in PEOPLE[:3]:
                    await create(replica.here, "later", who)
            found = await posts(made, 51)
            kinds = [post.body.get("type") or post.body["data"]["name"] for post in found]
            assert (kinds.count("later"), kinds.count("terminated")) == (2, 1)

    run_replicas(check)


def test_the_deliveries_of_a_dead_replica_are_taken_over(run_replicas: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        async with AsyncExitStack() as stack:
            made = await replicas(stack, tmp_path, one, two)
            first, second = made
            for who in PEOPLE:
                await subscribe(first.here, who)
            assert second.events.subscriptions is not None
            await second.events.subscriptions.close()  # it sends nothing more
            for who in PEOPLE:
                await create(second.here, "one", who)
            left = len(await posts([first], 1))
            first.shared.note_living([one.replica.name])
            found = await posts([first], len(PEOPLE))
            assert len({post.subscription for post in found}) == len(found) == len(PEOPLE) > left

    run_replicas(check)
