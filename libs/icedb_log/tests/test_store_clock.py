"""Whether a store's clock tells ages: what is refused before anything is deleted by age (J1, J5)."""

import pytest
from icedb_log.errors import Unavailable, UnsupportedFormat
from icedb_log.store.object_store import ObjectPage
from icedb_log.store.store_clock import MAX_HOST_GAP_MS, MAX_STORE_GAP_MS, check_store_clock
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.store_acceptance import expect

KEY = "wh/events/_icedb/clock"
DAY_MS = 24 * 3600 * 1000


class Store(MemoryObjectStore):
    """A store whose answers about time can be bent: each call takes a while."""

    def __init__(self, clock, *, call_ms=0):
        super().__init__(clock.now_ms)
        self.clock = clock
        self.call_ms = call_ms
        self.modified_off_ms = 0
        self.now_off_ms = [0, 0]
        self.shows_all = True

    def put(self, key, body):
        etag = super().put(key, body)
        self.clock.advance(self.call_ms)
        return etag

    def list_page(self, prefix, *, token=None, limit=1000):
        self.clock.advance(self.call_ms)
        page = super().list_page(prefix, token=token, limit=limit)
        objects = tuple(
            type(info)(info.key, info.etag, info.size_bytes, info.modified_ms + self.modified_off_ms)
            for info in page.objects
        )
        off_ms = self.now_off_ms.pop(0)
        return ObjectPage(objects if self.shows_all else (), page.next_token, page.store_now_ms + off_ms)


@pytest.fixture
def clock():
    return FakeClock()


def test_a_store_that_tells_the_time_is_taken_however_slow_it_is(clock):
    for call_ms in (0, 1000, DAY_MS):
        store = Store(clock, call_ms=call_ms)
        assert check_store_clock(store, KEY, clock=clock) == clock.now_ms()
    store.now_off_ms = [0, 0]
    check_store_clock(store, KEY, clock=clock)  # the scratch object is there from before, a day old


def test_a_neighbour_of_the_scratch_object_is_not_taken_for_it(clock):
    store = Store(clock)
    store.put(f"{KEY}s", b"")
    clock.advance(DAY_MS)
    check_store_clock(store, KEY, clock=clock)


@pytest.mark.parametrize("off_ms", [-DAY_MS, -MAX_STORE_GAP_MS - 1, MAX_STORE_GAP_MS + 1])
def test_last_modified_that_is_not_the_time_of_the_write_is_refused(clock, off_ms):
    store = Store(clock)
    store.modified_off_ms = off_ms
    error = str(expect(UnsupportedFormat, lambda: check_store_clock(store, KEY, clock=clock)))
    assert KEY in error
    assert str(clock.now_ms() + off_ms) in error
    store.modified_off_ms = MAX_STORE_GAP_MS if off_ms > 0 else -MAX_STORE_GAP_MS
    store.now_off_ms = [0, 0]
    check_store_clock(store, KEY, clock=clock)  # whole seconds, and several servers


@pytest.mark.parametrize("offs_ms", [(0, 2 * MAX_STORE_GAP_MS), (0, -2 * MAX_STORE_GAP_MS), (0, 30 * DAY_MS)])
def test_a_clock_that_jumps_meanwhile_stops_the_run(clock, offs_ms):
    store = Store(clock, call_ms=1)
    store.now_off_ms = [*offs_ms]
    error = str(expect(Unavailable, lambda: check_store_clock(store, KEY, clock=clock)))
    assert "moved by" in error


def test_a_clock_that_stands_still_stops_the_run(clock):
    store = Store(clock, call_ms=MAX_STORE_GAP_MS + 1)
    still_ms = clock.now_ms()
    store._now_ms = lambda: still_ms
    assert "moved by 0 ms" in str(expect(Unavailable, lambda: check_store_clock(store, KEY, clock=clock)))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_store_far_from_the_host_stops_the_run_and_one_that_is_near_does_not(clock, sign):
    store = Store(clock)
    store.modified_off_ms = sign * MAX_HOST_GAP_MS
    store.now_off_ms = [sign * MAX_HOST_GAP_MS] * 2
    check_store_clock(store, KEY, clock=clock)
    store.now_off_ms = [sign * (MAX_HOST_GAP_MS + 1)] * 2
    error = str(expect(Unavailable, lambda: check_store_clock(store, KEY, clock=clock)))
    assert "15 minutes" in error
    assert str(clock.now_ms()) in error


def test_a_listing_that_lacks_what_was_written_is_refused(clock):
    store = Store(clock)
    store.shows_all = False
    assert "consistent" in str(expect(UnsupportedFormat, lambda: check_store_clock(store, KEY, clock=clock)))
