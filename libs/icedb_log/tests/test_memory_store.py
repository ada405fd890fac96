"""The store in memory keeps every promise of a store, and its clock stands still when the host's runs backwards."""

import pytest
from icedb_log.clock import SystemClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.store_acceptance import StoreAcceptance


class TestMemoryObjectStore(StoreAcceptance):
    @pytest.fixture
    def store(self):
        return MemoryObjectStore(SystemClock().now_ms)

    def reopen(self, store):
        return store


def test_time_never_runs_backwards():
    times = iter([1_000, 2_000, 1_500, 1_500, 3_000])
    store = MemoryObjectStore(lambda: next(times))
    store.put("a", b"x")
    store.put("b", b"x")
    store.put("c", b"x")
    assert [store.head(key).modified_ms for key in "abc"] == [1_000, 2_000, 2_000]
    assert store.list_page("").store_now_ms == 2_000
    assert store.list_page("").store_now_ms == 3_000


def test_a_body_is_kept_as_it_was_given():
    store = MemoryObjectStore(lambda: 0)
    body = bytearray(b"before")
    store.put("key", body)
    body[:] = b"after!"
    assert store.get("key").body == b"before"
