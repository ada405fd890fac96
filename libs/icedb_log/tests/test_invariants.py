"""Each invariant has an input that breaks it."""

from dataclasses import replace

import pytest
from icedb_log.commit.invariants import (
    require_append,
    require_merge,
    require_row_parity,
    require_same_live,
    require_schema_carried,
    require_strip,
)
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.errors import CorruptLog, InvariantViolated, SchemaConflict
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema
from icedb_log.model import FileMarker, LogFile, Widening
from icedb_sim.tables.log_views import PATHS, data, dead, kill, listed, live, log_key, view

FILES = (
    listed(1, live("x"), live("other", partition="p=b"), schema={"id": "BIGINT"}, batch_ids=("b1",)),
    listed(2, live("y"), dead("d", 2), kills=[kill(0, 2)], merged=True, schema={"id": "BIGINT"}),
)
INPUTS = (live("x"), live("y"))
OUTPUT = live("z", rows=2)
GROUP = MergedGroup(MergeGroup("p=a", INPUTS), (OUTPUT,), 2)
KEYS = [file.key for file in FILES]
LOG = build_merge_log(LogState.of(view(*FILES)), merged=[GROUP], folded_log_keys=KEYS, commit_id="ab", now_ms=50)
KEY = log_key(50, merged=True, commit_id="ab")


def check(log=LOG, *, merged=(GROUP,), files=FILES, key=KEY):
    require_merge(PATHS, LogState.of(view(*files)), log, merged=merged, commit_key=key)


def without(path):
    return replace(LOG, markers=tuple(marker for marker in LOG.markers if marker.path != path))


def with_marker(marker):
    return replace(LOG, markers=(*(m for m in LOG.markers if m.path != marker.path), marker))


def test_a_right_merge_passes():
    check()


def test_a_removal_passes_too():
    group = MergedGroup(MergeGroup("p=a", tuple(replace(m, row_count=0) for m in INPUTS)), (), 0)
    log = build_merge_log(LogState.of(view(*FILES)), merged=[group], folded_log_keys=KEYS, commit_id="ab", now_ms=50)
    check(log, merged=[group])


def test_a_merge_that_folds_nothing_passes_too():
    log = build_merge_log(LogState.of(view(*FILES)), merged=[GROUP], folded_log_keys=(), commit_id="ab", now_ms=50)
    assert (log.log_tombstones, len(log.markers)) == ((), 3)
    check(log)
    with pytest.raises(InvariantViolated, match=rf"{data('x')} would be live afterwards"):
        check(replace(log, markers=tuple(marker for marker in log.markers if marker.path != data("x"))))


def test_m1_an_input_that_is_not_live_is_refused():
    group = replace(GROUP, group=MergeGroup("p=a", (live("x"), live("d"))))
    with pytest.raises(InvariantViolated, match=rf"{data('d')} is merged but is not live \(M1\)"):
        check(merged=[group])


def test_m1_an_output_must_be_named():
    with pytest.raises(InvariantViolated, match=rf"{data('z')} would be not live afterwards \(S1\)"):
        check(without(data("z")))


def test_m1_an_input_must_be_tombstoned():
    with pytest.raises(InvariantViolated, match=rf"{data('x')} would be live afterwards"):
        check(without(data("x")))


def test_m1_a_live_marker_that_is_not_carried_is_missed():
    lost = data("other", "p=b")
    with pytest.raises(InvariantViolated, match=rf"{lost} would be not live afterwards \(M1\)"):
        check(without(lost))


def test_m1_a_live_marker_carried_as_dead_is_noticed():
    with pytest.raises(InvariantViolated, match="would be not live"):
        check(with_marker(dead("other", 50, partition="p=b")))


def test_m1_a_dead_marker_that_is_not_carried_is_missed():
    with pytest.raises(InvariantViolated, match=rf"drops the tombstone of {data('d')} \(M1\)"):
        check(without(data("d")))


def test_m1_a_log_tombstone_that_is_not_carried_is_missed():
    kept = tuple(t for t in LOG.log_tombstones if t.path != log_key(0))
    with pytest.raises(InvariantViolated, match=rf"drops the tombstone of {log_key(0)} \(M1\)"):
        check(replace(LOG, log_tombstones=kept))


def test_m1_a_log_file_that_dies_without_its_markers_carried_is_noticed():
    bystander = listed(3, live("bystander"))
    log = replace(LOG, log_tombstones=(*LOG.log_tombstones, kill(3, 50)))
    with pytest.raises(InvariantViolated, match=rf"{data('bystander')} would be not live afterwards \(M1\)"):
        check(log, files=(*FILES, bystander))


def test_m1_a_file_that_nobody_merged_does_not_appear():
    with pytest.raises(InvariantViolated, match=rf"{data('ghost')} would be live afterwards"):
        check(with_marker(live("ghost")))


@pytest.mark.parametrize("name", ["x", "d", "other"])
def test_w1_an_output_has_a_fresh_name(name):
    output = live(name, rows=2, partition="p=b" if name == "other" else "p=a")
    group = MergedGroup(MergeGroup(PATHS.partition_of(output.path), INPUTS), (output,), 2)
    with pytest.raises(InvariantViolated, match=r"already in the log|lies outside partition"):
        check(with_marker(output), merged=[group])


def test_w1_two_outputs_do_not_share_a_name():
    group = replace(GROUP, outputs=(live("z"), live("z")))
    with pytest.raises(InvariantViolated, match="already in the log"):
        check(merged=[group])


def test_m1_a_state_that_leaves_out_what_a_replaced_log_file_names_is_noticed(monkeypatch):
    named_in = LogState.named_in
    monkeypatch.setattr(LogState, "named_in", lambda state, numbers: list(named_in(state, numbers))[1:])
    with pytest.raises(InvariantViolated, match=r"the state of the log leaves out 1 of what .* name \(M1\)"):
        check()


def test_m1_an_output_of_another_partition_is_refused():
    group = replace(GROUP, outputs=(live("z", rows=2, partition="p=b"),))
    with pytest.raises(InvariantViolated, match=r"lies outside partition p=a \(M1\)"):
        check(merged=[group])


def test_m1_inputs_of_two_partitions_are_refused():
    group = replace(GROUP, group=MergeGroup("p=a", (live("x"), live("other", partition="p=b"))))
    with pytest.raises(InvariantViolated, match=r"lies outside partition p=a \(M1\)"):
        check(merged=[group])


def test_an_output_outside_the_table_is_refused():
    group = replace(GROUP, outputs=(FileMarker("wh/other/_data/p=a/z.parquet", 1, 1, row_count=2),))
    with pytest.raises(CorruptLog, match="lies outside wh/t/_data/"):
        check(merged=[group])


@pytest.mark.parametrize(
    "group",
    [
        replace(GROUP, outputs=(live("z", rows=1),)),
        replace(GROUP, outputs=(live("z", rows=3),)),
        replace(GROUP, outputs=()),
        replace(GROUP, rows_read=1),
        replace(GROUP, rows_read=3, outputs=(live("z", rows=3),)),
        replace(GROUP, outputs=(live("z", rows=None),)),
        replace(GROUP, group=MergeGroup("p=a", (live("x", rows=None), live("y"))), rows_read=3),
    ],
    ids=["fewer", "more", "none", "read fewer", "read more", "unknown", "unknown input"],
)
def test_rows_in_are_rows_out(group):
    with pytest.raises(InvariantViolated, match=r"2 rows|3 rows"):
        require_row_parity(PATHS, group)
    with pytest.raises(InvariantViolated, match="nothing was committed"):
        check(merged=[group])


def test_inputs_of_other_writers_that_do_not_say_their_rows_are_merged():
    group = MergeGroup("p=a", (live("x", rows=None), live("y", rows=7)))
    require_row_parity(PATHS, MergedGroup(group, (live("z", rows=9),), 9))


def test_s1_a_merge_sorts_after_every_log_file_that_it_read():
    log = replace(LOG, time_ms=2)
    with pytest.raises(InvariantViolated, match=r"does not sort after .*\(S1\)"):
        check(log, key=log_key(2, merged=True, commit_id="00"))
    with pytest.raises(InvariantViolated, match=rf"does not sort after .*{log_key(60)}.*\(S1\)"):
        check(files=(*FILES, listed(60, live("bystander"), schema={"id": "BIGINT"})))


def test_s1_the_name_says_the_time_inside():
    with pytest.raises(InvariantViolated, match=r"\(S1\)"):
        check(key=log_key(51, merged=True))


def test_s2_a_merge_does_not_change_the_schema():
    with pytest.raises(InvariantViolated, match=r"changes the schema \(S2\)"):
        check(replace(LOG, schema={}))
    with pytest.raises(InvariantViolated, match=r"changes the schema \(S2\)"):
        check(replace(LOG, schema={**LOG.schema, "new": "DATE"}))
    with pytest.raises(SchemaConflict):
        check(replace(LOG, schema={"id": "DATE"}))


WIDE_FILES = (
    FILES[0],
    replace(FILES[1], log=replace(FILES[1].log, widened={"id": Widening("DOUBLE", 1)})),
)
WIDE_LOG = build_merge_log(
    LogState.of(view(*WIDE_FILES)), merged=[GROUP], folded_log_keys=KEYS, commit_id="ab", now_ms=50
)


def test_s2_a_merge_carries_what_was_widened():
    assert dict(WIDE_LOG.widened) == {"id": Widening("DOUBLE", 1)}
    check(WIDE_LOG, files=WIDE_FILES)
    with pytest.raises(InvariantViolated, match=r"changes the schema \(S2\)"):
        check(replace(WIDE_LOG, widened={}), files=WIDE_FILES)
    with pytest.raises(InvariantViolated, match=r"changes the schema \(S2\)"):
        check(WIDE_LOG)


def test_s2_a_merge_says_it_by_itself_whatever_other_log_files_say():
    bystander = listed(3, live("bystander"), schema={"id": "BIGINT"}, widened={"id": Widening("DOUBLE", 1)})
    with pytest.raises(
        InvariantViolated, match=r"wider type of column 'id' is DOUBLE since 1 in the log, but None .*\(S2\)"
    ):
        check(replace(WIDE_LOG, widened={}), files=(*WIDE_FILES, bystander))


@pytest.mark.parametrize(
    "log",
    [
        LogFile(1, {"a": "BIGINT"}),
        LogFile(1, {"a": "BIGINT", "b": "DATE"}),
        LogFile(1, {"a": "DOUBLE", "b": "DATE"}),
        LogFile(1, {"a": "DOUBLE", "b": "DATE"}, widened={"a": Widening("DOUBLE", 1)}),
        LogFile(1, {"a": "BIGINT", "b": "DATE"}, widened={"a": Widening("DOUBLE", 2)}),
        LogFile(1, {"b": "DATE"}, widened={"a": Widening("DOUBLE", 1)}),
        LogFile(1, {"a": "BIGINT", "b": "DATE"}, widened={"a": Widening("DOUBLE", 1), "b": Widening("VARCHAR", 1)}),
        LogFile(1, {"a": "BIGINT", "b": "DATE"}, widened={"a": Widening("DOUBLE", 1), "c": Widening("DOUBLE", 1)}),
    ],
    ids=[
        "column",
        "widening",
        "wide line",
        "wide line and widening",
        "time",
        "widened column",
        "no widening",
        "no column",
    ],
)
def test_s2_a_commit_that_does_not_carry_the_schema_is_refused(log):
    known = LoggedSchema({"a": "BIGINT", "b": "DATE"}, {"a": Widening("DOUBLE", 1)})
    with pytest.raises(InvariantViolated, match=r"\(S2\)"):
        require_schema_carried(PATHS, log, known=known)
    require_schema_carried(PATHS, LogFile(1, known.logged, widened=known.widened), known=known)


# -- appends


def test_an_append_of_fresh_files_passes():
    require_append(PATHS, LogFile(1, {}, (live("a"), live("b"))), known={data("c")})


@pytest.mark.parametrize(
    "log",
    [
        LogFile(1, {}, (live("a"), dead("b", 1))),
        LogFile(1, {}, (live("a"),), (kill(0, 1),)),
        LogFile(1, {}, (live("known"),)),
        LogFile(1, {}, (live("a"), live("a"))),
    ],
    ids=["data tombstone", "log tombstone", "known name", "same name twice"],
)
def test_an_append_only_adds_fresh_files(log):
    with pytest.raises(InvariantViolated):
        require_append(PATHS, log, known={data("known")})


def test_an_append_stays_inside_its_table():
    with pytest.raises(CorruptLog, match="outside"):
        require_append(PATHS, LogFile(1, {}, (FileMarker("wh/t2/_data/x.parquet", 1, 1),)), known=())


# -- vacuums


def test_j2_a_vacuum_changes_no_live_file():
    before = view(listed(1, live("x"), live("y")), listed(2, live("x"), dead("y", 2), kills=[kill(1, 2)], merged=True))
    require_same_live(PATHS, before, before.files[1:])
    with pytest.raises(InvariantViolated, match=rf"{data('x')} would be not live afterwards \(J2\)"):
        require_same_live(PATHS, before, ())
    with pytest.raises(InvariantViolated, match=rf"{data('y')} would be live afterwards \(J2\)"):
        require_same_live(PATHS, before, [before.files[0]])


STRIPPED = listed(
    9,
    live("z"),
    dead("x", 5),
    dead("y", 5),
    kills=[kill(1, 5), kill(2, 7)],
    merged=True,
    horizon_ms=4,
    batch_ids=("b",),
)


def strip(**changes):
    return replace(STRIPPED.log, **{"horizon_ms": 7, **changes})


@pytest.mark.parametrize(
    "after",
    [
        strip(),
        strip(markers=STRIPPED.log.markers[:2], log_tombstones=()),
        strip(markers=STRIPPED.log.markers[:1], horizon_ms=4),
        strip(log_tombstones=STRIPPED.log.log_tombstones[1:], horizon_ms=5),
    ],
)
def test_j3_a_strip_may_forget_tombstones(after):
    require_strip(PATHS, STRIPPED, after, live={data("z"), data("other")})


@pytest.mark.parametrize(
    ("after", "match"),
    [
        (strip(markers=STRIPPED.log.markers[:2]), rf"would bring {data('y')} back to life; 1 files \(J2\)"),
        (strip(markers=STRIPPED.log.markers[1:]), "changes more than tombstones"),
        (strip(time_ms=10), "changes more than tombstones"),
        (strip(batch_ids=()), "changes more than tombstones"),
        (strip(log_tombstones=(), horizon_ms=6), "does not record the horizon"),
        (strip(horizon_ms=3), "does not record the horizon"),
        (strip(horizon_ms=None), "does not record the horizon"),
    ],
)
def test_j3_a_strip_may_do_nothing_else(after, match):
    with pytest.raises(InvariantViolated, match=match):
        require_strip(PATHS, STRIPPED, after, live={data("z"), data("y")})
