"""What holds dead objects, read from the store and relied on: J9, and the order of reading."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.clean.holds import read_holds
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog
from icedb_log.holds.tags import create_tag
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable

DAY_MS = 24 * 60 * 60 * 1000


def dead_flush():
    """Return a table of which a flush died behind its commit, which was merged away."""
    table = SmallTable()
    table.append(1)
    table.stage([{"id": 2, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.merge(full=True)
    return table


def intent(table, role="ingest"):
    return orjson.loads(table.store.get(table.paths.fence_key(role)).body)["commit"]


# -- commits under way


def test_j9_a_commit_that_its_fence_still_names_stays_until_no_commit_may_take_so_long():
    table = dead_flush()
    key = intent(table)
    written_ms = table.store.head(table.paths.fence_key("ingest")).modified_ms
    until_ms = written_ms + table.config.orphan_age_ms // 2
    table.clock.advance(table.config.data_grace_ms)
    result = table.vacuum()
    (held,) = [waiting for waiting in result.waiting if waiting.path == key]
    assert (held.guard, held.until_ms, held.held_by.split("/")[0]) == ("commit", until_ms, "ingest flush")
    assert key not in result.deleted_logs
    table.clock.advance(until_ms - table.clock.now_ms())
    assert key in table.vacuum().deleted_logs


def test_j9_a_fence_that_went_on_holds_nothing():
    table = dead_flush()
    key = intent(table)
    table.append(3)
    assert intent(table) is None
    table.clock.advance(table.config.data_grace_ms)
    assert key in table.vacuum().deleted_logs


def test_j9_a_slow_owner_reads_its_own_commit_back():
    """Its answer is lost; it is merged, gets old and is vacuumed before it looks. Nobody could say what became of it."""
    table = SmallTable()
    table.append(1)
    rival = SmallTable()
    rival.store, rival.paths, rival.clock = table.store, table.paths, table.clock

    def merge_and_clean():
        rival.merge(full=True)
        table.clock.advance(table.config.data_grace_ms)
        rival.vacuum()

    table.stage([{"id": 2, "p": "a"}])
    table.store.script = [
        Fault("put_if_absent", Effect.LOSE_ANSWER, "/_log/"),
        Fault("get", None, "/_log/", before=merge_and_clean),
    ]
    assert table.flush().committed_key is not None
    assert table.ids() == [1, 2]


def test_j9_both_fences_count_and_a_damaged_one_halts():
    table = dead_flush()
    fence = table.paths.fence_key("merge")
    state = orjson.loads(table.store.get(fence).body)
    table.store.put(fence, orjson.dumps({**state, "commit": f"{table.paths.log_prefix}x"}))

    def read(now_ms):
        view = replace(table.view(), store_now_ms=now_ms)
        holds = read_holds(table, view=view, config=table.config)
        return [hold.held_by.split()[0] for hold in holds.of("commit")]

    assert read(table.clock.now_ms()) == ["ingest", "merge"]
    assert read(table.clock.now_ms() + table.config.orphan_age_ms) == []
    table.store.put(fence, b"{}")
    with pytest.raises(CorruptLog, match="not a fence"):
        table.vacuum()


# -- the order


def test_j4_j9_what_holds_is_read_after_the_log():
    """Whatever comes while the janitor sleeps between the two reads is either seen or younger than the plan's deaths."""
    table = SmallTable()
    table.append(1)
    table.store.calls.clear()
    table.vacuum()
    prefixes = ("/_log/", "/holds/", "/fence/ingest", "/fence/merge")
    reads = [p for call in table.store.calls for p in prefixes if p in call.key and call.method in ("list_page", "get")]
    assert list(dict.fromkeys(reads)) == list(prefixes)


def test_a_dry_run_names_each_guard_with_its_end_and_holder():
    table = SmallTable()
    table.append(1)
    table.append(2)
    at_ms = table.clock.now_ms() - 1
    create_tag(Table.open(table, clock=table.clock), "q3", ttl_ms=2 * DAY_MS)
    lease_id = put_lease(table, at_ms=at_ms, ttl_ms=DAY_MS, clock=table.clock)
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms)
    before = table.keys()
    waiting = table.vacuum(dry_run=True).waiting
    assert table.keys() == before
    assert {(w.guard, w.held_by) for w in waiting if "/_log/" in w.path} == {("lease", lease_id)}
    assert {(w.guard, w.held_by) for w in waiting if "/_data/" in w.path} == {("tag", "q3")}
    assert all(w.until_ms is not None for w in waiting)


def test_read_holds_has_everything():
    table = SmallTable()
    table.append(1)
    create_tag(Table.open(table, clock=table.clock), "q3")
    put_lease(table, at_ms=5, ttl_ms=DAY_MS, clock=table.clock)
    view = table.view()
    holds = read_holds(table, view=view, config=table.config)
    assert [hold.kind for hold in holds.found] == ["lease", "tag"]
