"""Erasures under fire: a fault or another actor at any call, and random histories. No byte of a row may stay."""

import contextlib
import random

import pytest
from icedb_log.errors import IceDBError
from icedb_log.holds.erasures import list_open_ids
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.erasure_steps import (
    StatsChanger,
    StatsWriter,
    advance,
    append_users,
    ask,
    clean,
    find_traces,
    finish,
    live_users,
    put_orphan,
)
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call
from icedb_sim.tables.table_steps import rival_of

EFFECTS = [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.DROP, Effect.DELAY, Effect.TRY_TWICE]


def make_asked():
    table = SmallTable(start_ms=1_700_000_000_000)
    append_users(table, "ann", "victim")
    append_users(table, "bob", "victim", "victim", p="b")
    before = {marker.path for marker in table.snapshot().live}
    table.delete("u = 'ann'")
    table.victim_files = sorted(before | {m.path for m in table.snapshot().live if "p=a" in m.path})
    table.erasure_id = ask(table)
    return table


def go_on(table):
    advance(table, table.erasure_id)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_fault_at_any_call_of_the_deletion_loses_nothing(effect):
    for table in try_each_call(make_asked, go_on, effect):
        table.store.land_delayed()
        with contextlib.suppress(IceDBError):  # e.g. a delayed commit that landed only now took the fence
            advance(table, table.erasure_id)
        done = finish(table, table.erasure_id)
        assert (done.state, done.row_count, done.is_row_count_exact) == ("complete", 3, True)
        assert set(table.victim_files) <= set(done.dead)
        assert find_traces(table, b"victim") == []
        assert live_users(table) == ["bob"]
        assert list_open_ids(table) == ()


def make_due():
    table = make_asked()
    advance(table, table.erasure_id)
    table.clock.advance(61_000)
    clean(table)
    return table


@pytest.mark.parametrize("effect", [Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.DELAY])
def test_a_fault_at_any_call_of_the_last_look_loses_nothing(effect):
    for table in try_each_call(make_due, go_on, effect):
        table.store.land_delayed()
        done = finish(table, table.erasure_id)
        assert (done.state, done.row_count) == ("complete", 3)
        assert find_traces(table, b"victim") == []
        assert list_open_ids(table) == ()


def meet(table):
    advance_as_other(table)


def meet_and_upload(table):
    put_orphan(table, "victim")
    advance_as_other(table)


@pytest.mark.parametrize(("make", "act"), [(make_asked, meet), (make_due, meet), (make_due, meet_and_upload)])
def test_two_workers_at_once_come_to_one_end(make, act):
    for table, _, number in at_each_call(make, go_on, act):
        done = finish(table, table.erasure_id)
        assert (done.state, done.row_count, done.is_row_count_exact) == ("complete", 3, True), number
        assert set(table.victim_files) <= set(done.dead)
        assert not set(done.objects) & set(table.keys(table.paths.data_prefix)), number
        table.clock.advance(200_000)
        table.sweep()  # what was uploaded after the last look
        assert find_traces(table, b"victim") == []


def test_what_another_worker_finds_after_a_listing_is_not_gone_by_it():
    table = make_due()
    # The log is read before the data files are listed, and once more after that (E5).
    late = Fault("list_page", None, key="/_log/", before=lambda: meet_and_upload(table))
    table.store.script += [Fault("list_page", None, key="/_log/"), late]
    advance(table, table.erasure_id)
    finish(table, table.erasure_id)
    assert find_traces(table, b"victim") == []


@pytest.mark.parametrize("act", ["merge", "clean", "orphan", "append"])
def test_others_may_do_anything_at_any_call(act):
    acts = {
        "merge": lambda table: table.merge(full=True),
        "clean": lambda table: (table.clock.advance(61_000), clean(table)),
        "orphan": lambda table: put_orphan(table, "victim"),
        "append": lambda table: append_users(table, "zoe"),
    }

    def make():
        table = make_asked()
        append_users(table, "yan", p="b")
        return table

    for table, _, number in at_each_call(make, go_on, acts[act]):
        done = finish(table, table.erasure_id)
        assert done.state == "complete", number
        assert find_traces(table, b"victim") == []
        assert live_users(table) == ["bob", "yan", *(["zoe"] if act == "append" else [])]


def advance_as_other(table):
    rival = rival_of(table)
    with contextlib.suppress(IceDBError):
        advance(rival, table.erasure_id)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_leave_no_trace(seed):
    """Appends, merges, deletions, crashes, leases and cleanings in any order before and while it runs."""
    dice = random.Random(seed)
    table = SmallTable(start_ms=1_700_000_000_000, merge_fan_in=2)
    append_users(table, "ann", "victim")

    def crash(act):
        table.store.fault_at = {len(table.store.calls) + dice.randrange(30): dice.choice(EFFECTS)}
        with contextlib.suppress(IceDBError, Crash):
            act()
        table.store.fault_at = {}
        if dice.random() < 0.5:
            table.store.land_delayed()

    def add(user):
        table.stage([{"id": dice.randrange(9), "p": dice.choice("ab"), "u": user}])
        crash(lambda: table.flush(writer=StatsWriter(table.store, table.clock)))

    def merge():
        crash(lambda: table.merge(full=dice.random() < 0.3, merger=StatsChanger(table.store, table.clock)))

    def lease():
        put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=dice.randrange(60_000), clock=table.clock)

    def vacuum():
        crash(lambda: clean(table))

    def pause():
        table.clock.advance(dice.randrange(30_000))

    before = [lambda: add("victim"), lambda: add("bob"), merge, vacuum, lease, pause]
    for _ in range(14):
        dice.choice(before)()
    erasure_id = ask(table)
    table.clock.advance(2_000)
    after = [lambda: add("bob"), merge, vacuum, lease, pause, lambda: crash(lambda: advance(table, erasure_id))]
    for _ in range(14):
        dice.choice(after)()
    table.store.land_delayed()
    done = finish(table, erasure_id, max_rounds=80)
    assert done.state == "complete"
    assert find_traces(table, b"victim") == []
    assert "victim" not in live_users(table)
