"""What a rebuild takes, leaves out, and leaves to a person: B1, B2, B6."""

import pytest
from icedb_log.clean.pins import create_pin
from icedb_log.errors import InvalidRequest, SchemaConflict
from icedb_log.log.fence import ROLES
from icedb_log.repair.rebuild_record import read_held
from icedb_log.table.table import Table
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.erasure_steps import advance, ask, live_users
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.row_files import RowFileChanger
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView
from icedb_sim.tables.table_steps import damage, left_out, lose_log, make_merged_table, noted


def test_a_deletion_that_nobody_can_tell_of_asks_for_a_decision():
    for decision, ids in (("keep-inputs", [1, 2, 3]), ("keep-outputs", [1, 3]), ("likely", [1, 3])):
        table = SmallTable(has_footers=True)
        table.append(1, 2, 3, p="a")
        table.delete("id = 2")
        lose_log(table)
        with pytest.raises(InvalidRequest, match="--undecided"):
            table.rebuild()
        assert table.keys(table.paths.log_prefix) == []
        result = table.rebuild(decision=decision)
        (choice,) = result.report.choices
        assert (choice.what, choice.kind, choice.input_rows, choice.output_rows) == ("commit", "delete", 3, 2)
        assert table.ids() == ids
        if decision == "keep-inputs":
            assert read_held(table) == set(choice.outputs)


def test_a_deletion_that_is_proven_needs_none():
    table = SmallTable(has_footers=True)
    table.append(1, 2, 3, p="a")
    table.delete("id = 2")
    table.append(4, p="a")
    table.merge(full=True)
    lose_log(table)
    assert table.rebuild().report.choices == ()
    assert table.ids() == [1, 3, 4]


def test_of_two_that_replaced_the_same_files_the_last_counts():
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_m_")]
    with pytest.raises(Crash):
        table.merge(full=True)
    table.clock.advance(1)
    table.delete("id = 2")
    lose_log(table)
    result = table.rebuild(decision="likely")
    assert table.ids() == [1, 3]
    (entry,) = left_out(result).values()
    assert (entry.reason, entry.is_held) == ("not committed: a later commit replaced the same files", False)
    assert entry.key not in read_held(table)


def test_a_merge_that_was_cut_off_counts_for_nothing():
    table = SmallTable(has_footers=True)
    for p in "ab":
        table.append(1, 2, p=p)
        table.append(3, p=p)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_m_")]
    with pytest.raises(Crash):
        table.merge(full=True)
    outputs = [key for key in table.keys(table.paths.data_prefix) if key not in named(table)]
    body = table.store.get(outputs[0]).body.split(b"\n")
    table.store.put(outputs[0], b"\n".join(body[1:]))  # the first of two files that the writer had begun
    lose_log(table)
    result = table.rebuild(decision="likely")
    assert table.ids() == [1, 1, 2, 2, 3, 3]
    assert set(left_out(result)) == set(outputs)
    assert result.report.choices == ()


def named(table):
    return {marker.path for file in table.view().files for marker in file.log.markers}


def test_a_pinned_file_that_was_replaced_long_ago_does_not_come_twice():
    """What replaced it was replaced itself and vacuumed: no footer names it any more."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    create_pin(Table.open(table, clock=table.clock, reader=table.reader()), "keep")
    table.append(3, p="a")
    table.merge(full=True)
    for number in (4, 5):
        table.append(number, p="a")
        table.merge(full=True)
        table.clock.advance(70_000)
        table.vacuum()
    table.clock.advance(70_000)
    table.vacuum()
    assert table.ids() == [1, 2, 3, 4, 5]
    lose_log(table)
    result = table.rebuild(decision="likely")
    assert [(choice.what, choice.decided) for choice in result.report.choices] == [("leftover", "outputs")]
    assert table.ids() == [1, 2, 3, 4, 5]
    assert read_held(table) == set(result.report.choices[0].inputs)


def test_what_waits_for_a_person_is_not_swept():
    table = make_merged_table(SmallTable)
    stray = f"{table.paths.data_prefix}p=a/stray.parquet"
    table.store.put(stray, b'{"id": 99, "p": "a"}')
    lose_log(table)
    result = table.rebuild()
    assert left_out(result)[stray].is_held
    assert stray in table.rebuild(is_dry_run=True).report.model_dump_json()
    table.clock.advance(500_000)
    assert table.sweep_twice().deleted == ()
    table.store.delete(table.keys(table.paths.rebuilds_prefix))
    assert table.sweep_twice().deleted == (stray,)


@pytest.mark.parametrize("has_fences", [True, False])
def test_an_orphan_sweep_that_had_seen_the_files_does_not_delete_them(has_fences):
    """Nor where no fence is left that tells of lost commits (F5), which alone would keep a sweep from it."""
    table = make_merged_table(SmallTable)
    lose_log(table)
    if not has_fences:
        table.store.delete([table.paths.fence_key(role) for role in ROLES])
    table.clock.advance(table.config.orphan_age_ms)
    table.sweep()
    table.clock.advance(table.config.data_grace_ms)
    # The sweep has read its record and the log; the rebuild ends; the sweep goes on.
    rival = SmallTable(store=table.store.inner, name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock
    table.store.script = [Fault("put_if_match", None, "orphans.json", before=rival.rebuild)]
    assert table.sweep().deleted == ()
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_files_of_others_are_left_out_and_named():
    table = make_merged_table(SmallTable)
    live = table.snapshot().live
    body = table.store.get(live[0].path).body
    strange = {
        f"{table.paths.data_prefix}p=a/0001.parquet": (b'{"id": 90, "p": "a"}', "not written by IceDB"),
        f"{table.paths.data_prefix}p=b/0002.parquet": (body, "partition 'p=a'"),
        f"{table.paths.data_prefix}p=a/0003.parquet": (body.replace(b'"icedb.table":"t"', b'"icedb.table":"u"'), "'u'"),
        f"{table.paths.data_prefix}p=a/0004.parquet": (b"PAR1", "damaged"),
    }
    for key, (content, _) in strange.items():
        table.store.put(key, content)
    lose_log(table)
    result = table.rebuild()
    assert set(left_out(result)) == set(strange)
    for key, (_, reason) in strange.items():
        assert reason in left_out(result)[key].reason
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert table.rebuild(is_forced=True, takes_foreign=True).has_committed
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 90]


def test_a_log_without_any_data_file_is_made_by_force_alone():
    table = SmallTable(has_footers=True)
    table.append(1)
    (path,) = table.keys(table.paths.data_prefix)
    table.store.put(path, b"of nobody")
    lose_log(table)
    with pytest.raises(InvalidRequest, match="the new log would be empty"):
        table.rebuild()
    assert table.rebuild(is_forced=True).has_committed
    assert table.ids() == []


def test_imported_files_are_live_if_a_record_says_so():
    table = make_merged_table(ImportTable)
    table.put_source("one", 10, 11)
    table.run_import()
    before = table.ids()
    lose_log(table)
    table.rebuild()
    assert table.ids() == before
    assert table.run_import().imported_before_count == 1


def test_an_import_that_was_cut_off_is_settled_by_the_next_one():
    table = make_merged_table(ImportTable)
    table.put_source("one", 10, 11)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, "_log/")]
    with pytest.raises(Crash):
        table.run_import()
    lose_log(table)
    result = table.rebuild()
    assert len(noted(result, "pending_imports")) == 1
    table.run_import()
    assert (table.ids().count(10), table.states()) == (1, ["committed"])


def test_columns_come_from_what_was_committed_and_from_the_configuration():
    table = SmallTable(has_footers=True, evolution="widen", declared={"note": "VARCHAR"})
    table.stage([{"id": 1, "p": "a", "x": 1}])
    table.flush()
    table.stage([{"id": 2, "p": "a", "x": 1.5}])
    table.flush()
    before = table.snapshot()
    lose_log(table)
    table.rebuild()
    after = table.snapshot()
    assert (dict(after.schema), dict(after.logged_schema)) == (dict(before.schema), dict(before.logged_schema))


def test_types_that_contradict_each_other_stop_the_rebuild():
    table = make_merged_table(SmallTable)
    lose_log(table)
    key = next(key for key in table.keys(table.paths.data_prefix) if table.store.get(key).body.startswith(b'{"id":7'))
    table.store.put(key, table.store.get(key).body.replace(b'"id":7', b'"id":"7"'))
    with pytest.raises(SchemaConflict, match=r"column 'id' is BIGINT in .* and VARCHAR in .*parquet"):
        table.rebuild(decision="keep-outputs")  # a file that was written again is younger than the fence
    assert table.keys(table.paths.log_prefix) == []


def test_a_file_that_the_log_names_and_that_is_gone_is_dropped():
    table = make_merged_table(SmallTable)
    gone = table.snapshot().live[-1]
    table.store.delete([gone.path])
    result = table.rebuild(is_forced=True)
    assert noted(result, "gone") == [gone.path]
    assert table.ids() == [1, 2, 3, 4, 7]


@pytest.mark.parametrize("is_salvaged", [False, True])
def test_a_live_file_that_cannot_be_read_is_named_and_keeps_what_the_log_says(is_salvaged):
    table = make_merged_table(SmallTable)
    damaged = table.snapshot().live[-1]
    table.store.put(damaged.path, b"{")
    if is_salvaged:
        key = next(key for key, body in table.log_objects() if damaged.path.encode() in body)
        table.store.put(key, table.store.get(key).body + b"\n[")
    result = table.rebuild(is_forced=True, decision="likely")
    assert noted(result, "unreadable") == [damaged.path]
    (after,) = (marker for marker in table.snapshot().live if marker.path == damaged.path)
    assert (after.size_bytes, after.row_count) == (damaged.size_bytes, damaged.row_count)


def fed_view(table):
    view = SmallView(table)
    feeder = RowFileFeeder(view.store, view.clock, has_footers=True)
    table.append(1, p="a")
    view.feed(feeder=feeder)
    table.append(2, p="a")
    view.feed(feeder=feeder)
    return view


def as_table(view):
    table = SmallTable(store=view.store, name="rival", has_footers=True)
    table.paths, table.clock = view.paths, view.clock
    return table


def test_a_view_of_which_nobody_knows_what_it_has_taken_asks():
    view = fed_view(SmallTable(has_footers=True))
    table = as_table(view)
    lose_log(table)
    with pytest.raises(InvalidRequest, match="--assume-fed"):
        table.rebuild(decision="likely")
    table.rebuild(decision="likely", assumes_fed=True)
    assert view.feed_all() == 0
    view.table.append(3, p="a")
    assert view.feed_all() == 1
    assert view.ids() == [1, 2, 3]


def test_a_view_whose_newest_state_is_left_needs_no_answer():
    view = fed_view(SmallTable(has_footers=True))
    table = as_table(view)
    damage(table, 0)
    table.rebuild(decision="likely")
    assert view.feed_all() == 0
    assert view.ids() == [1, 2]


def test_a_view_whose_newest_state_is_damaged_asks():
    view = fed_view(SmallTable(has_footers=True))
    table = as_table(view)
    damage(table, -1)
    with pytest.raises(InvalidRequest, match="--assume-fed"):
        table.rebuild(decision="likely")
    table.rebuild(decision="likely", assumes_fed=True)
    assert view.feed_all() == 0  # the state that is left is older, and does not count any more
    assert view.ids() == [1, 2]


def test_a_plan_other_than_the_one_agreed_to_is_refused():
    table = make_merged_table(SmallTable)
    lose_log(table)
    digest = table.rebuild(is_dry_run=True).report.digest
    table.store.delete(table.keys(table.paths.data_prefix)[-1:])
    with pytest.raises(InvalidRequest, match="has changed"):
        table.rebuild(digest=digest)
    assert table.keys(table.paths.log_prefix) == []


@pytest.mark.parametrize("age_ms", [100_000, 210_000, 310_000, 400_000])
def test_a_merge_that_was_cut_off_and_whose_inputs_are_gone_is_named(age_ms):
    """Another merge replaced them, and its output was merged again: nothing that is left names it."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="a")
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_m_")]
    with pytest.raises(Crash):
        table.merge(full=True)
    table.clock.advance(1)
    orphan = table.keys(table.paths.data_prefix)[-1]
    table.merge(full=True)
    table.append(4, p="a")
    table.merge(full=True)
    table.clock.advance(age_ms)
    table.vacuum()
    lose_log(table)
    result = table.rebuild(decision="likely")
    if age_ms < 400_000:  # two sweeps may not have seen it yet
        (choice,) = result.report.choices
        assert (choice.what, choice.inputs) == ("leftover", (orphan,))
    assert (orphan in noted(result, "old_merges")) == (age_ms == 400_000)


@pytest.mark.parametrize("lost", ["", "_m_"])
def test_what_an_erasure_rewrote_stays_dead_before_its_targets_are_known(lost):
    """Its commit has landed and its record says so; the log is lost before it is written down what has to be gone."""
    table = SmallTable(has_footers=True)
    for p, ids in (("a", (1, 2)), ("b", (1,)), ("c", (3,))):  # no row of b is left, so no output names its file
        table.stage([{"id": number, "p": p, "u": "victim" if number == 1 else "ann"} for number in ids])
        table.flush()
    erasure_id = ask(table)
    changer = RowFileChanger(table.store, table.clock, has_footers=True)
    table.store.script = [Fault("list_page", Effect.CRASH_BEFORE, "_data/")]
    with pytest.raises(Crash):
        advance(table, erasure_id, changer=changer)
    table.store.delete([key for key in table.keys(table.paths.log_prefix) if lost in key])
    table.rebuild()
    assert live_users(table) == ["ann", "ann"]


def test_what_is_committed_after_a_person_has_looked_changes_nothing_of_the_plan():
    """Flushes go on while somebody reads the report; the first one makes the loss less plain, too."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    lose_log(table)
    digest = table.rebuild(is_dry_run=True).report.digest
    table.append(3, p="b")
    assert table.rebuild(digest=digest).has_committed
    assert table.ids() == [1, 2, 3]
