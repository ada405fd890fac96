"""One read of a log for many callers, and never an answer older than what was asked for."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from icedb_log.commit.fence import seal
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.serving.table_cache import CachedTable, TableCache
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.trash.purge import purge_table
from waiting import LIMIT_S


@pytest.fixture
def refreshes():
    return []


@pytest.fixture
def cache(warehouse, clock, refreshes):
    return TableCache(warehouse, clock=clock, max_tables=3, wait_ms=30_000, on_refresh=refreshes.append)


class CountingLock:
    """A lock that says how many wait for it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.asked = 0

    def acquire(self, **options):
        self.asked += 1
        return self.lock.acquire(**options)

    def release(self):
        self.lock.release()


def await_waiters(table, count):
    deadline = time.monotonic() + LIMIT_S
    while table._reading.asked < count + 1:  # who reads has it
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_fresh_enough_knowledge_is_served_from_memory(cache, tables, store, clock, refreshes):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 5)])
    first = cache.table("events").read(max_staleness_ms=1000)
    clock.ms += 1000
    assert cache.table("events").read(max_staleness_ms=1000) is first
    clock.ms += 1
    assert cache.table("events").read(max_staleness_ms=1000) is not first
    assert store.log_listings == len(refreshes) == 2


def test_zero_staleness_reads_each_time_and_sees_the_newest_commit(cache, tables, store):
    tables.create()
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == 0
    tables.commit(files=[("d=2026-01-02", 5)])
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == 5
    assert store.log_listings == 2


def test_callers_that_arrive_during_a_read_share_the_next_one(cache, tables, store):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 1)])
    table = cache.table("events")
    table._reading = CountingLock()
    store.gate = threading.Event()
    seen = []

    def call():
        seen.append(table.read(max_staleness_ms=0).snapshot.row_count)

    leader = threading.Thread(target=call)
    leader.start()
    assert store.entered.acquire(timeout=LIMIT_S)
    # The leader's listing has begun: what is committed now may not be in it.
    waiters = [threading.Thread(target=call) for _ in range(20)]
    for waiter in waiters:
        waiter.start()
    await_waiters(table, 20)
    tables.commit(files=[("d=2026-01-02", 2)])
    store.gate.set()
    for thread in [leader, *waiters]:
        thread.join(LIMIT_S)
    assert sorted(seen)[1:] == [3] * 20
    assert store.log_listings == 2


def test_callers_that_accept_its_age_share_the_running_read(cache, tables, store, clock):
    tables.create()
    table = cache.table("events")
    table._reading = CountingLock()
    store.gate = threading.Event()
    threads = [threading.Thread(target=table.read, kwargs={"max_staleness_ms": 500})]
    threads[0].start()
    assert store.entered.acquire(timeout=LIMIT_S)
    clock.ms += 400
    threads += [threading.Thread(target=table.read, kwargs={"max_staleness_ms": 500}) for _ in range(5)]
    for thread in threads[1:]:
        thread.start()
    await_waiters(table, 5)
    store.gate.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert store.log_listings == 1


def test_an_unreachable_store_fails_fresh_reads_and_leaves_what_is_fresh_enough(cache, tables, store, clock):
    tables.create()
    table = cache.table("events")
    state = table.read(max_staleness_ms=0)
    store.failure = Unavailable("no answer")
    clock.ms += 100
    with pytest.raises(Unavailable, match="no answer"):
        table.read(max_staleness_ms=0)
    assert table.read(max_staleness_ms=100) is state
    store.failure = None
    assert table.read(max_staleness_ms=0) is not state


def test_a_damaged_table_halts_alone_and_is_not_served_from_memory(cache, tables, store, warehouse):
    tables.create("good", partition=())
    tables.create("bad", partition=())
    cache.table("bad").read(max_staleness_ms=0)
    broken = f"{warehouse.table('bad').paths.log_prefix}1767312000000_ab.jsonl"
    store.put(broken, b"not json")
    with pytest.raises(CorruptLog, match="line 0"):
        cache.table("bad").read(max_staleness_ms=0)
    with pytest.raises(CorruptLog):
        cache.table("bad").read(max_staleness_ms=60_000)
    assert cache.table("good").read(max_staleness_ms=0).snapshot.row_count == 0
    store.delete([broken])
    assert cache.table("bad").read(max_staleness_ms=0).snapshot.row_count == 0


def test_unknown_and_bad_names(cache):
    with pytest.raises(NotFound, match="icedb table list"):
        cache.table("nope").read(max_staleness_ms=0)
    with pytest.raises(InvalidRequest, match="a-z"):
        cache.table("../x")


def test_only_so_many_tables_stay_in_memory(cache):
    first = cache.table("a")
    assert cache.table("a") is first
    for name in "bcd":
        cache.table(name)
    assert cache.table("a") is not first


def test_a_new_log_grace_period_sets_up_a_new_reader(cache, tables, store, clock, warehouse):
    config = tables.create()
    table = cache.table("events")
    reader = table.read_source().reader
    shorter = config.model_copy(update={"log_grace_ms": 60_000})
    store.put(warehouse.table("events").paths.config_key, shorter.model_dump_json().encode())
    assert table.read_source().reader is reader
    clock.ms += 10_001
    assert table.read_source().config.log_grace_ms == 60_000
    assert table.read_source().reader is not reader


def test_a_dropped_table_is_not_found_ten_seconds_later_and_back_after_an_undrop(
    cache, tables, store, clock, warehouse
):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 5)])
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == 5
    drop_table(TableStore(store, warehouse.table("events").paths), clock=clock, request=DropRequest())
    clock.ms += CONFIG_CACHE_TTL_MS + 1
    for max_staleness_ms in (0, 3_600_000):
        with pytest.raises(NotFound, match="`icedb table undrop events` brings it back"):
            cache.table("events").read(max_staleness_ms=max_staleness_ms or 1)
    undrop_table(TableStore(store, warehouse.table("events").paths), clock=clock)
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == 5


def test_a_purged_table_is_not_an_empty_one(cache, tables, store, clock, warehouse):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 5)])
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == 5
    drop_table(TableStore(store, warehouse.table("events").paths), clock=clock, request=DropRequest(is_forced=True))
    purge_table(TableStore(store, warehouse.table("events").paths), clock=clock, owner="janitor")
    with pytest.raises(NotFound):
        cache.table("events").read(max_staleness_ms=0)


def test_t5_a_purged_table_is_not_an_empty_one_to_who_knows_it_as_empty(cache, tables, store, clock, warehouse):
    tables.create()
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == 0
    tables.commit(files=[("d=2026-01-02", 5)])
    drop_table(TableStore(store, warehouse.table("events").paths), clock=clock, request=DropRequest(is_forced=True))
    purge_table(TableStore(store, warehouse.table("events").paths), clock=clock, owner="janitor")
    with pytest.raises(NotFound):
        cache.table("events").read(max_staleness_ms=0)


@pytest.mark.parametrize("has_seal", [True, False])
def test_t5_a_read_that_sleeps_before_its_listing_does_not_serve_what_a_purge_left(
    cache, tables, store, clock, warehouse, has_seal
):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 5)])
    paths = warehouse.table("events").paths
    cache.table("events").read_source()
    if has_seal:
        seal(store, paths.log_key(time_ms=clock.now_ms(), commit_id="0" * 32, is_merged=False))
    drop_table(TableStore(store, paths), clock=clock, request=DropRequest(is_forced=True))
    purge_table(TableStore(store, paths), clock=clock, owner="janitor")
    with pytest.raises(NotFound):
        cache.table("events").read(max_staleness_ms=0)


def test_folds_of_the_past_keep_no_log_file_in_memory_that_was_replaced(cache, tables, store):
    tables.create()
    key, _ = tables.commit(files=[("d=2026-01-02", 5)])
    state = cache.table("events").read(max_staleness_ms=0)
    assert state.at(state.snapshot.last_commit_ms).row_count == 5
    known = [cache.table("events").read(max_staleness_ms=0).past._known]
    stored = store.get(key)
    stripped = replace(decode_log_file(key, stored.body), horizon_ms=1)
    store.put_if_match(key, encode_log_file(stripped), etag=stored.info.etag)
    known.append(cache.table("events").read(max_staleness_ms=0).past._known)
    assert state.at(state.snapshot.last_commit_ms).row_count == 5
    assert list(map(len, known)) == [1, 0]


@pytest.mark.parametrize("had_rows", [True, False])
def test_t4_a_table_created_in_the_place_of_a_purged_one_is_told_from_it_at_once(
    cache, tables, store, clock, warehouse, had_rows
):
    config = tables.create()
    if had_rows:
        tables.commit(files=[("d=2026-01-02", 5)])
    assert cache.table("events").read(max_staleness_ms=0).config.partition[0].name == "d"
    drop_table(TableStore(store, warehouse.table("events").paths), clock=clock, request=DropRequest(is_forced=True))
    purge_table(TableStore(store, warehouse.table("events").paths), clock=clock, owner="janitor")
    clock.ms += config.log_grace_ms
    tables.create(partition=("country",))
    tables.commit(files=[("country=DE", 7)])
    state = cache.table("events").read(max_staleness_ms=0)
    assert (state.config.partition[0].name, state.snapshot.row_count) == ("country", 7)


class BusyLock:
    """A lock that others hold: each wait for it ends in vain after something has happened."""

    def __init__(self):
        self.meanwhile = []

    def acquire(self, timeout=-1):
        if self.meanwhile:
            self.meanwhile.pop(0)()
            return False
        return True

    def release(self):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass


def test_the_limit_of_a_wait_is_one_for_each_read(warehouse, tables, clock):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 5)])
    with ThreadPoolExecutor(1) as pool:
        table = CachedTable(
            warehouse.table("events"),
            clock=clock,
            wait_ms=1000,
            on_refresh=lambda _: None,
            fetch_pool=pool,
            new_lock=BusyLock,
        )
        lock, others = table._reading, []

        def read_of_another():
            lock.meanwhile, kept = [], lock.meanwhile
            others.append(table.read(max_staleness_ms=0))
            lock.meanwhile = kept

        def end_of_an_earlier_read():
            table._ended = (0, others[0])

        # One that will do has ended while this one waited for the lock.
        lock.meanwhile = [read_of_another]
        assert table.read(max_staleness_ms=0) is others[0]
        # One that began too early has: the next may take as long again.
        lock.meanwhile = [end_of_an_earlier_read, read_of_another]
        assert table.read(max_staleness_ms=0) is others[1]
        lock.meanwhile = [lambda: None]
        with pytest.raises(Unavailable, match="within 1000 ms"):
            table.read(max_staleness_ms=0)
        lock.meanwhile = [end_of_an_earlier_read, lambda: None]
        with pytest.raises(Unavailable, match="within 1000 ms"):
            table.read(max_staleness_ms=0)


@pytest.mark.parametrize("log_count", [1, 50, 1001])
def test_a_cold_open_costs_a_listing_and_a_read_of_each_log_file(cache, tables, store, monkeypatch, log_count):
    tables.create()
    for _ in range(log_count):
        tables.commit(files=[("d=2026-01-02", 1)])
    asked = []
    for name in ("get", "get_range", "head", "list_page"):
        method = getattr(store, name)
        monkeypatch.setattr(store, name, lambda *a, _m=method, _n=name, **k: (asked.append(_n), _m(*a, **k))[1])
    assert cache.table("events").read(max_staleness_ms=0).snapshot.row_count == log_count
    pages = -(-log_count // 1000)
    # The configuration is one more read; a listing of several pages is looked at again (R1).
    assert Counter(asked) == {"get": log_count + 1, "list_page": pages * (1 if pages == 1 else 2)}
    asked.clear()
    tables.commit(files=[("d=2026-01-02", 1)])
    cache.table("events").read(max_staleness_ms=0)
    pages = -(-(log_count + 1) // 1000)
    assert Counter(asked) == {"get": 1, "list_page": pages * (1 if pages == 1 else 2)}


def test_who_looks_at_all_tables_pushes_out_none_that_somebody_asks_for(store, tables, warehouse, clock):
    names = [f"t{number}" for number in range(5)]
    for name in names:
        tables.create(name)
    kept = TableCache(warehouse, clock=clock, max_tables=2, wait_ms=1000, on_refresh=lambda _: None)
    first, second = kept.table("t0"), kept.table("t1")
    for _ in range(2):
        borrowed = [kept.borrow(name) for name in names]
        assert [borrowed[0], borrowed[1]] == [first, second]
        assert len(borrowed[4].read(max_staleness_ms=0).view.files) == 0
    assert kept.borrow("t4") is not kept.borrow("t4")
    kept.borrow("t0")  # no use
    kept.table("t1")
    kept.table("t2")  # pushes the one out that was not used
    assert kept.table("t1") is second
    assert kept.table("t0") is not first
