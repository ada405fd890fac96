"""The share guard of the orphan sweep (J5): what saves a table whose log was lost."""

import pytest
from icedb_log.clean.orphans import OrphanPolicy
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.log_views import data
from icedb_sim.tables.small_table import SmallTable

GUARDED = OrphanPolicy()
FORCED = OrphanPolicy(is_forced=True)


def put_orphan(table, name, size_bytes):
    table.store.put(data(name), b"x" * size_bytes)


def make_table(orphan_share):
    """A live file and an orphan that is such a part of all bytes, both old."""
    table = SmallTable()
    table.append(*range(100))
    (live,) = table.snapshot().live
    size_bytes = len(table.store.get(live.path).body)
    put_orphan(table, "orphan", int(size_bytes * orphan_share / (1 - orphan_share)))
    table.clock.advance(table.config.orphan_age_ms)
    return table


def lose_log(table):
    table.store.inner.delete(table.keys(table.paths.log_prefix))


def guards(result):
    return {each.guard for each in result.waiting}


def objects(table):
    return table.keys(table.paths.data_prefix)


@pytest.mark.parametrize(("share", "goes"), [(0.2, True), (0.3, False)])
def test_more_than_a_quarter_of_the_bytes_is_not_deleted(share, goes):
    table = make_table(share)
    result = table.sweep(policy=GUARDED)
    assert (data("orphan") in result.deleted) is goes
    assert (result.held.count, result.held.size_bytes > 0) == ((0, False) if goes else (1, True))
    assert abs(result.share - share) < 0.01
    assert result.max_share == 0.25


def test_the_share_may_be_set():
    assert make_table(0.3).sweep(policy=OrphanPolicy(max_share=0.5)).deleted
    assert not make_table(0.2).sweep(policy=OrphanPolicy(max_share=0.1)).deleted
    assert not make_table(0.2).sweep(policy=OrphanPolicy(max_share=0)).deleted


def test_a_table_whose_log_was_lost_loses_no_data_file_however_often_it_is_swept():
    table = SmallTable()
    for number in range(4):
        table.append(*range(10 * number, 10 * number + 10))
    table.merge()
    lose_log(table)
    before = objects(table)
    for _ in range(12):
        table.clock.advance(table.config.orphan_age_ms // 3)
        result = table.sweep(policy=GUARDED)
        assert (result.deleted, objects(table)) == ((), before)
    assert (result.share, result.held.count) == (1.0, len(before))
    assert guards(result) == {"share"}


def test_what_others_put_below_the_table_does_not_make_a_lost_log_look_small():
    table = SmallTable()
    table.append(*range(10))
    lose_log(table)
    before = objects(table)
    table.store.put(f"{table.paths.data_prefix}export.csv", b"x" * 100_000)
    table.clock.advance(table.config.orphan_age_ms)
    result = table.sweep(policy=GUARDED)
    assert (result.deleted, result.held.count, result.share) == ((), len(before), 1.0)


def test_while_most_of_the_table_is_young_and_unnamed_nothing_goes_and_nothing_is_held():
    """A log that is lost soon after most was written; a rewrite of everything looks the same."""
    table = make_table(0.1)
    put_orphan(table, "output", 100_000)
    result = table.sweep(policy=GUARDED)
    assert (result.deleted, result.held.count, guards(result)) == ((), 0, {"share", "age"})
    table.store.inner.delete([data("output")])  # or it is committed
    assert table.sweep(policy=GUARDED).deleted == (data("orphan"),)


def test_all_orphans_of_a_new_table_wait_for_a_person_who_forces_them():
    table = SmallTable()
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    (orphan,) = objects(table)
    table.clock.advance(table.config.orphan_age_ms)
    assert table.sweep(policy=GUARDED).held.count == 1
    assert table.sweep(policy=FORCED).deleted == (orphan,)


def test_force_overrules_the_share_and_nothing_else():
    table = make_table(0.5)
    put_orphan(table, "young", 1)
    assert table.sweep(policy=FORCED).deleted == (data("orphan"),)
    assert data("young") in objects(table)


def test_orphans_without_any_bytes_are_all_of_a_table_without_any():
    table = SmallTable()
    put_orphan(table, "empty", 0)
    table.clock.advance(table.config.orphan_age_ms)
    assert (table.sweep(policy=GUARDED).held.count, table.sweep(policy=GUARDED).share) == (1, 1.0)


def test_one_sweep_takes_a_bounded_number_and_the_next_ones_the_others(monkeypatch):
    monkeypatch.setattr("icedb_log.clean.table_walk.MAX_CANDIDATES", 3)
    monkeypatch.setattr("icedb_log.clean.table_walk.MAX_YOUNG", 2)
    table = SmallTable()
    for number in range(8):
        put_orphan(table, f"{number}", 1)
        table.clock.advance(1)
    result = table.sweep()
    assert (result.walk.young_tally.count, len(result.waiting)) == (8, 2)
    table.clock.advance(table.config.orphan_age_ms)
    gone = []
    for _ in range(3):
        result = table.sweep()
        assert result.walk.old_tally.count == 8 - len(gone)
        gone += result.deleted
    assert gone == [data(f"{number}") for number in range(8)]
    assert not result.walk.has_more
