"""A new log from what is left of a table: B1 to B6, with faults at every store call and two rebuilds at once."""

import pytest
from icedb_log.cleaning.pin_creation import create_pin
from icedb_log.errors import CorruptLog, Fenced, InvalidRequest, SchemaConflict, UnsupportedFormat
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import LogView
from icedb_log.repair.footers import FileOrigin, Footer
from icedb_log.repair.rebuild_evidence import RebuildEvidence, SurvivingLog
from icedb_log.repair.rebuild_plan import plan_rebuild
from icedb_log.repair.rebuild_record import RebuildReport, read_held, read_reports
from icedb_log.storage.object_store import ObjectInfo
from icedb_log.testing.erasure_steps import advance, ask, live_users
from icedb_log.testing.row_feeds import RowFileFeeder
from icedb_log.testing.row_files import RowFileChanger, RowFileWriter
from icedb_log.testing.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_log.testing.small_import import ImportTable
from icedb_log.testing.small_table import SmallTable, try_each_call
from icedb_log.testing.small_view import SmallView


def merged_table(kind=SmallTable, **config):
    """Two partitions, merged; a deletion; one more flush."""
    table = kind(has_footers=True, **config)
    table.append(1, 2, p="a")
    table.append(3, 4, p="a")
    table.append(5, 6, p="b")
    table.merge(full=True)
    table.append(7, p="a")
    return table


def lose_log(table):
    table.store.delete(table.keys(table.paths.log_prefix))


def damage(table, number, body=b"{"):
    key = table.keys(table.paths.log_prefix)[number]
    table.store.put(key, body)
    return key


def noted(result, kind):
    return [name for note in result.report.notes if note.kind == kind for name in note.files]


def left_out(result):
    return {entry.key: entry for entry in result.report.left_out}


def test_a_lost_log_is_made_anew_and_rows_are_the_same():
    table = merged_table()
    before = table.snapshot()
    lose_log(table)
    assert table.ids() == []
    result = table.rebuild()
    after = table.snapshot()
    assert result.has_committed
    assert {m.path: (m.size_bytes, m.row_count) for m in after.live} == {
        m.path: (m.size_bytes, m.row_count) for m in before.live
    }
    assert (after.schema, table.ids()) == (before.schema, [1, 2, 3, 4, 5, 6, 7])
    # What a merge replaced is named as dead, so that the vacuum deletes it by its own rules, and not the orphan sweep.
    assert set(before.tombstoned_ms) == set(after.tombstoned_ms)
    assert next(note for note in result.report.notes if note.kind == "young_flushes").row_count == 3  # 5, 6 and 7


def test_a_log_that_is_whole_is_left_alone_unless_it_is_asked_for():
    table = merged_table()
    log = table.log_objects()
    assert not table.rebuild().has_committed
    assert table.log_objects() == log
    assert table.keys(table.paths.rebuilds_prefix) == []
    assert table.rebuild(is_forced=True).has_committed
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_second_rebuild_finds_nothing_to_do():
    table = merged_table()
    lose_log(table)
    table.rebuild()
    log = table.log_objects()
    second = table.rebuild()
    assert (second.has_committed, second.report.damage) == (False, ())
    assert [body for _, body in log] == [body for key, body in table.log_objects() if (key, body) in log]
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_dry_run_writes_nothing_and_says_the_same():
    table = merged_table()
    lose_log(table)
    before = table.keys()
    table.store.calls.clear()
    report = table.rebuild(is_dry_run=True).report
    assert table.keys() == before
    assert not table.store.keys_of("put", "put_if_absent", "put_if_match", "delete")
    assert table.rebuild().report.digest == report.digest


def test_the_table_lives_on_after_a_rebuild():
    table = merged_table()
    lose_log(table)
    table.rebuild()
    table.append(8, p="b")
    table.merge(full=True)
    table.delete("id = 1")
    table.clock.advance(200_000)
    assert table.vacuum().deleted_data
    table.vacuum()
    assert table.ids() == [2, 3, 4, 5, 6, 7, 8]
    named = {marker.path for marker in table.snapshot().live}
    assert set(table.keys(table.paths.data_prefix)) == named  # what was dead went by the vacuum


def test_time_travel_ends_at_the_rebuild():
    table = merged_table()
    then_ms = table.clock.now_ms()
    table.clock.advance(1000)
    lose_log(table)
    rebuilt_ms = int(table.rebuild().report.log_key.rpartition("/")[2][:13])
    with pytest.raises(InvalidRequest, match=str(rebuilt_ms)):
        table.ids(as_of_ms=then_ms)
    assert table.ids(as_of_ms=rebuilt_ms) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("body", [b"", b"{", b"\x00" * 300, b'{"v":1,"t":1,"sch":1,"f":9}\n{}'])
def test_a_damaged_log_file_is_kept_aside_and_leaves_the_log(body):
    table = merged_table()
    key = damage(table, 3, body)
    with pytest.raises(CorruptLog):
        table.ids()
    result = table.rebuild(decision="likely")
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert key not in table.keys(table.paths.log_prefix)
    (entry,) = result.report.damaged
    assert entry.key == key
    assert table.store.get(entry.copy_key).body == body
    assert [report.state for report, _ in read_reports(table.store, table.paths)] == ["done"]


def test_what_can_be_read_of_a_damaged_log_file_counts():
    """A truncated log file still tells its tombstones, and which batches it made live."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.append(3, p="b")
    table.drop("p=b")  # leaves no trace but in the log
    batch_id = table.stage([{"id": 4, "p": "a"}])
    table.flush()
    removal, append = (file.key for file in table.view().files[-2:])
    body = table.store.get(removal).body
    table.store.put(removal, body + b'\n{"p":')
    table.store.put(append, table.store.get(append).body + b"\n[")
    table.rebuild()
    assert table.ids() == [1, 2, 4]
    table.stage([{"id": 4, "p": "a"}], batch_id=batch_id)
    assert table.flush().duplicate_count == 1
    assert table.ids() == [1, 2, 4]


def test_a_flush_that_a_sound_log_does_not_name_is_not_taken_unasked():
    """It was cut off, and its batch is live by another one; or somebody knows that its log file was lost."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, p="a")
    table.stage([{"id": 3, "p": "a"}])
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.store.script = []
    table.stage([{"id": 4, "p": "a"}])
    table.flush()
    table.store.delete([key for key, body in table.log_objects() if b'"seal"' in body])
    with pytest.raises(InvalidRequest, match="--undecided"):
        table.rebuild(is_forced=True)
    assert not table.rebuild().has_committed
    assert [choice.likely for choice in table.rebuild(is_forced=True, decision="keep-inputs").report.choices] == [
        "outputs"
    ]
    assert table.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("has_looked", [False, True])
def test_a_flush_that_has_announced_its_commit_is_cut_off_and_not_taken(has_looked):
    """The rebuild takes the fence just before the log file is written, and seals it: its batches are staged still."""
    table = merged_table()
    lose_log(table)
    table.stage([{"id": 8, "p": "b"}])
    rival = SmallTable(store=ScriptedStore(table.store.inner), name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock
    options = {"digest": table.rebuild(is_dry_run=True).report.digest} if has_looked else {"decision": "likely"}
    rival.store.script = [Fault("put_if_absent", None, "_log/", before=lambda: table.rebuild(**options))]
    with pytest.raises(Fenced):
        rival.flush()
    rival.flush()
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("size", [300, 40])
def test_the_name_of_a_damaged_log_file_tells_of_its_commit(size):
    """Nothing of it can be read: a deletion that was committed, but for what may have been a seal."""
    table = SmallTable(has_footers=True)
    table.append(1, 2, 3, p="a")
    table.delete("id = 2")
    damage(table, -1, b"\x00" * size)
    choices = table.rebuild(decision="likely").report.choices
    assert [choice.kind for choice in choices] == ([] if size == 300 else ["delete"])
    assert table.ids() == [1, 3]


def test_something_else_below_log_is_taken_away():
    table = merged_table()
    key = f"{table.paths.log_prefix}notes.txt"
    table.store.put(key, b"hello")
    result = table.rebuild()
    assert [entry.key for entry in result.report.damaged] == [key]
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_log_file_of_a_later_release_is_not_damaged():
    table = merged_table()
    damage(table, 0, b'{"v":2,"t":1,"sch":1,"f":2}\n{}')
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        table.rebuild(is_forced=True)


@pytest.mark.parametrize(
    ("effect", "is_lost"),
    [
        (Effect.CRASH_BEFORE, False),
        (Effect.CRASH_AFTER, False),
        (Effect.LOSE_ANSWER, False),
        (Effect.DROP, False),
        (Effect.CRASH_AFTER, True),
    ],
)
def test_whatever_call_fails_the_next_rebuild_ends_it(effect, is_lost):
    def make():
        table = merged_table()
        if is_lost:
            lose_log(table)
        else:
            damage(table, 0)
            damage(table, 3, b"")
        return table

    for table in try_each_call(make, lambda table: table.rebuild(decision="likely"), effect):
        table.store.land_delayed()
        table.rebuild(decision="likely")
        assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
        assert not table.rebuild().has_committed
        states = [report.state for report, _ in read_reports(table.store, table.paths)]
        assert states.count("done") == 1
        assert "open" not in states


def test_of_two_rebuilds_one_commits():
    """At every call of the first, another one runs from its beginning to its end."""
    table = merged_table()
    lose_log(table)
    table.store.calls.clear()
    table.rebuild()
    count = len(table.store.calls)
    for number in range(0, count, 2):
        table = merged_table()
        damage(table, 3)
        table.store.calls.clear()
        rival = SmallTable(store=table.store.inner, name="rival")
        rival.paths, rival.clock = table.paths, table.clock
        call = CallBefore(table, number, lambda rival=rival: rival.rebuild(decision="likely"))
        call.run(lambda table=table: table.rebuild(decision="likely"))
        table.rebuild(decision="likely")
        assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
        assert (
            sum(file.log.extra.get("rebuilt") is not None for file in table.view().files if not is_dead(table, file))
            == 1
        )


class CallBefore:
    """Another actor, just before one call on the store."""

    def __init__(self, table, number, act):
        self.table, self.number, self.act = table, number, act

    def run(self, what):
        inner, counted = self.table.store._run, [0]

        def run(method, key, action):
            counted[0] += 1
            if counted[0] == self.number + 1:
                self.act()
            return inner(method, key, action)

        self.table.store._run = run
        try:
            what()
        except (CorruptLog, InvalidRequest):
            raise
        except Exception:
            pass
        finally:
            self.table.store._run = inner


def is_dead(table, file):
    return file.key in fold(table.view()).log_tombstoned_ms


def test_a_flush_that_is_under_way_is_fenced_off_or_counted_once():
    """A flush commits at the last moment: behind what the rebuild has read, or not at all."""
    for moment in ("put_if_absent", "put_if_match"):
        table = merged_table()
        lose_log(table)
        table.stage([{"id": 8, "p": "b"}])
        rival = SmallTable(store=table.store.inner, name="rival", has_footers=True)
        rival.paths, rival.clock = table.paths, table.clock
        key = "_log/" if moment == "put_if_absent" else "fence/ingest"
        table.store.script = [Fault(moment, None, key, before=rival.flush)]
        run_twice(table)
        rival.flush()
        assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def run_twice(table):
    try:
        table.rebuild()
    except Exception:
        table.rebuild(is_forced=True)


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
            assert read_held(table.store, table.paths) == set(choice.outputs)


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
    create_pin(table.store, table.paths, "keep", clock=table.clock, reader=table.reader())
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
    assert read_held(table.store, table.paths) == set(result.report.choices[0].inputs)


def test_what_waits_for_a_person_is_not_swept():
    table = merged_table()
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


def test_an_orphan_sweep_that_had_seen_the_files_does_not_delete_them():
    table = merged_table()
    lose_log(table)
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
    table = merged_table()
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


def test_imported_files_are_live_if_a_record_says_so():
    table = merged_table(ImportTable)
    table.put_source("one", 10, 11)
    table.run_import()
    before = table.ids()
    lose_log(table)
    table.rebuild()
    assert table.ids() == before
    assert table.run_import().imported_before_count == 1


def test_an_import_that_was_cut_off_is_settled_by_the_next_one():
    table = merged_table(ImportTable)
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
    table = merged_table()
    lose_log(table)
    key = next(key for key in table.keys(table.paths.data_prefix) if table.store.get(key).body.startswith(b'{"id":7'))
    table.store.put(key, table.store.get(key).body.replace(b'"id":7', b'"id":"7"'))
    with pytest.raises(SchemaConflict, match=r"column 'id' is BIGINT in .* and VARCHAR in .*parquet"):
        table.rebuild(decision="keep-outputs")  # a file that was written again is younger than the fence
    assert table.keys(table.paths.log_prefix) == []


def test_a_file_that_the_log_names_and_that_is_gone_is_dropped():
    table = merged_table()
    gone = table.snapshot().live[-1]
    table.store.delete([gone.path])
    result = table.rebuild(is_forced=True)
    assert noted(result, "gone") == [gone.path]
    assert table.ids() == [1, 2, 3, 4, 7]


@pytest.mark.parametrize("is_salvaged", [False, True])
def test_a_live_file_that_cannot_be_read_is_named_and_keeps_what_the_log_says(is_salvaged):
    table = merged_table()
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
    table = merged_table()
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


class SlowWriter:
    """Writes the files of a flush a second after it began, and stalls before it commits them."""

    def __init__(self, table, act):
        self.table, self.act = table, act

    def write_batches(self, job):
        self.table.clock.advance(1000)
        output = RowFileWriter(self.table.store, self.table.clock, has_footers=True).write_batches(job)
        self.table.clock.advance(1000)
        self.act()
        return output


@pytest.mark.parametrize("looked", [False, True])
def test_a_flush_that_is_cut_off_by_the_rebuild_is_not_taken(looked):
    """Its files are there, and it has not announced a commit: the next flush commits its batches."""
    table = merged_table()
    lose_log(table)
    options = {"digest": table.rebuild(is_dry_run=True).report.digest} if looked else {"decision": "likely"}
    table.stage([{"id": 8, "p": "b"}])
    rival = SmallTable(store=table.store.inner, name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock
    results = []
    with pytest.raises(Fenced):
        rival.flush(writer=SlowWriter(rival, lambda: results.append(table.rebuild(**options))))
    (choice,) = results[0].report.choices
    assert (choice.kind, choice.output_rows, choice.decided) == ("flush", 1, "inputs")
    rival.flush()
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_table_of_foreign_files_alone_is_no_sound_one():
    table = ImportTable(has_footers=True)
    key = table.put_in_place("old", 1, 2)
    table.run_import(key, mode="in_place")
    lose_log(table)
    (problem,) = table.rebuild(is_dry_run=True).report.damage
    assert "no log file is left" in problem
    with pytest.raises(InvalidRequest, match="--take-foreign"):
        table.rebuild()
    assert table.rebuild(takes_foreign=True).has_committed
    assert table.ids() == [1, 2]


def test_flushes_that_are_alike_in_their_markers_are_looked_at_again():
    table = SmallTable(has_footers=True, sort=())
    for number in range(6):
        table.append(number, p="a")
        table.clock.advance(1000)
    lose_log(table)
    assert table.rebuild().report.choices == ()
    assert table.ids() == [0, 1, 2, 3, 4, 5]


def test_a_flush_after_the_loss_stays():
    table = merged_table()
    lose_log(table)
    table.append(8, p="b")
    assert table.ids() == [8]
    table.rebuild()
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_record_says_what_was_found():
    table = merged_table()
    damage(table, 3)
    report = table.rebuild(decision="likely").report
    (key,) = table.keys(table.paths.rebuilds_prefix)
    stored = RebuildReport.model_validate_json(table.store.get(key).body)
    assert stored == report
    log = decode_log_file(stored.log_key, table.store.get(stored.log_key).body)
    assert log.extra["rebuilt"] == stored.rebuild_id
    assert (stored.live_files, stored.live_rows) == (3, 7)


def test_a_record_that_cannot_be_read_stops_the_sweep():
    table = merged_table()
    table.store.put(table.paths.rebuild_key("x"), b"{}")
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        table.sweep()


def test_the_new_log_sorts_behind_everything_also_what_is_damaged():
    table = merged_table()
    late_ms = table.clock.now_ms() + 50_000
    table.store.put(table.paths.log_key(time_ms=late_ms, commit_id="ab", is_merged=True), b"{")
    name = table.rebuild().report.log_key.rpartition("/")[2]
    assert int(name[:13]) == late_ms + 1


def test_what_somebody_restored_meanwhile_stays():
    """The damaged log file is brought back from a backup just before it would be deleted."""
    table = merged_table()
    key = table.keys(table.paths.log_prefix)[3]
    body = table.store.get(key).body
    damage(table, 3)
    table.store.script = [Fault("head", None, key, before=lambda: table.store.inner.put(key, body))]
    table.rebuild(decision="likely")
    assert table.store.get(key).body == body
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


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
    table = merged_table()
    key = table.keys(table.paths.log_prefix)[-1]
    head = table.store.get(key).body.split(b"\n")[:2]
    table.store.put(key, b"\n".join([*head, b"{"]))
    result = table.rebuild()
    assert noted(result, "young_flushes") == []
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_flush_that_was_cut_off_is_known_by_the_one_that_repeated_it():
    table = merged_table()
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
    table = merged_table()
    lose_log(table)
    table.stage([{"id": 8, "p": "a"}])
    rival = SmallTable(store=table.store.inner, name="rival", has_footers=True)
    rival.paths, rival.clock = table.paths, table.clock
    table.store.script = [Fault("list_page", None, "_data/", before=rival.flush)]
    with pytest.raises(Fenced):
        table.rebuild(decision="likely")
    assert table.ids() == [8]


def test_damaged_log_files_leave_the_log_only_when_the_new_one_stands_there():
    table = merged_table()
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
    log = SurvivingLog(LogView("t", (), table.clock.now_ms()))
    evidence = RebuildEvidence(table.paths, table.config, log, footers, pinned=frozenset(footers))
    older, newer = footers
    assert plan_rebuild(evidence).live == {newer}
    assert plan_rebuild(evidence, decided="inputs").live == {older, newer}
