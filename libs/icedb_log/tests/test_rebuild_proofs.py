"""What proves to a rebuild that a commit landed, and what makes one landed commit exclude another (B1, B2)."""

import pytest
from icedb_log.errors import Fenced, InvalidRequest
from icedb_log.model import LogView
from icedb_log.parquet.footer import FileOrigin, Footer
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_plan import RebuildOptions, plan_rebuild
from icedb_log.store.object_store import ObjectInfo
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import damage, left_out, lose_log, make_merged_table, noted


def crash_merge(table):
    """Write the outputs of a merge, and die just before its commit."""
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_m_")]
    with pytest.raises(Crash):
        table.merge(full=True)
    table.clock.advance(1)


def test_a_commit_that_landed_excludes_others_whatever_their_clocks_say():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    now_ms = table.clock.now_ms()
    table.clock.set_wall(now_ms + 5000)
    crash_merge(table)
    table.clock.set_wall(now_ms + 10)
    table.delete("id = 2")
    table.append(4, p="a")
    table.merge(full=True)
    lose_log(table)
    table.rebuild(decision="likely")
    assert table.ids() == [1, 3, 4]


def test_what_a_whole_log_file_says_is_dead_comes_back_by_no_other_way():
    table = SmallTable(has_footers=True)
    table.append(1, p="a")
    table.append(2, p="a")
    table.append(3, p="b")
    crash_merge(table)
    table.drop("p=a")
    damage(table, 2)
    result = table.rebuild(decision="likely")
    assert table.ids() == [3]
    (entry,) = left_out(result).values()
    assert "another end" in entry.reason


def test_the_head_of_a_damaged_log_file_proves_its_commit():
    table = make_merged_table(SmallTable)
    key = table.keys(table.paths.log_prefix)[-1]
    head = table.store.get(key).body.split(b"\n")[:2]
    table.store.put(key, b"\n".join([*head, b"{"]))
    result = table.rebuild()
    assert noted(result, "young_flushes") == []
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_flush_that_was_cut_off_is_known_by_the_one_that_repeated_it():
    table = make_merged_table(SmallTable)
    table.stage([{"id": 8, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(1)
    table.flush()
    lose_log(table)
    with pytest.raises(InvalidRequest, match="--undecided"):
        table.rebuild()
    table.rebuild(decision="likely")
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_files_of_a_flush_that_has_just_begun_are_not_taken():
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.stage([{"id": 8, "p": "a"}])
    rival = SmallTable(store=table.store.inner, name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock
    table.store.script = [Fault("list_page", None, "_data/", before=rival.flush)]
    with pytest.raises(Fenced):
        table.rebuild(decision="likely")
    assert table.ids() == [8]


def test_damaged_log_files_leave_the_log_only_when_the_new_one_stands_there():
    table = make_merged_table(SmallTable)
    key = damage(table, 3)
    table.store.calls.clear()
    new = table.rebuild(decision="likely").report.log_key
    calls = [(call.method, call.key) for call in table.store.calls]
    assert calls.index(("put_if_absent", new)) < calls.index(("delete", key))


def test_no_two_files_are_left_out_for_each_others_sake():
    """Both are pinned, and both were made from files that are gone: the older one may be in the newer one alone."""
    table = SmallTable(has_footers=True)
    footers = {}
    for number in (1, 2):
        key = table.paths.data_key(partition="p=a", file_id=table.clock.new_id())
        gone = table.paths.data_key(partition="p=a", file_id=table.clock.new_id())
        origin = FileOrigin("merge", "t", "p=a", table.clock.new_id(), (gone,))
        footers[key] = Footer(ObjectInfo(key, "e", 10, table.clock.now_ms()), 5, {"id": "BIGINT"}, origin=origin)
        table.clock.advance(number)
    view = LogView("t", (), table.clock.now_ms())
    evidence = RebuildEvidence(table.paths, table.config, view, (), footers, pinned=frozenset(footers))
    older, newer = footers
    assert plan_rebuild(evidence).live == {newer}
    assert plan_rebuild(evidence, RebuildOptions(decision="keep-inputs")).live == {older, newer}
