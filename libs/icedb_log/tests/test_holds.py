"""What holds dead objects, read from the store and relied on: J8, J9, and the order of reading."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.clean.holds import read_holds
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, CorruptLog
from icedb_log.holds.pins import create_pin
from icedb_log.keys import parse_log_key
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
    table = SmallTable(keep_versions=1)
    table.append(1)
    table.append(2)
    at_ms = table.clock.now_ms() - 1
    create_pin(Table.open(table, clock=table.clock), "q3", ttl_ms=2 * DAY_MS)
    lease_id = put_lease(table, at_ms=at_ms, ttl_ms=DAY_MS, clock=table.clock)
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms)
    before = table.keys()
    waiting = table.vacuum(dry_run=True).waiting
    assert table.keys() == before
    assert {(w.guard, w.held_by) for w in waiting if "/_log/" in w.path} == {("lease", lease_id)}
    assert {(w.guard, w.held_by) for w in waiting if "/_data/" in w.path} == {("pin", "q3")}
    assert all(w.until_ms is not None for w in waiting)


def test_read_holds_has_everything():
    table = SmallTable(keep_versions=1)
    table.append(1)
    create_pin(Table.open(table, clock=table.clock), "q3")
    put_lease(table, at_ms=5, ttl_ms=DAY_MS, clock=table.clock)
    view = table.view()
    holds = read_holds(table, view=view, config=table.config)
    assert [hold.kind for hold in holds.found] == ["lease", "pin", "versions"]
    assert holds.found[-1].since_ms == parse_log_key(view.files[-1].key).time_ms


# -- versions

STEPS = st.lists(
    st.sampled_from(["append", "append", "merge", "full", "drop", "vacuum", "day"]), min_size=4, max_size=20
)


@settings(max_examples=60)
@given(STEPS, st.integers(1, 5))
def test_j8_the_newest_states_are_answered_whatever_was_vacuumed(history, count):
    table = SmallTable(keep_versions=count)
    states = {}
    number = 0
    for step in history:
        if step == "append":
            number += 1
            table.append(number)
        elif step in ("merge", "full"):
            table.merge(full=step == "full")
        elif step == "drop" and table.ids():
            table.drop("p=a")
        elif step == "vacuum":
            table.vacuum()
        elif step == "day":
            table.clock.advance(DAY_MS)
        newest = [parse_log_key(key).time_ms for key in table.keys(table.paths.log_prefix)]
        if newest and max(newest) not in states:
            states[max(newest)] = table.ids()
        table.vacuum()
        for time_ms in sorted(states)[-count:]:
            assert table.ids(as_of_ms=time_ms) == states[time_ms]


def test_j8_older_states_go_and_what_was_kept_for_them():
    table = SmallTable(keep_versions=2)
    for number in range(4):
        table.append(number)
        table.merge(full=True)
    table.clock.advance(DAY_MS)
    table.vacuum()
    table.clock.advance(DAY_MS)
    waiting = table.vacuum().waiting
    assert {(w.guard, w.held_by, w.until_ms) for w in waiting} == {("versions", "the newest 2", None)}
    assert len(table.keys(table.paths.data_prefix)) == 3  # the last merge's output and its two inputs
    assert len(table.keys(table.paths.log_prefix)) == 3
    with pytest.raises(BelowHorizon):
        table.ids(as_of_ms=table.snapshot().horizon_ms - 1)
