"""What a rebuild concludes from made-up traces, one rule of the commit resolver at a time (B1, B3, F5)."""

import pytest
from icedb_log.model import FeedState, FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.parquet.footer import ColumnBounds, FileOrigin, Footer
from icedb_log.repair.rebuild import build_rebuilt_log
from icedb_log.repair.rebuild_evidence import DamagedLog, FenceTraces, RebuildEvidence
from icedb_log.repair.rebuild_plan import RebuildOptions, plan_rebuild
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.table_config import PartitionField
from icedb_sim.tables.small_table import SmallTable

DAY_MS = 24 * 3_600_000


def damaged_log(key, *, size_bytes):
    return DamagedLog(key, "e", 0, size_bytes, LogFile(time_ms=0), problem="damaged")


class Traces:
    """What is left of a table: data files by the commits that wrote them, and log files that name some."""

    def __init__(self, **config):
        self.table = SmallTable(has_footers=True, **config)
        self.clock, self.paths = self.table.clock, self.table.paths
        self.footers = {}
        self.logs = []

    def new_key(self, partition="p=a"):
        self.clock.advance(1)
        return self.paths.data_key(partition=partition, file_id=self.clock.new_id())

    def write(self, kind, *inputs, rows=5, low=None, commit_id=None):
        """Write a data file and return its key."""
        key = self.new_key()
        origin = FileOrigin(kind, "t", "p=a", commit_id or self.clock.new_id(), inputs)
        bounds = {} if low is None else {"id": ColumnBounds(low, low, 0, is_exact=True)}
        info = ObjectInfo(key, "e", 10, self.clock.now_ms())
        self.footers[key] = Footer(info, rows, {"id": "BIGINT"}, origin=origin, bounds=bounds)
        return key

    def commit_of(self, key):
        return self.footers[key].origin.commit_id

    def log_key(self, key):
        """Return the key of the log file of the commit that wrote a data file."""
        origin = self.footers[key].origin
        time_ms = self.footers[key].info.modified_ms
        return self.paths.log_key(time_ms=time_ms, commit_id=origin.commit_id, is_merged=origin.kind != "flush")

    def log(self, key, *dead, is_seal=False, feed=None, **marker):
        """Write the log file of a data file's commit; ``dead``: what it has tombstones of."""
        time_ms = self.clock.now_ms()
        markers = (
            FileMarker(key, 10, time_ms, **marker),
            *(FileMarker(each, 10, time_ms, tombstoned_ms=time_ms) for each in dead),
        )
        log = LogFile(time_ms=time_ms, markers=() if is_seal else markers, is_seal=is_seal, feed=feed)
        self.logs.append(ListedLogFile(self.log_key(key), "e", time_ms, 100, log))

    def name(self, key):
        return self.log_key(key).rpartition("/")[2].removesuffix(".jsonl")

    def evidence(self, *, gone=(), **facts):
        there = {key: footer for key, footer in self.footers.items() if key not in gone}
        view = LogView("t", tuple(sorted(self.logs, key=lambda file: file.key)), self.clock.now_ms())
        damaged = facts.pop("damaged", ())
        return RebuildEvidence(self.paths, self.table.config, view, damaged, there, **facts)

    def plan(self, *, decision=None, **facts):
        return plan_rebuild(self.evidence(**facts), RebuildOptions(decision=decision))

    def rebuilt(self, **facts):
        """Return the log file of a rebuild."""
        evidence = self.evidence(**facts)
        now_ms = self.clock.now_ms()
        return build_rebuilt_log(evidence, plan_rebuild(evidence), rebuild_id="r", commit_id="c", now_ms=now_ms)


def reasons(plan):
    return {each.key: each.reason for each in plan.report.left_out}


def make_deletion(**config):
    traces = Traces(**config)
    read = traces.write("flush")
    return traces, read, traces.write("delete", read, rows=4)


def test_a_deletion_of_which_nothing_is_known_is_a_choice():
    traces, read, written = make_deletion()
    (choice,) = traces.plan().report.choices
    assert (choice.inputs, choice.outputs, choice.likely) == ((read,), (written,), "outputs")
    assert traces.plan(decision="keep-inputs").live == {read}


def test_a_pin_proves_the_commit_of_what_it_names():
    traces, _, written = make_deletion()
    plan = traces.plan(pinned=frozenset({written}))
    assert plan.live == {written}
    assert [choice.what for choice in plan.report.choices] == []


@pytest.mark.parametrize("has_landed", [True, False])
def test_the_record_of_an_erasure_says_whether_its_commit_landed(has_landed):
    traces, read, written = make_deletion()
    plan = traces.plan(deletions={traces.commit_of(written): has_landed})
    assert plan.report.choices == ()
    assert plan.live == {written if has_landed else read}
    assert reasons(plan) == ({} if has_landed else {written: "not committed: record of an erasure"})


def test_a_merge_by_a_query_that_nobody_can_tell_of_is_likely_undone():
    traces = Traces(merge_query="select * from _rows")
    read = traces.write("flush")
    written = traces.write("merge", read, rows=3)
    (choice,) = traces.plan().report.choices
    assert (choice.likely, choice.outputs) == ("inputs", (written,))
    assert "a merge by a query" in choice.why


def test_a_deletion_that_cannot_have_written_so_much_is_unlikely():
    traces = Traces()
    read = traces.write("flush")
    traces.write("delete", read, rows=6)
    (choice,) = traces.plan().report.choices
    assert choice.likely == "inputs"


@pytest.mark.parametrize(("facts", "likely"), [({}, "inputs"), ({"holds_dead_files": True}, "outputs")])
def test_what_is_old_and_has_its_inputs_still_has_hardly_landed_unless_they_are_held(facts, likely):
    traces, _, _ = make_deletion()
    traces.clock.advance(10 * DAY_MS)
    (choice,) = traces.plan(**facts).report.choices
    assert choice.likely == likely


def test_what_was_announced_had_written_all_of_its_files():
    traces, _, written = make_deletion()
    traces.clock.advance(10 * DAY_MS)
    (choice,) = traces.plan(fences=FenceTraces(commits=frozenset({traces.commit_of(written)}))).report.choices
    assert choice.likely == "outputs"
    assert "all of its files were written" in choice.why


def test_a_sealed_deletion_is_unlikely_where_log_files_are_left():
    traces, read, written = make_deletion()
    traces.log(written, is_seal=True)
    assert traces.plan().report.choices[0].likely == "outputs", (
        "a seal alone proves nothing: the log was lost with all else"
    )
    traces.log(read)
    (choice,) = traces.plan().report.choices
    assert choice.likely == "inputs"


def test_a_deletion_younger_than_the_last_write_of_its_fence_is_unlikely():
    traces, _, _ = make_deletion()
    traces.clock.advance(2 * DAY_MS)
    read = traces.write("flush")
    written = traces.write("delete", read, rows=4)
    fences = FenceTraces(written_ms={"merge": traces.clock.now_ms() - DAY_MS})
    choices = {
        choice.outputs[0]: choice.likely for choice in traces.plan(fences=fences, holds_dead_files=True).report.choices
    }
    assert choices[written] == "inputs"
    assert sorted(choices.values()) == ["inputs", "outputs"]


def test_a_lost_commit_of_which_an_input_is_gone_is_a_choice_if_others_replaced_the_rest():
    traces = Traces()
    first, second = traces.write("flush"), traces.write("flush")
    lost = traces.write("merge", first, second, rows=10)
    rival = traces.write("rewrite", second)
    traces.log(rival, second)
    fences = FenceTraces(landed=frozenset({traces.name(lost)}))
    (choice,) = [each for each in traces.plan(gone=(first,), fences=fences).report.choices if each.kind == "merge"]
    assert (choice.outputs, choice.likely) == ((lost,), "outputs")
    assert "landed and was lost" in choice.why
    plan = traces.plan(fences=fences)
    assert reasons(plan)[lost] == "not committed: another commit replaced the same files"


def test_a_flush_that_a_whole_log_does_not_name_is_a_choice():
    traces = Traces()
    named, unnamed = traces.write("flush"), traces.write("flush")
    traces.log(named)
    (choice,) = traces.plan().report.choices
    assert (choice.outputs, choice.likely) == ((unnamed,), "outputs")
    damaged = damaged_log(f"{traces.paths.log_prefix}junk", size_bytes=10)
    assert traces.plan(damaged=(damaged,)).report.choices == (), (
        "other log files were lost or damaged: so may be its own"
    )


@pytest.mark.parametrize(("staged_count", "likely"), [(0, "outputs"), (1, "inputs")])
def test_a_sealed_flush_was_cut_off_if_its_batches_may_be_staged(staged_count, likely):
    traces = Traces()
    traces.log(traces.write("flush"), is_seal=True)
    (choice,) = traces.plan(staged_count=staged_count).report.choices
    assert choice.likely == likely


def make_leftover(*, low=2, skip_ms=0, kind="merge", **config):
    """Return a table where the rows of a pinned file may be in a merge's output."""
    traces = Traces(**config)
    kept = traces.write("flush", low=2, rows=3)
    gone = traces.new_key()
    traces.clock.advance(skip_ms)
    heir = traces.write(kind, gone, low=low, rows=9)
    return traces, kept, heir


def test_a_pinned_file_may_be_dead_if_a_later_file_can_have_its_rows():
    traces, kept, heir = make_leftover()
    (choice,) = traces.plan(pinned=frozenset({kept})).report.choices
    assert (choice.what, choice.inputs, choice.outputs, choice.likely) == ("leftover", (kept,), (heir,), "outputs")
    assert traces.plan(pinned=frozenset({kept}), decision="keep-inputs").live == {kept, heir}


def test_a_merge_cannot_have_rows_that_lie_outside_of_its_bounds():
    traces, kept, heir = make_leftover(low=7)
    assert traces.plan(pinned=frozenset({kept})).live == {kept, heir}
    traces, kept, heir = make_leftover(low=7, kind="rewrite")
    assert traces.plan(pinned=frozenset({kept})).live == {heir}, "a rewrite may have changed the values"


def test_a_file_that_is_newer_than_what_another_was_made_from_has_its_rows_alone():
    traces = Traces()
    gone = traces.new_key()
    traces.clock.advance(DAY_MS)
    kept = traces.write("flush", low=2, rows=3)
    heir = traces.write("merge", gone, low=2, rows=9)
    assert traces.plan(pinned=frozenset({kept})).live == {kept, heir}


@pytest.mark.parametrize(("later_ms", "is_noted"), [(0, True), (DAY_MS, False)])
def test_an_old_merge_is_noted_if_another_one_may_come_from_the_same_files(later_ms, is_noted):
    traces = Traces()
    gone, other = traces.new_key(), traces.new_key()
    heir = traces.write("merge", other, low=2)
    traces.clock.advance(later_ms)
    old = traces.write("merge", gone, low=2)
    traces.clock.advance(10 * DAY_MS)
    notes = {note.kind: note.files for note in traces.plan(gone=()).report.notes}
    assert (old in notes.get("old_merges", ())) == is_noted
    assert heir in notes["old_merges"]


def test_inputs_of_a_commit_that_no_log_file_names_are_damage():
    traces = Traces()
    first = traces.write("flush")
    traces.log(traces.write("flush"))
    traces.write("merge", first)
    assert any("data files were committed, and no log file names them" in each for each in traces.plan().report.damage)


def test_a_pending_import_that_is_not_taken_is_not_noted():
    traces = Traces()
    key = traces.write("foreign")
    assert [
        note.files for note in traces.plan(imported={key: "pending"}).report.notes if note.kind == "pending_imports"
    ] == [(key,)]
    plan = traces.plan(imported={key: "pending"}, rewritten=frozenset({key}))
    assert [note for note in plan.report.notes if note.kind == "pending_imports"] == []


def test_a_damaged_log_file_later_than_the_newest_feed_makes_it_unknown():
    traces = Traces()
    fed = traces.write("flush")
    traces.log(fed, feed=FeedState(3, ("a",)))
    assert traces.plan(source_names=("a",)).feed == FeedState(3, ("a",))
    later = damaged_log(traces.paths.log_key(time_ms=1, commit_id="f" * 32, is_merged=False), size_bytes=500)
    assert traces.plan(source_names=("a",), damaged=(later,)).lacks_feed


def test_what_an_erasure_wants_gone_is_dead_unless_a_whole_log_file_lists_it():
    traces = Traces()
    key = traces.write("flush")
    assert traces.plan(erased=frozenset({key})).live == frozenset()
    traces.log(key)
    assert traces.plan(erased=frozenset({key})).live == {key}


def test_rows_are_those_of_the_footer_and_what_it_does_not_say_is_kept():
    traces = Traces()
    key = traces.write("flush", rows=7)
    traces.log(key, row_count=3, stats={"id": (1, 9, 0)}, extra={"x": 1})
    (marker,) = traces.rebuilt().markers
    assert (marker.row_count, marker.stats, marker.extra) == (7, {"id": (1, 9, 0)}, {"x": 1})
    traces = Traces()
    traces.log(traces.write("flush", low=4), stats={"id": (1, 9, 0)})
    (marker,) = traces.rebuilt().markers
    assert marker.stats == {"id": (4, 4, 0)}


def test_what_repeats_the_path_is_no_column_and_narrow_files_are_the_older_ones():
    traces = Traces(partition=(PartitionField.parse("d=day(ts)"),), sort=("ts",))
    for sql_type, number in (("DOUBLE", 1), ("BIGINT", 2)):
        key = traces.new_key("d=2026-01-01")
        origin = FileOrigin("flush", "t", "d=2026-01-01", traces.clock.new_id())
        columns = {"ts": "TIMESTAMP", "n": sql_type, "d": "VARCHAR"}
        traces.footers[key] = Footer(ObjectInfo(key, "e", 10, number), 1, columns, origin=origin)
    log = traces.rebuilt()
    assert (log.schema, log.widened) == ({"ts": "TIMESTAMP", "n": "BIGINT"}, {"n": "DOUBLE"})
