"""Watchers and the polls behind them: one read for all, nothing twice, the newest state and no queue."""

import asyncio
import math
from collections import Counter
from types import SimpleNamespace

import pytest
from icedb_log.errors import CorruptLog, NotFound, Overloaded, Unavailable
from icedb_snapshot.watches import MESSAGES_A_ROUND, PATIENT_POLLS, WatchCalls, Watcher

DEADLINE_S = 240
MAX_AGE_MS = 500
IDLE_MS = 3_600_000


class Rig:
    """Tables whose states are set by hand; each read waits until it is let through."""

    def __init__(self, *, max_polls=8, max_watchers=10, looks_s=math.inf):
        self.states = {"a": "a1", "b": "b1"}
        self.names = ["a", "b"]
        self.reads = []
        self.listings = 0
        self.ages_ms = []
        self.looks = Counter()
        self.listeners = 0
        self.gate = asyncio.Semaphore(0)
        self.idle = asyncio.Event()
        self.parts = SimpleNamespace(
            settings=SimpleNamespace(
                snapshot_watch_interval_ms=0,
                snapshot_watch_idle_interval_ms=IDLE_MS,
                read_threads=2 * max_polls,
                snapshot_max_watchers=max_watchers,
            ),
            reads=SimpleNamespace(read=self.read_table, work=SimpleNamespace(run_compute=self.compute)),
            names=SimpleNamespace(read=self.read_names),
            metrics=SimpleNamespace(show_watchers=self.show, show_heard=self.note_heard, observe_watch_look=self.look),
        )
        self.watches = WatchCalls(self.parts, SimpleNamespace(run=self.listen))
        self.watches._max_age_ms = MAX_AGE_MS
        self.watches._looks_s = looks_s

    async def listen(self, on_commit, on_change):
        self.listeners += 1
        await asyncio.Event().wait()

    def note_heard(self, hears_commits):
        self.hears_commits = hears_commits

    def look(self, *, is_announced):
        self.looks[is_announced] += 1

    def show(self, *, watchers, tables):
        self.shown = (watchers, tables)

    async def read_names(self):
        self.listings += 1
        return tuple(self.names)

    async def read_table(self, table, *, max_staleness_ms):
        self.ages_ms.append(max_staleness_ms)
        await self.gate.acquire()
        self.reads.append(table)
        state = self.states[table]
        if isinstance(state, Exception):
            raise state
        snapshot = SimpleNamespace(snapshot_id=state, live=(), size_bytes=0, row_count=0, last_commit_ms=0)
        return SimpleNamespace(snapshot=snapshot)

    async def compute(self, function):
        return function()

    async def poll(self, count=1):
        """Let so many reads through, and wait until what they found is noted."""
        for _ in range(count):
            self.gate.release()
        for _ in range(20 * count):
            await asyncio.sleep(0)

    def watch(self, *tables, may_see=lambda table: True):
        watcher = Watcher(may_see, frozenset(tables) or None, self.watches._turns)
        self.watches.add(watcher)
        return watcher


def run(test, **options):
    async def go():
        rig = Rig(**options)
        try:
            await asyncio.wait_for(test(rig), DEADLINE_S)
        finally:
            rig.watches.end()

    asyncio.run(go())


async def taken(watcher):
    """Return all that a watcher has noted, by table."""
    found = []
    while watcher._notes:
        event = await watcher.take()
        found.append((event.table, event.snapshot_id or event.problem))
    return found


def test_all_watchers_of_a_table_share_its_polls():
    async def test(rig):
        watchers = [rig.watch("a") for _ in range(5)]
        await rig.poll()
        assert [await taken(watcher) for watcher in watchers] == [[("a", "a1")]] * 5
        late = rig.watch("a")
        assert await taken(late) == [("a", "a1")]  # at once: it is known
        rig.states["a"] = "a2"
        await rig.poll(3)
        assert rig.reads == ["a"] * 4
        assert rig.ages_ms == [0, *[MAX_AGE_MS] * 4]  # what was committed before the watch is in the first message
        assert [await taken(watcher) for watcher in (*watchers, late)] == [[("a", "a2")]] * 6

    run(test)


def test_without_watchers_nothing_is_read():
    async def test(rig):
        first, second = rig.watch("a"), rig.watch("a", "b")
        rig.watches.remove(first)
        assert rig.shown == (1, 2)
        rig.watches.remove(second)
        rig.watches.remove(second)
        assert rig.shown == (0, 0)
        await rig.poll(3)
        assert rig.reads == []
        everything = rig.watch()
        await rig.poll()
        rig.watches.remove(everything)
        before = rig.listings
        await rig.poll(3)
        assert rig.listings == before > 0
        assert rig.listeners == 1

    run(test)


def test_a_slow_watcher_is_told_the_newest_state_of_each_table_and_nothing_twice():
    async def test(rig):
        slow = rig.watch("a", "b")
        await rig.poll(2)
        for number in range(2, 8):
            rig.states["a"] = f"a{number}"
            await rig.poll(2)
        assert sorted(await taken(slow)) == [("a", "a7"), ("b", "b1")]
        await rig.poll(4)
        assert await taken(slow) == []
        rig.states["b"] = "b2"
        await rig.poll(2)
        rig.states["b"] = "b1"  # back to what it was told: nothing new
        await rig.poll(2)
        assert await taken(slow) == []

    run(test)


def test_a_damaged_table_is_told_at_once_a_silent_store_after_a_while():
    async def test(rig):
        watcher = rig.watch("a")
        await rig.poll()
        assert await taken(watcher) == [("a", "a1")]
        rig.states["a"] = Unavailable("no answer 1")
        await rig.poll(PATIENT_POLLS - 1)
        assert await taken(watcher) == []
        rig.states["a"] = Unavailable("no answer 2")
        await rig.poll()
        assert await taken(watcher) == [("a", "Unavailable: no answer 2")]
        rig.states["a"] = Unavailable("no answer 3")  # the same in other words
        await rig.poll(2)
        assert await taken(watcher) == []
        rig.states["a"] = CorruptLog("line 0")
        await rig.poll()
        assert await taken(watcher) == [("a", "CorruptLog: line 0")]
        rig.states["a"] = "a1"
        await rig.poll()
        assert await taken(watcher) == [("a", "a1")]  # it can be read again
        rig.states["a"] = RuntimeError("a bug")
        await rig.poll()
        ((_, problem),) = await taken(watcher)
        assert "a bug" not in problem

    run(test)


def test_a_store_that_answers_now_and_then_is_no_problem_of_a_table():
    async def test(rig):
        watcher = rig.watch("a")
        await rig.poll()
        assert await taken(watcher) == [("a", "a1")]
        for _ in range(PATIENT_POLLS):
            rig.states["a"] = Unavailable("no answer")
            await rig.poll()
            assert await taken(watcher) == []
            rig.states["a"] = "a1"
            await rig.poll()

    run(test)


def test_a_store_that_does_not_answer_from_the_beginning_is_told_at_once():
    async def test(rig):
        rig.states["a"] = Unavailable("no answer")
        watcher = rig.watch("a")
        await rig.poll()
        assert await taken(watcher) == [("a", "Unavailable: no answer")]

    run(test)


def test_a_read_that_hangs_leaves_the_others_their_turn():
    async def test(rig):
        async def hang(table, *, max_staleness_ms):
            if table == "a":
                await asyncio.Event().wait()
            return await rig.read_table(table, max_staleness_ms=max_staleness_ms)

        rig.parts.reads.read = hang
        watcher = rig.watch("a", "b")
        await rig.poll(2)
        assert await taken(watcher) == [("b", "b1")]

    run(test, max_polls=2)


def test_polls_leave_threads_to_calls():
    async def test(rig):
        rig.watch("a", "b")
        await rig.poll(0)
        await asyncio.sleep(0)
        assert len(rig.ages_ms) == 1, "as many read at once as half of the threads"

    run(test, max_polls=1)


def test_who_watches_all_is_told_of_those_it_may_see_as_long_as_it_may():
    async def test(rig):
        seen = {"a"}
        watcher = rig.watch(may_see=seen.__contains__)
        await rig.poll(3)
        assert await taken(watcher) == [("a", "a1")]
        assert rig.shown == (1, 1)  # nobody may see the other one: it is not read
        seen.add("b")
        await rig.poll(8)
        assert await taken(watcher) == [("b", "b1")]
        rig.states["b"] = "b2"
        await rig.poll(4)
        seen.remove("b")
        rig.states["a"] = "a2"
        await rig.poll(4)
        assert await take_next(watcher) == ("a", "a2")

    run(test)


async def take_next(watcher):
    event = await watcher.take()
    return event.table, event.snapshot_id


def test_who_watches_all_forgets_a_table_that_goes_and_who_named_it_waits_for_it():
    async def test(rig):
        everything, named = rig.watch(), rig.watch("a")
        await rig.poll(4)
        assert sorted(await taken(everything)) == [("a", "a1"), ("b", "b1")]
        rig.names.remove("a")
        rig.states["a"] = NotFound("gone")
        await rig.poll(4)
        assert await taken(everything) == [("a", "")]
        assert await taken(named) == [("a", "")]
        rig.names.append("a")
        rig.states["a"] = "a1"
        await rig.poll(8)
        assert await taken(everything) == [("a", "a1")]
        rig.watches.remove(named)
        rig.names.remove("a")
        rig.states["a"] = NotFound("gone")
        await rig.poll(8)
        assert await taken(everything) == [("a", "")]
        assert rig.shown == (1, 1)
        assert not everything._notes

    run(test)


def test_who_watches_all_keeps_no_table_polled_that_is_gone():
    async def test(rig):
        rig.watch()
        named = rig.watch("a")
        await rig.poll(4)
        rig.states["a"] = NotFound("gone")
        await rig.poll(4)
        for _ in range(20):  # the list is older, and still has it
            await rig.poll()
        rig.watches.remove(named)
        rig.names.remove("a")
        await rig.poll(8)
        assert rig.shown == (1, 1)

    run(test)


def test_messages_about_one_table_take_turns_and_leave_others_theirs():
    async def test(rig):
        watchers = [rig.watch("a") for _ in range(10 * MESSAGES_A_ROUND)]
        told = []

        async def tell(watcher):
            told.append(await watcher.take())

        telling = [asyncio.ensure_future(tell(watcher)) for watcher in watchers]
        counts = []
        rig.gate.release()
        while len(told) < len(watchers):
            before = len(told)
            await asyncio.sleep(0)
            counts.append(len(told) - before)
        assert max(counts) <= MESSAGES_A_ROUND
        assert {(event.table, event.snapshot_id) for event in told} == {("a", "a1")}
        await asyncio.gather(*telling)

    run(test, max_watchers=1000)


def test_one_that_has_much_to_tell_gets_one_message_a_turn():
    async def test(rig):
        rig.states = {f"t{number}": "s1" for number in range(3)}
        busy, other = rig.watch(*rig.states), rig.watch("t0")
        await rig.poll(3)
        order = []

        async def tell(watcher, name):
            while watcher._notes:
                await watcher.take()
                order.append(name)

        await asyncio.gather(tell(busy, "busy"), tell(other, "other"))
        assert order.index("other") < 2, order

    run(test)


def test_a_table_that_went_before_it_was_told_of_is_not_told_of():
    async def test(rig):
        rig.states["a"] = NotFound("gone")
        watcher = rig.watch()
        await rig.poll(4)
        assert await taken(watcher) == [("b", "b1")]

    run(test)


def test_the_end_comes_after_what_is_noted_and_no_watcher_comes_after_it():
    async def test(rig):
        watcher = rig.watch("a")
        await rig.poll()
        rig.watches.end()
        assert (await watcher.take()).snapshot_id == "a1"
        with pytest.raises(Unavailable, match="another replica"):
            await watcher.take()
        with pytest.raises(Unavailable, match="another replica"):
            rig.watch("a")

    run(test)


def test_watchers_are_bounded():
    async def test(rig):
        rig.watch("a")
        with pytest.raises(Overloaded, match="ICEDB_SNAPSHOT_MAX_WATCHERS"):
            rig.watch("a")

    run(test, max_watchers=1)


def test_while_commits_are_heard_a_table_is_read_when_one_is_announced_and_not_before():
    async def test(rig):
        rig.watches.show_heard(True)
        watcher = rig.watch("a", "b")
        await rig.poll(20)
        assert sorted(rig.reads) == ["a", "b"]
        rig.states.update(a="a2", b="b2")
        rig.watches.wake("a")
        await rig.poll(20)
        assert sorted(rig.reads) == ["a", "a", "b"]
        assert rig.ages_ms[-1] == 0, "what others have read may be older than the commit"
        assert sorted(await taken(watcher)) == [("a", "a2"), ("b", "b1")]
        assert rig.looks == {True: 1}

    run(test)


def test_a_commit_that_is_announced_during_a_read_is_looked_for_again():
    async def test(rig):
        rig.watches.show_heard(True)
        rig.watch("a")
        await rig.poll()
        rig.watches.wake("a")
        await rig.poll(0)
        await asyncio.sleep(0)
        rig.watches.wake("a")  # the read has begun and waits
        await rig.poll(20)
        assert rig.reads == ["a"] * 3

    run(test)


def test_when_commits_are_heard_no_more_tables_are_read_each_interval_and_once_when_they_are_again():
    async def test(rig):
        rig.watches.show_heard(True)
        watcher = rig.watch("a")
        await rig.poll(20)
        assert rig.reads == ["a"]
        rig.watches.show_heard(False)
        assert rig.hears_commits is False
        rig.states["a"] = "a2"
        await rig.poll(5)
        assert len(rig.reads) >= 5
        assert await taken(watcher) == [("a", "a2")]
        rig.watches.show_heard(True)
        await rig.poll(20)
        before = len(rig.reads)
        await rig.poll(20)
        assert len(rig.reads) == before

    run(test)


def test_many_tables_are_read_less_often_while_no_commits_are_heard_and_at_once_when_they_are_again():
    async def test(rig):
        rig.watch("a", "b")
        await rig.poll(20)
        assert sorted(rig.reads) == ["a", "b"], "the second look of two tables is due when two looks are"
        rig.states["a"] = "a2"
        rig.watches.show_heard(True)
        await rig.poll(20)
        assert sorted(rig.reads) == ["a", "a", "b", "b"]

    run(test, looks_s=2 * 1000 / IDLE_MS)


def test_a_table_with_a_problem_is_read_each_interval_although_commits_are_heard():
    async def test(rig):
        rig.watches.show_heard(True)
        rig.states["a"] = CorruptLog("line 0")
        watcher = rig.watch("a")
        await rig.poll(3)
        assert await taken(watcher) == [("a", "CorruptLog: line 0")]
        rig.states["a"] = "a1"
        await rig.poll(3)
        assert await taken(watcher) == [("a", "a1")]

    run(test)


def test_who_watches_all_hears_of_a_new_table_with_its_first_announced_commit():
    async def test(rig):
        rig.watches.show_heard(True)
        watcher = rig.watch()
        await rig.poll(20)
        listings = rig.listings
        rig.states["c"] = "c1"
        for name in ("c", "c", "No Table", "_x"):
            rig.watches.wake(name)
        await rig.poll(20)
        assert sorted(await taken(watcher)) == [("a", "a1"), ("b", "b1"), ("c", "c1")]
        assert (rig.listings, rig.shown) == (listings, (1, 3))

    run(test)
