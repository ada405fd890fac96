"""Room that callers share: half of it for one identity at most, in turn, and nobody waits for what another one holds."""

import asyncio

import pytest
from icedb_log.errors import Overloaded
from icedb_service.access.guard import Holder, Places, RateLimited
from icedb_service.budget import Budget


class Room:
    """A budget of ten, with who was refused for its share."""

    def __init__(self, *, wait_ms=60_000, size=10):
        self.refused, self.held = [], []
        self.alpha, self.beta, self.gamma = (Holder(name, self.refused.append) for name in ("alpha", "beta", "gamma"))
        self.budget = Budget(
            Places("bytes", setting="ICEDB_X", size=size),
            wait_ms=wait_ms,
            explain=lambda held, size: Overloaded(f"{held} are held, {size} asked for"),
            on_change=self.held.append,
        )

    def take(self, size, holder):
        return asyncio.create_task(self.budget.take(size, holder))


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def run(scene):
    asyncio.run(scene())


def test_one_identity_fills_its_half_and_is_refused_while_another_is_served():
    async def scene():
        room = Room(wait_ms=0)
        await room.budget.take(3, room.alpha)
        await room.budget.take(2, room.alpha)
        with pytest.raises(RateLimited, match="alpha has 5 bytes here already; nobody may have more than 5") as caught:
            await room.budget.take(1, room.alpha)
        assert (caught.value.retry_after_ms, room.refused) == (1000, ["alpha"])
        await room.budget.take(5, room.beta)
        with pytest.raises(Overloaded, match="10 are held, 1 asked for") as full:
            await room.budget.take(1, room.gamma)
        assert not isinstance(full.value, RateLimited)
        room.budget.give(5, room.alpha)
        await room.budget.take(5, room.alpha)

    run(scene)


def test_who_waits_for_its_own_share_keeps_nobody_waiting():
    async def scene():
        room = Room()
        await room.budget.take(5, room.alpha)
        own, other = room.take(2, room.alpha), room.take(2, room.beta)
        await settle()
        assert (own.done(), other.done()) == (False, True)
        room.budget.give(3, room.alpha)
        await own
        assert room.held[-1] == 6

    run(scene)


def test_who_waits_for_room_keeps_its_turn():
    async def scene():
        room = Room()
        await room.budget.take(5, room.alpha)
        await room.budget.take(4, room.beta)
        first, second = room.take(3, room.gamma), room.take(1, room.beta)
        await settle()
        assert (first.done(), second.done()) == (False, False)
        room.budget.give(2, room.alpha)
        await settle()
        assert (first.done(), second.done()) == (True, False)
        room.budget.give(3, room.gamma)
        await second

    run(scene)


def test_one_thing_alone_may_be_larger_than_a_share_and_grow_above_it():
    async def scene():
        room = Room()
        async with room.budget.hold(4, room.alpha) as hold:
            hold.grow_to(9)
            with pytest.raises(Overloaded, match="9 are held"):
                hold.grow_to(11)
        async with room.budget.hold(2, room.alpha) as hold, room.budget.hold(2, room.alpha):
            with pytest.raises(RateLimited):
                hold.grow_to(4)
            hold.grow_to(3)
        async with room.budget.hold(9, room.alpha):
            assert not room.take(1, room.alpha).done()
        assert room.refused == ["alpha"]

    run(scene)


def test_what_cannot_go_yet_counts_for_who_sent_it():
    async def scene():
        room = Room(wait_ms=0)
        room.budget.keep(5, room.alpha)
        with pytest.raises(RateLimited):
            await room.budget.take(1, room.alpha)
        await room.budget.take(5, room.beta)

    run(scene)


def test_without_a_policy_one_caller_may_take_all():
    async def scene():
        room = Room(wait_ms=0)
        for _ in range(5):
            await room.budget.take(2)
        with pytest.raises(Overloaded, match="10 are held"):
            await room.budget.take(1)

    run(scene)
