"""What the front end does on its event loop: memory in turn, groups of events. On a loop without real time."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress

import pytest
from icedb_ingest.frontend.async_gate import AsyncGate, make_budget
from icedb_ingest.frontend.errors import Busy
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import Accepted, Offer
from icedb_ingest.frontend.webhooks import STAGED_AT_ONCE, EventGroups
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable
from icedb_service.access.guard import Holder, RateLimited


def run(coroutine):
    return asyncio.run(coroutine)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


# ---- memory -----------------------------------------------------------------------------------------------------


def test_room_is_given_in_turn_and_given_back():
    async def scene():
        seen = []
        memory = make_budget(max_bytes=10, wait_ms=60_000, on_change=seen.append)
        await memory.take(8)
        large = asyncio.create_task(memory.take(6))
        await settle()
        small = asyncio.create_task(memory.take(1))  # would fit, but is not first
        await settle()
        assert not large.done()
        assert not small.done()
        memory.give(8)
        await settle()
        assert large.done()
        assert small.done()
        memory.give(7)
        assert (seen[-1], max(seen)) == (0, 8)

    run(scene())


def test_who_waits_too_long_is_told_when_to_come_again_and_lets_the_next_one_in():
    async def scene():
        memory = make_budget(max_bytes=10, wait_ms=0)
        await memory.take(8)
        waiting = asyncio.create_task(memory.take(5))
        await settle()
        with pytest.raises(Busy, match="holds 8 of 10 bytes") as caught:
            await waiting
        assert caught.value.retry_after_ms > 0
        await memory.take(2)

    run(scene())


def test_who_goes_away_while_waiting_keeps_nothing():
    async def scene():
        memory = make_budget(max_bytes=10, wait_ms=60_000)
        await memory.take(8)
        waiting = [asyncio.create_task(memory.take(5)) for _ in range(2)]
        await settle()
        waiting[0].cancel()
        memory.give(8)  # the one that is cancelled may have been given room in this moment
        with suppress(asyncio.CancelledError):
            await waiting[0]
        await waiting[1]
        await memory.take(5)

    run(scene())


def test_a_hold_grows_without_waiting():
    async def scene():
        memory = make_budget(max_bytes=10, wait_ms=60_000)
        async with memory.hold(4) as hold:
            hold.grow_to(3)
            hold.grow_to(9)
            with pytest.raises(Busy):
                hold.grow_to(11)
        await memory.take(10)

    run(scene())


# ---- groups -----------------------------------------------------------------------------------------------------


class Store:
    """Accepts groups when it is told to."""

    def __init__(self):
        self.offers = []
        self.gate = asyncio.Event()
        self.failure = None

    async def accept(self, offer):
        self.offers.append(offer)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return Accepted(offer.table, offer.batch_id, len(offer.body))


def make_groups(store, **limits):
    values = {"linger_ms": 0, "max_rows": 3, "max_bytes": 1000, **limits}
    return EventGroups(store.accept, clock=SystemClock(), **values)


def test_nobody_is_answered_before_the_put_and_everybody_gets_the_groups_id():
    async def scene():
        store = Store()
        groups = make_groups(store, max_rows=10)
        adds = [asyncio.create_task(groups.add("t", b"%d\n" % number, row_count=1)) for number in range(3)]
        await settle()
        assert [offer.body for offer in store.offers] == [b"0\n1\n2\n"]
        assert not any(add.done() for add in adds)
        store.gate.set()
        answers = await asyncio.gather(*adds)
        assert {answer.batch_id for answer in answers} == {store.offers[0].batch_id}

    run(scene())


def test_rows_and_bytes_of_a_group_are_bounded_and_tables_are_apart():
    async def scene():
        store = Store()
        store.gate.set()
        groups = make_groups(store, max_bytes=6)
        lines = [("t", b"a\n", 1), ("t", b"b\n", 2), ("t", b"c\n", 1), ("u", b"d\n", 1), ("t", b"too long\n", 1)]
        await asyncio.gather(*(groups.add(table, line, row_count=count) for table, line, count in lines))
        found = sorted((offer.table, offer.body) for offer in store.offers)
        assert found == [("t", b"a\nb\n"), ("t", b"c\n"), ("t", b"too long\n"), ("u", b"d\n")]

    run(scene())


def test_a_slow_store_makes_larger_groups_not_more():
    async def scene():
        store = Store()
        groups = make_groups(store, max_rows=100)
        adds = []
        for number in range(STAGED_AT_ONCE + 20):
            adds.append(asyncio.create_task(groups.add("t", b"%d\n" % number, row_count=1)))
            await settle()
        assert len(store.offers) == STAGED_AT_ONCE
        store.gate.set()
        await asyncio.gather(*adds)
        assert len(store.offers) == STAGED_AT_ONCE + 1
        await groups.finish()
        assert not groups._places  # nothing is kept for tables that are quiet

    run(scene())


def test_a_refused_group_is_refused_for_each_and_a_request_that_left_harms_nobody():
    async def scene():
        store = Store()
        store.failure = Unavailable("down")
        groups = make_groups(store)
        adds = [asyncio.create_task(groups.add("t", b"x\n", row_count=1)) for _ in range(3)]
        await settle()
        adds[0].cancel()
        store.gate.set()
        results = await asyncio.gather(*adds, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, Unavailable, Unavailable]
        store.failure = None
        assert (await groups.add("t", b"y\n", row_count=1)).table == "t"

    run(scene())


# ---- the gate ------------------------------------------------------------------------------------------------


class HangingGate:
    """A blocking whose store hangs until it is told to go on."""

    def __init__(self, loop):
        self.begun = []
        self.has_begun = asyncio.Event()
        self.gate = threading.Event()
        self._loop = loop

    def begin_quickly(self, _offer):
        return None

    def begin(self, offer):
        self.begun.append(offer.batch_id)
        self._loop.call_soon_threadsafe(self.has_begun.set)
        self.gate.wait()
        accepted = Future()
        accepted.set_result(Accepted(offer.table, offer.batch_id, len(offer.body)))
        return accepted


class GroupingGate:
    """A blocking gate whose batches wait in a group until the test ends it."""

    def __init__(self, *, quick):
        self.group = Future()
        self.group.set_running_or_notify_cancel()
        self.threads = []
        self._quick = quick

    def begin_quickly(self, offer):
        return self.begin(offer) if self._quick else None

    def begin(self, _offer):
        self.threads.append(threading.current_thread() is threading.main_thread())
        return self.group


@pytest.mark.parametrize("quick", [False, True])
def test_a_batch_that_waits_in_a_group_keeps_its_room_when_its_sender_goes_away(quick):
    async def scene():
        blocking, held = GroupingGate(quick=quick), []
        settings = FrontendSettings(store="file:///w", frontend_store_threads=1)
        gate = AsyncGate(blocking, settings=settings, metrics=FrontendMetrics(), clock=SystemClock())
        gate.budget = make_budget(max_bytes=16, wait_ms=0, on_change=held.append)
        alpha, beta = Holder("alpha"), Holder("beta")

        async def send():
            async with gate.budget.hold(8, alpha):
                await gate.accept(Offer("t", b"12345678", "ndjson"), holder=alpha)

        sending = asyncio.create_task(send())
        await settle()
        await gate.run(lambda: None)  # the only thread has done what came before it
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert held[-1] == 8
        with pytest.raises(RateLimited, match="alpha has 8 bytes of bodies"):
            await gate.budget.take(1, alpha)
        await gate.budget.take(8, beta)
        gate.budget.give(8, beta)
        blocking.group.set_result(Accepted("t", "x", 8))
        await settle()
        assert held[-1] == 0
        await gate.budget.take(8, alpha)
        await gate.close()
        assert blocking.threads == [quick], "on the loop, or in a thread"

    run(scene())


def test_the_batches_of_a_group_wake_the_loop_once(monkeypatch):
    async def scene():
        blocking, loop = GroupingGate(quick=True), asyncio.get_running_loop()
        settings = FrontendSettings(store="file:///w")
        gate = AsyncGate(blocking, settings=settings, metrics=FrontendMetrics(), clock=SystemClock())
        offer = Offer("t", b"12345678", "ndjson")
        sending = [asyncio.create_task(gate.accept(offer)) for _ in range(50)]
        leaving = asyncio.create_task(gate.accept(offer))
        await settle()
        leaving.cancel()
        wakes = []
        call_soon = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: [wakes.append(call), call_soon(*call)])
        accepted = Accepted("t", "x", 8)
        blocking.group.set_result(accepted)
        assert await asyncio.gather(*sending) == [accepted] * 50
        assert sum(call[0] == gate._tell_ended for call in wakes) == 1
        blocking.group = Future()
        blocking.group.set_exception(Unavailable("away"))
        with pytest.raises(Unavailable, match="away"):
            await gate.accept(offer)
        await gate.close()

    run(scene())


def test_what_a_hanging_store_has_not_let_go_keeps_its_room_and_what_waits_for_it_is_dropped():
    async def scene():
        blocking, held, is_free = HangingGate(asyncio.get_running_loop()), [], asyncio.Event()
        settings = FrontendSettings(store="file:///w", frontend_store_threads=1)
        gate = AsyncGate(blocking, settings=settings, metrics=FrontendMetrics(), clock=SystemClock())

        def on_change(size_bytes):
            held.append(size_bytes)
            if not size_bytes:
                is_free.set()

        gate.budget = make_budget(max_bytes=100, wait_ms=0, on_change=on_change)

        async def send(batch_id):
            async with gate.budget.hold(8):
                await gate.accept(Offer("t", b"12345678", "ndjson", batch_id))

        sends = [asyncio.create_task(send(batch_id)) for batch_id in "abc"]
        await blocking.has_begun.wait()
        for each in sends:
            each.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        assert held[-1] == 8, "that of the one that was sent"
        assert not is_free.is_set()
        blocking.gate.set()
        await is_free.wait()
        await gate.close()
        assert blocking.begun == ["a"]

    run(scene())
