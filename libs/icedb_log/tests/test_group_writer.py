"""When groups leave, and that nobody is answered before the PUT (I1). No test waits for time: the clock is moved."""

import threading
from concurrent.futures import wait

import pytest
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.content import hash_content
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.ingest import group_writer
from icedb_log.ingest.group_writer import GroupWriter
from icedb_log.ingest.groups import MAX_GROUP_BATCHES, MAX_GROUPED_BYTES, OfferedBatch
from icedb_log.ingest.staging import list_all_staged
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from waiting import LIMIT_S

LINGER_MS = 100


class GatedStore(ScriptedStore):
    """Lets PUTs wait until the test opens the gate; says when one has come."""

    def __init__(self, inner):
        super().__init__(inner)
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)

    def put_if_absent(self, key, body):
        self.arrived.release()
        assert self.gate.wait(LIMIT_S)
        return super().put_if_absent(key, body)

    def await_put(self):
        assert self.arrived.acquire(timeout=LIMIT_S)


class Bench:
    def __init__(self, *, linger_ms=LINGER_MS, puts=4):
        self.clock = FakeClock()
        self.store = GatedStore(MemoryObjectStore(self.clock.now_ms))
        self.warehouse = Warehouse(self.store)
        self.copied = []
        self.left = []
        self.writer = GroupWriter(
            clock=self.clock, linger_ms=linger_ms, puts=puts, on_copy=self.copied.append, on_left=self.left.append
        )

    def table(self, name="events"):
        return TableStore(self.store, self.warehouse.first(name).paths)

    def send(self, body=b"{}\n", *, batch_id=None, table="events"):
        self.clock.advance(1)
        batch_id = batch_id or new_batch_id(self.clock)
        return self.writer.submit(
            self.table(table), OfferedBatch(batch_id, "ndjson", body, hash_content(body, "ndjson"))
        )

    def sizes(self, table="events"):
        """Return how many batches each staged object has."""
        keys = [batch.key for batch in list_all_staged(self.table(table)).batches]
        return sorted(keys.count(key) for key in dict.fromkeys(keys))

    def pass_linger(self):
        self.clock.advance(LINGER_MS)
        self.writer.send_due()


@pytest.fixture
def bench(request):
    bench = Bench(**getattr(request, "param", {}))
    yield bench
    bench.store.gate.set()
    bench.writer.close()


def settle(*futures):
    done, left = wait(futures, LIMIT_S)
    assert not left
    return done


def test_a_lone_sender_waits_for_nobody(bench):
    for _ in range(20):
        settle(bench.send())
    assert bench.sizes() == [1] * 20


def test_nobody_is_answered_before_the_put(bench):
    bench.store.gate.clear()
    first = bench.send()
    bench.store.await_put()
    others = [bench.send() for _ in range(3)]
    bench.pass_linger()
    bench.store.await_put()
    assert not any(future.done() for future in (first, *others))
    bench.store.gate.set()
    settle(first, *others)
    assert len({future.result() for future in others}) == 1
    assert bench.sizes() == [1, 3]


def test_senders_who_wait_for_their_answers_fill_groups_without_the_linger(bench):
    """Sixteen that send again as soon as they are answered: after the first round all of them share one object."""
    bench.store.gate.clear()
    first = bench.send()
    bench.store.await_put()
    futures = [bench.send() for _ in range(15)]
    bench.store.gate.set()
    settle(first)
    for _ in range(3):
        futures.append(bench.send())  # the sixteenth is there
        settle(*futures)
        futures = [bench.send() for _ in range(15)]
    futures.append(bench.send())
    settle(*futures)
    assert bench.sizes() == [1, 16, 16, 16, 16]


def test_a_group_leaves_after_the_linger_time_and_the_crowd_is_forgotten(bench):
    bench.store.gate.clear()
    futures = [bench.send() for _ in range(9)]
    bench.store.gate.set()
    settle(futures[0])
    bench.pass_linger()
    settle(*futures)
    late = bench.send()  # eight were there just now: it waits for them, and for the linger time at most
    assert not late.done()
    bench.pass_linger()
    settle(late)
    bench.clock.advance(LINGER_MS * group_writer.REMEMBERED_LINGERS)
    settle(bench.send())
    assert bench.sizes() == [1, 1, 1, 8]


@pytest.mark.parametrize("bench", [{"linger_ms": 0}], indirect=True)
def test_without_a_linger_time_each_batch_is_alone(bench):
    settle(*(bench.send() for _ in range(50)))
    assert bench.sizes() == [1] * 50


def test_a_full_group_leaves_and_the_next_begins(bench, monkeypatch):
    monkeypatch.setattr(group_writer, "MAX_GROUP_BYTES", 30)
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    futures += [bench.send(b"x" * 10) for _ in range(7)]
    bench.store.gate.set()
    bench.pass_linger()
    settle(*futures)
    assert bench.sizes() == [1, 1, 3, 3]
    assert (sum(bench.copied), max(bench.copied)) == (0, 30)


def test_a_large_body_is_alone(bench):
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    futures += [bench.send(), bench.send(b"x" * MAX_GROUPED_BYTES), bench.send(), bench.send()]
    bench.store.gate.set()
    bench.pass_linger()
    settle(*futures)
    assert bench.sizes() == [1, 1, 1, 2]


@pytest.mark.parametrize("bench", [{"puts": 1}], indirect=True)
def test_puts_under_way_are_bounded_and_what_waits_grows(bench):
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    for _ in range(5):
        futures.append(bench.send())
        bench.pass_linger()
    futures += [bench.send() for _ in range(MAX_GROUP_BATCHES)]
    bench.store.gate.set()
    settle(*futures[: MAX_GROUP_BATCHES + 1])
    bench.pass_linger()
    settle(*futures)
    assert bench.sizes() == [1, 5, MAX_GROUP_BATCHES]


def test_tables_have_groups_of_their_own(bench):
    settle(bench.send(table="a"), bench.send(table="b"))
    assert bench.sizes("a") == bench.sizes("b") == [1]


def test_one_id_that_waits_twice_is_one_batch_and_has_one_content(bench):
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    batch_id = new_batch_id(bench.clock)
    futures += [bench.send(batch_id=batch_id), bench.send(batch_id=batch_id)]
    with pytest.raises(InvalidRequest, match="other content"):
        bench.send(b"[]\n", batch_id=batch_id)
    bench.store.gate.set()
    bench.pass_linger()
    settle(*futures)
    assert bench.sizes() == [1, 1]


def test_who_waits_for_a_group_that_fails_is_told(bench):
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    futures += [bench.send(), bench.send()]
    bench.store.script = [Fault("put_if_absent", Effect.DROP, ".group") for _ in range(3)]
    bench.store.gate.set()
    bench.pass_linger()
    settle(*futures)
    assert futures[0].exception() is None
    assert all(isinstance(future.exception(), Unavailable) for future in futures[1:])
    futures = bench.send(), bench.send()  # and it goes on
    bench.pass_linger()
    settle(*futures)
    assert bench.sizes() == [1, 2]


def test_the_end_stages_what_waits(bench):
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    futures += [bench.send(), bench.send()]
    bench.store.gate.set()
    bench.writer.close()
    assert all(future.done() for future in futures)
    assert bench.sizes() == [1, 2]
    with pytest.raises(InvalidRequest, match="about to end"):
        bench.send()


def test_the_linger_time_is_watched_by_a_thread_of_its_own():
    """With a clock that runs: no test calls ``send_due``."""
    bench = Bench()
    bench.writer = GroupWriter(clock=SystemClock(), linger_ms=1, puts=4)
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    futures += [bench.send(), bench.send()]
    bench.store.await_put()
    bench.store.gate.set()
    settle(*futures)
    bench.writer.close()


def test_a_group_leaves_in_time_and_says_how_long_each_batch_waited(bench, monkeypatch):
    monkeypatch.setattr(group_writer, "MAX_GROUP_BATCHES", 3)
    bench.store.gate.clear()
    futures = [bench.send()]
    bench.store.await_put()
    futures += [bench.send() for _ in range(2)]
    bench.pass_linger()
    bench.store.await_put()
    futures += [bench.send() for _ in range(4)]
    bench.store.await_put()
    bench.store.gate.set()
    bench.writer.close()
    settle(*futures)
    assert bench.left[:3] == [(0,), (LINGER_MS + 1, LINGER_MS), (2, 1, 0)]
    assert len(bench.left[3]) == 1
