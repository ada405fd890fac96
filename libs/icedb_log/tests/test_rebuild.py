"""A new log from what is left of a table: B1 to B6, with faults at every store call and two rebuilds at once."""

import pytest
from icedb_log.errors import CorruptLog, Fenced, InvalidRequest, UnsupportedFormat
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold
from icedb_log.repair.rebuild_record import RebuildReport, read_reports
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import damage, lose_log, make_merged_table


def test_a_lost_log_is_made_anew_and_rows_are_the_same():
    table = make_merged_table(SmallTable)
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
    table = make_merged_table(SmallTable)
    log = table.log_objects()
    assert not table.rebuild().has_committed
    assert table.log_objects() == log
    assert table.keys(table.paths.rebuilds_prefix) == []
    assert table.rebuild(is_forced=True).has_committed
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_second_rebuild_finds_nothing_to_do():
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.rebuild()
    log = table.log_objects()
    second = table.rebuild()
    assert (second.has_committed, second.report.damage) == (False, ())
    assert [body for _, body in log] == [body for key, body in table.log_objects() if (key, body) in log]
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_dry_run_writes_nothing_and_says_the_same():
    table = make_merged_table(SmallTable)
    lose_log(table)
    before = table.keys()
    table.store.calls.clear()
    report = table.rebuild(is_dry_run=True).report
    assert table.keys() == before
    assert not table.store.keys_of("put", "put_if_absent", "put_if_match", "delete")
    assert table.rebuild().report.digest == report.digest


def test_the_table_lives_on_after_a_rebuild():
    table = make_merged_table(SmallTable)
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
    table = make_merged_table(SmallTable)
    then_ms = table.clock.now_ms()
    table.clock.advance(1000)
    lose_log(table)
    rebuilt_ms = int(table.rebuild().report.log_key.rpartition("/")[2][:13])
    with pytest.raises(InvalidRequest, match=str(rebuilt_ms)):
        table.ids(as_of_ms=then_ms)
    assert table.ids(as_of_ms=rebuilt_ms) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("body", [b"", b"{", b"\x00" * 300, b'{"v":1,"t":1,"sch":1,"f":9}\n{}'])
def test_a_damaged_log_file_is_kept_aside_and_leaves_the_log(body):
    table = make_merged_table(SmallTable)
    key = damage(table, 3, body)
    with pytest.raises(CorruptLog):
        table.ids()
    result = table.rebuild(decision="likely")
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
    assert key not in table.keys(table.paths.log_prefix)
    (entry,) = result.report.damaged
    assert entry.key == key
    assert table.store.get(entry.copy_key).body == body
    assert [report.state for report, _ in read_reports(table)] == ["done"]


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
    table = make_merged_table(SmallTable)
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
    table = make_merged_table(SmallTable)
    key = f"{table.paths.log_prefix}notes.txt"
    table.store.put(key, b"hello")
    result = table.rebuild()
    assert [entry.key for entry in result.report.damaged] == [key]
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_a_log_file_of_a_later_release_is_not_damaged():
    table = make_merged_table(SmallTable)
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
        table = make_merged_table(SmallTable)
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
        states = [report.state for report, _ in read_reports(table)]
        assert states.count("done") == 1
        assert "open" not in states


def test_of_two_rebuilds_one_commits():
    """At every call of the first, another one runs from its beginning to its end."""
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.store.calls.clear()
    table.rebuild()
    count = len(table.store.calls)
    for number in range(0, count, 2):
        table = make_merged_table(SmallTable)
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
        table = make_merged_table(SmallTable)
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
    table = make_merged_table(SmallTable)
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
    table = make_merged_table(SmallTable)
    lose_log(table)
    table.append(8, p="b")
    assert table.ids() == [8]
    table.rebuild()
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_record_says_what_was_found():
    table = make_merged_table(SmallTable)
    damage(table, 3)
    report = table.rebuild(decision="likely").report
    (key,) = table.keys(table.paths.rebuilds_prefix)
    stored = RebuildReport.model_validate_json(table.store.get(key).body)
    assert stored == report
    log = decode_log_file(stored.log_key, table.store.get(stored.log_key).body)
    assert log.extra["rebuilt"] == stored.rebuild_id
    assert (stored.live_files, stored.live_rows) == (3, 7)


def test_a_record_that_cannot_be_read_stops_the_sweep():
    table = make_merged_table(SmallTable)
    table.store.put(table.paths.rebuild_key("x"), b"{}")
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        table.sweep()


def test_the_new_log_sorts_behind_everything_also_what_is_damaged():
    table = make_merged_table(SmallTable)
    late_ms = table.clock.now_ms() + 50_000
    table.store.put(table.paths.log_key(time_ms=late_ms, commit_id="ab", is_merged=True), b"{")
    name = table.rebuild().report.log_key.rpartition("/")[2]
    assert int(name[:13]) == late_ms + 1


def test_what_somebody_restored_meanwhile_stays():
    """The damaged log file is brought back from a backup just before it would be deleted."""
    table = make_merged_table(SmallTable)
    key = table.keys(table.paths.log_prefix)[3]
    body = table.store.get(key).body
    damage(table, 3)
    table.store.script = [Fault("head", None, key, before=lambda: table.store.inner.put(key, body))]
    table.rebuild(decision="likely")
    assert table.store.get(key).body == body
    assert table.ids() == [1, 2, 3, 4, 5, 6, 7]
