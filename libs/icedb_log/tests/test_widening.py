"""Columns that become wider: what a commit may log (S2), and histories in which some do."""

import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.commit.commit import Added, AppendCommit
from icedb_log.errors import Fenced, SchemaConflict
from icedb_log.log.codec import decode_log_file
from icedb_log.log.widening import LoggedSchema, fixed_columns, grow_schema
from icedb_log.model import Widening
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_sim.tables.row_files import RowFileMerger
from icedb_sim.tables.small_table import SmallTable

OLD = Widening("DOUBLE", 5)
KNOWN = LoggedSchema({"a": "BIGINT", "d": "DATE", "v": "VARCHAR", "w": "BIGINT"}, {"w": OLD})


def config(**fields):
    return TableConfig.create(name="t", **fields)


def grow(after, **fields):
    return grow_schema("t", KNOWN, after={**KNOWN.effective, **after}, config=config(**fields), since_ms=9)


def test_a_new_column_is_logged_as_it_is_and_what_was_widened_stays():
    grown = grow({"new": "DOUBLE"})
    assert dict(grown.logged) == {**KNOWN.logged, "new": "DOUBLE"}
    assert dict(grown.widened) == {"w": OLD}
    assert dict(grown.effective) == {"a": "BIGINT", "d": "DATE", "v": "VARCHAR", "w": "DOUBLE", "new": "DOUBLE"}


@pytest.mark.parametrize(("column", "wide"), [("a", "DOUBLE"), ("d", "TIMESTAMP")])
def test_a_column_is_widened_by_its_policy_or_its_declaration(column, wide):
    for fields in (
        {"evolution": "widen"},
        {"declared": {column: wide}},
        {"evolution": "widen", "declared": {column: wide}},
    ):
        grown = grow({column: wide}, **fields)
        assert dict(grown.logged) == dict(KNOWN.logged)
        assert dict(grown.widened) == {"w": OLD, column: Widening(wide, 9)}


@pytest.mark.parametrize(
    ("after", "fields"),
    [
        ({"a": "DOUBLE"}, {"evolution": "add_columns"}),
        ({"a": "DOUBLE"}, {"evolution": "strict", "declared": {"d": "TIMESTAMP"}}),
        ({"a": "DOUBLE"}, {"evolution": "widen", "declared": {"a": "BIGINT"}}),
        ({"a": "DOUBLE"}, {"evolution": "widen", "sort": ("a",)}),
        ({"a": "DOUBLE"}, {"evolution": "widen", "partition": (PartitionField(name="p", column="a"),)}),
        ({"a": "VARCHAR"}, {"evolution": "widen"}),
        ({"a": "VARCHAR"}, {"declared": {"a": "VARCHAR"}}),
        ({"a": "TIMESTAMP"}, {"evolution": "widen"}),
        ({"d": "DOUBLE"}, {"evolution": "widen"}),
        ({"v": "BIGINT"}, {"evolution": "widen"}),
        ({"w": "BIGINT"}, {"evolution": "widen"}),
        ({"w": "BIGINT"}, {"declared": {"w": "BIGINT"}}),
    ],
)
def test_any_other_change_of_a_type_is_refused(after, fields):
    (column,) = after
    with pytest.raises(SchemaConflict, match=f"table t: column '{column}' is .* in the log and {after[column]}"):
        grow(after, **fields)


def test_a_column_does_not_vanish():
    with pytest.raises(SchemaConflict, match="column 'v' is VARCHAR in the log and None"):
        grow_schema("t", KNOWN, after={"a": "BIGINT", "d": "DATE", "w": "DOUBLE"}, config=config(), since_ms=9)


def test_strict_takes_declared_columns_and_those_of_the_log_only():
    fields = {"evolution": "strict", "declared": {"new": "DATE"}}
    assert dict(grow({"new": "DATE"}, **fields).logged) == {**KNOWN.logged, "new": "DATE"}
    with pytest.raises(SchemaConflict, match="'other' is neither in the log nor declared"):
        grow({"new": "DATE", "other": "DATE"}, **fields)


def test_the_types_of_partition_and_sort_columns_are_fixed():
    assert fixed_columns(config(partition=(PartitionField.parse("u=bucket[4](user)"),), sort=("a",))) == {"user", "a"}


@pytest.fixture
def table():
    return SmallTable(evolution="widen", data_grace_ms=1000, log_grace_ms=1000)


def log_lines(table):
    logs = [decode_log_file(key, body) for key, body in table.log_objects()]
    return [(dict(log.schema), dict(log.widened)) for log in logs]


def test_s2_a_widening_says_since_when_after_all_commits_before_whatever_their_clocks(table):
    stage_and_flush(table, 1)
    newest_ms = table.snapshot().last_commit_ms
    table.clock.set_wall(newest_ms - 60_000)
    with AppendCommit(table.opened("behind")) as commit:
        log = commit.build(Added(schema={**commit.known.effective, "n": "DOUBLE"}))
        assert (log.time_ms, dict(log.widened)) == (newest_ms - 60_000, {"n": Widening("DOUBLE", newest_ms + 1)})


def stage_and_flush(table, value, number=1):
    table.stage([{"id": number, "p": "a", "n": value}])
    return table.flush()


def test_a_widening_outlives_merge_strip_and_vacuum_and_later_flushes(table):
    for number, value in enumerate((1, 2, 2.5, 3)):
        stage_and_flush(table, value, number)
    narrow = {"id": "BIGINT", "p": "VARCHAR", "n": "BIGINT"}
    wide = log_lines(table)[2][1]
    assert wide["n"].sql_type == "DOUBLE"
    assert log_lines(table) == [(narrow, {}), (narrow, {}), (narrow, wide), (narrow, wide)]
    assert dict(table.snapshot().schema) == {**narrow, "n": "DOUBLE"}
    for _ in range(3):
        table.merge(full=True)
        table.clock.advance(5000)
        table.vacuum()
    assert log_lines(table) == [(narrow, wide)]
    assert dict(table.snapshot().schema) == {**narrow, "n": "DOUBLE"}
    assert table.ids() == [0, 1, 2, 3]


def test_the_data_path_is_told_the_wide_type_and_merges_write_it(table):
    stage_and_flush(table, 1)
    stage_and_flush(table, 1.5)
    told = []

    class Writer:
        def write_batches(self, job):
            told.append(dict(job.schema))
            raise SchemaConflict("enough")

    table.stage([{"id": 9, "p": "a"}])
    with pytest.raises(SchemaConflict):
        table.flush(writer=Writer())

    class Merger:
        def merge_groups(self, job):
            told.append(dict(job.schema))
            raise SchemaConflict("enough")

    with pytest.raises(SchemaConflict):
        table.merge(merger=Merger())
    assert told == [{"id": "BIGINT", "p": "VARCHAR", "n": "DOUBLE"}] * 2


class Slow:
    """A merger, during whose work a column becomes wider."""

    def __init__(self, table):
        self.table = table
        self.inner = RowFileMerger(table.store, table.clock)

    def merge_groups(self, job):
        stage_and_flush(self.table, 2.5, 3)
        return self.inner.merge_groups(job)


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_merge_planned_before_a_widening_does_not_undo_it(table, is_declared):
    stage_and_flush(table, 1, 1)
    stage_and_flush(table, 2, 2)
    if is_declared:
        alter_table_config(table, {"declared": {"n": "DOUBLE"}}, clock=table.clock)
        table.merge(merger=Slow(table))
    else:
        with pytest.raises(Fenced):  # S2: a widening by proof takes the fence of merges
            table.merge(merger=Slow(table))
    assert dict(table.snapshot().schema)["n"] == "DOUBLE"
    table.merge(full=True)
    table.clock.advance(5000)
    table.vacuum()
    assert dict(table.snapshot().schema)["n"] == "DOUBLE"
    assert table.ids() == [1, 2, 3]
