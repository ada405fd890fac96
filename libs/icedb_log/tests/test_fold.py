"""The fold: S1, S2, R3."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog, InvalidRequest, SchemaConflict
from icedb_log.log.fold import LONGEST_COMMIT_MS, fold, read_horizon_ms, union_schema
from icedb_log.model import ListedLogFile, LogFile, Widening
from icedb_sim.tables.log_views import data, dead, kill, listed, live, log_key, view


def paths_of(snapshot):
    return [marker.path for marker in snapshot.live]


def test_an_empty_log_is_an_empty_table():
    snapshot = fold(view())
    assert (snapshot.live, snapshot.schema, snapshot.horizon_ms, snapshot.last_commit_ms) == ((), {}, 0, 0)


def test_s1_a_file_is_live_if_listed_without_and_never_with_a_tombstone():
    snapshot = fold(view(listed(1, live("x"), live("y")), listed(2, live("z"), dead("x", 2))))
    assert paths_of(snapshot) == [data("y"), data("z")]
    assert snapshot.tombstoned_ms == {data("x"): 2}


def test_s1_a_tombstone_wins_over_a_later_live_marker():
    assert paths_of(fold(view(listed(1, dead("x", 1)), listed(2, live("x"))))) == []


def test_s1_the_order_of_log_files_does_not_matter():
    contents = [(live("x"), live("y")), (dead("x", 3), live("z")), (dead("z", 9),)]
    results = set()
    for order in itertools.permutations(contents):
        snapshot = fold(view(*(listed(number + 1, *markers) for number, markers in enumerate(order))))
        results.add((snapshot.snapshot_id, tuple(paths_of(snapshot))))
    assert {live_paths for _, live_paths in results} == {(data("y"),)}
    assert len(results) == 1


def test_s1_the_earliest_tombstone_time_counts():
    assert fold(view(listed(1, dead("x", 8)), listed(2, dead("x", 5)))).tombstoned_ms == {data("x"): 5}


def test_a_marker_with_a_row_count_is_preferred():
    snapshot = fold(view(listed(1, live("x", rows=None)), listed(2, live("x", rows=3))))
    assert snapshot.row_count == 3
    assert fold(view(listed(1, live("x", rows=None)))).row_count is None


def test_the_snapshot_id_follows_from_files_and_schema_alone():
    one = fold(view(listed(1, live("x"), schema={"a": "BIGINT"}), listed(2, live("y"))))
    two = fold(view(listed(7, live("y"), live("x"), schema={"a": "BIGINT"}, merged=True)))
    assert one.snapshot_id == two.snapshot_id
    assert one.snapshot_id != fold(view(listed(1, live("x"), live("y")))).snapshot_id
    assert one.snapshot_id != fold(view(listed(1, live("x"), schema={"a": "BIGINT"}))).snapshot_id


def test_s2_the_schema_is_the_union_in_order_of_appearance():
    snapshot = fold(view(listed(1, schema={"b": "BIGINT"}), listed(2, schema={"a": "VARCHAR", "b": "BIGINT"})))
    assert list(snapshot.schema.items()) == [("b", "BIGINT"), ("a", "VARCHAR")]


def test_s2_two_types_of_one_column_conflict_and_the_message_names_everything():
    files = [listed(1, schema={"a": "BIGINT"}), listed(2), listed(3, schema={"a": "DOUBLE"})]
    with pytest.raises(SchemaConflict) as caught:
        fold(view(*files))
    for part in ("table t", "'a'", "BIGINT", "DOUBLE", log_key(1), log_key(3)):
        assert part in str(caught.value)


def test_s2_a_widened_column_is_wide_in_whatever_log_file_says_so():
    files = [listed(1, schema={"a": "BIGINT", "d": "DATE"}), listed(3, schema={"a": "BIGINT"})]
    wide = listed(2, schema={"a": "BIGINT"}, widened={"a": Widening("DOUBLE", 1)})
    snapshot = fold(view(*files, wide))
    assert list(snapshot.schema.items()) == [("a", "DOUBLE"), ("d", "DATE")]
    assert dict(snapshot.logged_schema) == {"a": "BIGINT", "d": "DATE"}
    assert fold(view(*files)).snapshot_id != snapshot.snapshot_id
    assert dict(fold(view(*files, wide), as_of_ms=1).schema) == {"a": "BIGINT", "d": "DATE"}


def test_s2_of_several_times_of_a_widening_the_earliest_counts():
    files = [listed(n, schema={"a": "BIGINT"}, widened={"a": Widening("DOUBLE", n)}) for n in (3, 2, 4)]
    assert dict(union_schema("t", files).widened) == {"a": Widening("DOUBLE", 2)}


def test_s2_a_widening_does_not_reconcile_two_logged_types():
    wide = listed(2, schema={"a": "BIGINT"}, widened={"a": Widening("DOUBLE", 1)})
    with pytest.raises(SchemaConflict):
        fold(view(wide, listed(3, schema={"a": "DOUBLE"})))


def test_s3_a_misnamed_log_file_is_corrupt():
    with pytest.raises(CorruptLog, match=r"wh/t/_log/notes\.txt"):
        fold(view(ListedLogFile("wh/t/_log/notes.txt", "", 0, 0, LogFile(1))), as_of_ms=5)


def test_r3_time_travel_folds_what_was_committed_until_then():
    table = view(listed(10, live("x")), listed(20, live("y"), dead("x", 20), merged=True), listed(30, live("z")))
    assert paths_of(fold(table, as_of_ms=9)) == []
    assert paths_of(fold(table, as_of_ms=10)) == [data("x")]
    assert paths_of(fold(table, as_of_ms=19)) == [data("x")]
    assert paths_of(fold(table, as_of_ms=20)) == [data("y")]
    assert paths_of(fold(table, as_of_ms=30)) == paths_of(fold(table)) == [data("y"), data("z")]


def test_r3_time_travel_below_the_horizon_is_refused():
    table = view(listed(20, live("y"), merged=True, horizon_ms=20))
    assert paths_of(fold(table, as_of_ms=20)) == [data("y")]
    with pytest.raises(
        InvalidRequest,
        match=r"00\.019Z lies before 1970-01-01T00:00:00\.020Z \(20\), the oldest time still readable.*last log_grace, "
        "10 minutes by default.*--set log_grace=1d --set data_grace=1d",
    ):
        fold(table, as_of_ms=19)


def test_r3_between_delete_and_strip_the_horizon_follows_from_what_vanished():
    merged = listed(20, live("y"), dead("x", 20), kills=[kill(10, 20)], merged=True)
    assert read_horizon_ms(view(listed(10, live("x")), merged)) == 0
    assert read_horizon_ms(view(merged)) == 20
    with pytest.raises(InvalidRequest):
        fold(view(merged), as_of_ms=19)


def test_r3_a_seal_in_the_place_of_a_deleted_log_file_does_not_hide_the_horizon():
    # An owner died after its commit at 10; merged, vacuumed, and then the next owner settled the old intent (F1).
    merged = listed(20, live("y"), dead("x", 20), kills=[kill(10, 20)], merged=True)
    seal = listed(10, is_seal=True, commit_id=None, modified_ms=99)
    assert read_horizon_ms(view(seal, merged)) == 20


def test_r3_the_answer_says_whether_it_is_stable():
    now = 10 * LONGEST_COMMIT_MS
    table = view(listed(10, live("x")), now=now)
    assert fold(table, as_of_ms=now - LONGEST_COMMIT_MS).is_stable
    assert not fold(table, as_of_ms=now - LONGEST_COMMIT_MS + 1).is_stable
    assert not fold(table).is_stable


def test_a_seal_is_no_commit():
    assert fold(view(listed(5, live("x")), listed(9, is_seal=True))).last_commit_ms == 5


@given(st.lists(st.lists(st.tuples(st.sampled_from("uvwxyz"), st.booleans()), max_size=5), max_size=6), st.randoms())
def test_s1_the_fold_is_a_union_whatever_the_order(contents, random):
    markers = [[live(name) if is_live else dead(name, 5) for name, is_live in part] for part in contents]
    expected = {data(n) for part in contents for n, is_live in part if is_live}
    expected -= {data(n) for part in contents for n, is_live in part if not is_live}
    for _ in range(2):
        snapshot = fold(view(*(listed(number, *part) for number, part in enumerate(markers, 1))))
        assert paths_of(snapshot) == sorted(expected)
        random.shuffle(markers)
