"""S4: a column that is promoted later is in the schema when every live data file has it, and no time before."""

import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.commit.commit import Added, AppendCommit
from icedb_log.commit.invariants import require_promoted
from icedb_log.errors import CommitConflict, InvalidRequest, InvariantViolated
from icedb_log.ingest.flush import flush_table
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import fold
from icedb_log.log.live_files import LiveFiles
from icedb_log.log.markers import markers_of
from icedb_log.log.state import LogState
from icedb_log.merge.merge_plan import ALONE_BYTES, MergeIndex, MergeLimits, plan_merge
from icedb_log.model import FileMarker, LogFile
from icedb_log.serving.status import list_backlog
from icedb_log.table.promoted_paths import add_promotions, parse_promotions
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.scripted_store import Effect
from icedb_sim.tables.log_views import PATHS, data, listed, view
from icedb_sim.tables.row_files import RowFileWriter, encode_rows
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call

COLUMN = "body__x"


def promote(table, *texts):
    promotions = parse_promotions(texts or ["body.x"], option="--promote")
    change = add_promotions({}, promotions, option="--promote", may_end=True)
    return alter_table_config(table, change, clock=table.clock)


def merge_all(table):
    while table.merge().committed_key is not None:
        pass


def require_complete(table):
    """See that each data file of a snapshot has what its schema has, now and at each time that can be read."""
    config, view = table.opened().config, table.view()
    for at_ms in (None, *range(view.store_now_ms - 60, view.store_now_ms)):
        try:
            snapshot = fold(view, as_of_ms=at_ms)
        except InvalidRequest:
            continue  # the log does not go back so far
        require_promoted(table.paths, config, snapshot.schema, snapshot.live)


def with_rows(**config):
    table = SmallTable(**config)
    table.append(1)
    table.append(2, p="b")
    return table


def test_a_column_is_shown_when_every_data_file_has_it():
    table = with_rows()
    promote(table)
    table.append(3)
    assert COLUMN not in table.snapshot().schema, "old data files lack it"
    status = table.status()
    assert (status.filling, status.filling_files) == ((COLUMN,), 2)
    merge_all(table)
    assert table.snapshot().schema[COLUMN] == "VARCHAR"
    assert table.status().filling == () and table.status().filling_files == 0
    assert table.ids() == [1, 2, 3]
    table.append(4)
    require_complete(table)
    promote(table, "body.y:DOUBLE")
    assert "body__y" not in table.snapshot().schema
    merge_all(table)
    assert table.snapshot().schema["body__y"] == "DOUBLE"
    require_complete(table)


def test_the_first_commit_shows_what_is_promoted_and_later_ones_do_not():
    table = SmallTable()
    promote(table)
    assert table.merge().committed_key is None, "there is nothing to show yet"
    table.append(1)
    assert COLUMN in table.snapshot().schema
    other = SmallTable()
    other.append(1)
    other.drop("*")
    promote(other)
    other.append(2)
    assert COLUMN not in other.snapshot().schema, "a flush does not know what is live"
    assert other.merge().group_count == 0
    assert COLUMN in other.snapshot().schema


def test_s4_whatever_a_flush_meets_readers_see_complete_columns_alone():
    def make():
        table = with_rows()
        table.stage([{"id": 3, "p": "a"}])
        return table

    def rival(table):
        promote(table)
        merge_all(table)
        require_complete(table)

    outcomes = set()
    for table, error, where in at_each_call(make, SmallTable.flush, rival):
        require_complete(table)
        outcomes.add(type(error).__name__)
        merge_all(table)
        assert COLUMN in table.snapshot().schema, where
        assert table.flush().committed_key is None or error is not None
        assert table.ids() == [1, 2, 3]
    assert {"NoneType", "CommitConflict", "Fenced"} <= outcomes


def test_s4_whatever_a_merge_meets_readers_see_complete_columns_alone():
    old = {}

    def make():
        table = with_rows()
        old[id(table)] = table.opened("late")
        table.stage([{"id": 3, "p": "a"}])
        promote(table)
        return table

    def rival(table):
        try:
            flush_table(old[id(table)], RowFileWriter(table.store, table.clock))
        except CommitConflict:
            return  # it knows no path, and the log has one
        table.clock.advance(1)

    outcomes = set()
    for table, error, where in at_each_call(make, merge_all, rival):
        require_complete(table)
        outcomes.add(type(error).__name__)
        merge_all(table)
        assert COLUMN in table.snapshot().schema, where
        assert table.ids() in ([1, 2], [1, 2, 3])
    assert "NoneType" in outcomes


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.UNAVAILABLE, Effect.LOSE_ANSWER])
def test_a_backfill_that_ends_anywhere_goes_on(effect):
    def make():
        table = with_rows()
        promote(table)
        return table

    def act(table):
        while table.merge(limits=MergeLimits(max_groups=1)).committed_key is not None:
            require_complete(table)

    for table in try_each_call(make, act, effect):
        require_complete(table)
        table.clock.advance(30_000)  # F6: whoever died claims the fence no more
        merge_all(table)
        require_complete(table)
        assert COLUMN in table.snapshot().schema
        assert table.ids() == [1, 2]


def test_s4_an_append_by_a_slow_clock_shows_nothing_earlier():
    table = with_rows()
    promote(table)
    table.clock.advance(1000)
    merge_all(table)
    table.stage([{"id": 3, "p": "a"}])
    slow = FakeClock(table.clock.now_ms() - 900, seed="slow")
    flush_table(table.opened("slow", clock=slow), RowFileWriter(table.store, slow))
    shown_ms = min(file.log.time_ms for file in table.view().files if COLUMN in file.log.schema)
    for at_ms in range(shown_ms - 950, shown_ms + 10, 10):
        try:
            snapshot = table.snapshot(as_of_ms=at_ms)
        except InvalidRequest:
            continue
        require_promoted(table.paths, table.opened().config, snapshot.schema, snapshot.live)
    assert COLUMN in table.snapshot().schema


def test_s4_a_data_file_that_lacks_a_shown_column_is_not_committed():
    table = SmallTable()
    promote(table)
    table.append(1)
    marker = FileMarker(data("x", "p=a"), 1, 1, row_count=1)
    with AppendCommit(table.opened()) as commit, pytest.raises(InvariantViolated, match=r"has 0 of 1 .*\(S4\)"):
        commit.build(Added(files=(marker,), schema=commit.known.effective))


def test_a_path_that_is_filled_no_more_keeps_its_column():
    table = SmallTable()
    promote(table, "body.x", "body.y")
    table.stage([{"id": 1, "p": "a", "q": "?"}])
    table.flush()
    config = promote(table, "body.x:off")
    assert config.promoted == {COLUMN: (), "body__y": ("body", "y")}
    table.append(2)
    assert COLUMN in table.snapshot().schema
    assert config.find_promoted(["body"]) == {"body__y": "VARCHAR"}
    for text, why in (
        ("body.x", "was promoted once, and newer rows lack it"),
        ("body.z:off", "'body__z' is not promoted"),
        ("other.x as body__y", "is promoted from body.y"),
        ("body.z as q", "it has column 'q' already"),
        ("body.z as Q", "it has column 'q' already"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            promote(table, text)
    assert promote(table, "body.x:off") == config
    table.append(3)
    promote(table, "body.new")
    promote(table, "body.new:off")
    merge_all(table)
    assert "body__new" not in table.snapshot().schema, "it was never complete"


def test_the_newest_partitions_come_first_and_large_files_alone():
    table = SmallTable()
    promote(table)
    small, large = 1000, ALONE_BYTES
    config = table.opened().config.model_copy(update={"target_file_bytes": 8 * ALONE_BYTES, "merge_fan_in": 8})
    markers = [
        FileMarker(data("a1", "p=a"), small, 1),
        FileMarker(data("a2", "p=a"), small, 2),
        FileMarker(data("a3", "p=a"), large, 3),
        FileMarker(data("b1", "p=b"), large, 9),
        FileMarker(data("b2", "p=b"), large, 9, promoted_count=1),
    ]
    log = view(listed(10, *markers, schema={"body": "VARCHAR"}))
    index = MergeIndex(PATHS, config)
    plan = plan_merge(index, log)
    assert [[marker.path for marker in group.inputs] for group in plan.groups] == [
        [data("b1", "p=b")],
        [data("a3", "p=a")],
        [data("a1", "p=a"), data("a2", "p=a")],
    ]
    assert not list_backlog(LogState.of(log), paths=PATHS, config=config), "no reason to slow producers down"


def test_logs_say_how_many_paths_their_writer_and_each_data_file_has():
    log = LogFile(5, {"a": "VARCHAR"}, promoted_count=3, markers=(FileMarker("d/x", 1, 2, promoted_count=2),))
    body = encode_log_file(log)
    assert body.count(b'"pr":') == 2
    for is_compact in (False, True):
        found = decode_log_file("k", body, is_compact=is_compact)
        assert found == log and markers_of("k", found.markers).promoted_count(0) == 2
    assert b'"pr"' not in encode_log_file(LogFile(5, {}, markers=(FileMarker("d/x", 1, 2),)))


def test_fewest_promoted_leaves_out_what_is_merged():
    markers = [FileMarker(data(f"f{n}"), 1, 1, promoted_count=n) for n in (2, 1, 3)]
    live = LogState.of(view(listed(5, *markers))).live
    assert live.fewest_promoted() == 1
    assert live.fewest_promoted({markers[1].path}) == 2
    assert LiveFiles().fewest_promoted() > 200


def test_a_rebuilt_log_knows_what_data_files_have():
    table = with_rows(has_footers=True)
    promote(table)
    merge_all(table)
    table.append(3)
    table.rebuild(is_forced=True)
    assert COLUMN in table.snapshot().schema
    require_complete(table)


def put_source(table, name, number):
    table.store.put(f"in/{name}", encode_rows([{"id": number, "p": "a", "body": '{"x": 1}'}]))
    table.clock.advance(1)


def test_imported_files_lack_columns_until_they_are_filled():
    table = ImportTable()
    put_source(table, "x", 1)
    table.run_import()
    promote(table)
    put_source(table, "y", 2)
    table.run_import()
    assert COLUMN not in table.snapshot().schema
    assert table.snapshot().live.fewest_promoted() == 0
    merge_all(table)
    assert COLUMN in table.snapshot().schema
    assert table.ids() == [1, 2]


def test_s4_files_without_a_column_that_readers_see_are_refused():
    table = ImportTable()
    promote(table)
    table.append(1)
    put_source(table, "x", 2)
    table.put_source("y", 3)
    (refused,) = table.run_import().refused
    assert "send it with `icedb ingest`" in refused.reason
    assert table.ids() == [1, 3], "what has no text lacks nothing"
    require_complete(table)
