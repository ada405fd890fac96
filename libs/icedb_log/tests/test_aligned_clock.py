"""Batch ids with the store's time, on hosts whose clock is wrong (I3)."""

import gc

import pytest
from icedb_log.clock import new_batch_id, parse_uuid7_ms
from icedb_log.errors import Unavailable
from icedb_log.ingest.staging import stage_batch
from icedb_log.store.store_clock import AlignedClock
from icedb_sim.fakes.fake_clock import DEFAULT_START_MS, FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_table import SmallTable

HOUR_MS = 3_600_000


class TellingStore(MemoryObjectStore):
    """A store that tells what time its answers show; a host's clock does not move it."""

    def __init__(self):
        super().__init__(self.store_ms)
        self.time_listeners = []
        self.clock = None
        self.calls = 0
        self.failure = None

    def store_ms(self):
        return DEFAULT_START_MS + (self.clock.monotonic_ms() if self.clock else 0)

    def list_page(self, prefix, *, token=None, limit=1000):
        self.calls += 1
        if self.failure:
            raise self.failure
        page = super().list_page(prefix, token=token, limit=limit)
        for tell in self.time_listeners:
            tell(page.store_now_ms)
        return page


@pytest.fixture
def host():
    return FakeClock(seed="host")


@pytest.fixture
def store(host):
    store = TellingStore()
    store.clock = host
    return store


@pytest.mark.parametrize("off_ms", [-30 * HOUR_MS, -600_000, 0, 600_000, 30 * HOUR_MS])
def test_an_id_has_the_stores_time_whatever_the_host_says(host, store, off_ms):
    host.set_wall(host.now_ms() + off_ms)
    clock = AlignedClock(host, store, may_ask=True)
    ids = []
    for _ in range(3):
        host.advance(1000)
        ids.append(new_batch_id(clock))
        assert parse_uuid7_ms(ids[-1]) == store.store_ms()
    assert len(set(ids)) == 3
    assert store.calls == 1, "one answer is enough"
    assert clock.monotonic_ms() == host.monotonic_ms()


def test_a_clock_that_is_set_makes_it_ask_again(host, store):
    clock = AlignedClock(host, store, may_ask=True)
    clock.now_ms()
    host.set_wall(host.now_ms() - HOUR_MS)
    assert clock.now_ms() == store.store_ms()
    host.set_wall(host.now_ms() + 2 * HOUR_MS)
    assert clock.now_ms() == store.store_ms()
    assert store.calls == 3


def test_on_an_event_loop_nobody_waits_for_the_store(host, store):
    clock = AlignedClock(host, store, may_ask=False)
    host.set_wall(host.now_ms() + HOUR_MS)
    assert clock.now_ms() == host.now_ms()
    assert store.calls == 0
    store.list_page("")  # somebody looks, as a front end does every few seconds
    assert clock.now_ms() == store.store_ms()


def test_without_an_answer_it_is_the_hosts_clock(host, store):
    store.failure = Unavailable("no answer")
    assert AlignedClock(host, store, may_ask=True).now_ms() == host.now_ms()
    assert AlignedClock(host, MemoryObjectStore(lambda: 0), may_ask=True).now_ms() == host.now_ms()


@pytest.mark.parametrize("off_ms", [-600_000, 600_000])
def test_i3_batches_of_a_host_that_is_minutes_off_are_committed(off_ms):
    """Made by that host's own clock, an id is refused: from the future, or too late."""
    table = SmallTable(store=TellingStore())
    store = table.store.inner
    store.clock = table.clock
    host = FakeClock(table.clock.now_ms() + off_ms, seed="producer")
    for number, clock in enumerate((host, AlignedClock(host, store, may_ask=True))):
        body = encode_rows([{"id": number, "p": "a"}])
        stage_batch(table, body=body, staging_format="ndjson", batch_id=new_batch_id(clock))
    result = table.flush()
    assert (len(result.rejected), result.batch_count) == (1, 1)
    assert table.ids() == [1]


def test_a_clock_that_nobody_has_any_more_is_not_told(host, store):
    """A console makes one for each batch that is tried again, on a store that lives as long as it does."""
    kept = AlignedClock(host, store, may_ask=True)
    for _ in range(3):
        AlignedClock(host, store, may_ask=True).now_ms()
    gc.collect()
    assert len(store.time_listeners) == 1
    kept._skew_ms = None
    store.list_page("", limit=1)
    assert kept._skew_ms is not None, "it is still told"
