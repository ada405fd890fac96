"""Data files as flushes write them, with row groups of a few rows, for tests of merges. Needs no engine but DuckDB."""

import io
import math
from datetime import date, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from icedb_engine.arrow_types import make_schema
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit, Unit
from icedb_engine.writing.part_files import PartEncoder, PartLayout
from icedb_log.jobs import MergeGroup, RowChange
from icedb_log.model import FileMarker
from icedb_log.parquet.pages import check_page_sums

COLUMNS = {"s": "VARCHAR", "i": "BIGINT", "f": "DOUBLE", "t": "TIMESTAMP", "d": "DATE", "b": "BOOLEAN", "id": "BIGINT"}
EPOCH = datetime(2025, 6, 1)
VALUES = {
    "s": st.sampled_from(["", "a", "ab", "é", "\U0001f600", "￿", "x" * 70, "x" * 69 + "y", "y" * 300]),
    "i": st.sampled_from([-(2**63), -1, 0, 1, 2**62, 2**63 - 1]),
    "f": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 1e-300, 2.0, math.inf, math.nan]),
    "t": st.integers(-3, 9).map(lambda n: EPOCH + timedelta(microseconds=n)),
    "d": st.integers(-3, 9).map(lambda n: date(1970, 1, 1) + timedelta(days=n)),
    "b": st.booleans(),
}
GROUP_ROWS = 8

CONDITIONS = (
    "i > 0",
    "i IS NULL",
    "s = 'ab'",
    "s >= 'x' OR f IS NULL",
    "f > 1 AND NOT b",
    "NOT (f <= 1)",
    "t >= TIMESTAMP '2025-06-01 00:00:00.000002'",
    "d < DATE '1970-01-03'",
    "d IN (DATE '1970-01-01', DATE '1970-01-05')",
    "b",
    "s LIKE 'x%'",
    "i = 1 AND s IS NOT NULL",
    "id % 3 = 0",
    "true",
)


class Files:
    """Makes data files as a flush does, with small row groups."""

    def __init__(self, make_table, *, sort, **config):
        self.table = make_table(sort=sort, **config)
        self.table.config = self.table.config.model_copy(update={"row_group_rows": GROUP_ROWS})
        self.count = 0

    def put_all(self, files, scratch):
        """Put files of rows, each without some columns; return their markers, and the schema that they have."""
        markers, first = [], 0
        for rows, missing in files:
            markers.append(self.put(make_rows(rows, first).drop_columns(sorted(missing)), scratch))
            first += len(rows)
        return markers, {
            name: kind for name, kind in COLUMNS.items() if any(name not in missing for _, missing in files)
        }

    def put(self, rows: pa.Table, scratch, *, partition: str = "") -> FileMarker:
        """Sort rows and write them as a data file."""
        self.count += 1
        types = {name: COLUMNS[name] for name in rows.column_names}
        unit = self.table.unit(Unit, schema=types)
        layout = PartLayout(unit, types, (partition,))
        found = self.table.sort(rows, layout.sort_columns)
        encoder = PartEncoder(scratch / "next.parquet", layout)
        for first in range(0, found.num_rows, GROUP_ROWS):
            encoder.write_group(found.slice(first, GROUP_ROWS).combine_chunks())
        encoder.close(layout.make_footer(0))
        key = self.table.paths.data_key(partition=partition, file_id=f"{self.count:04d}")
        self.table.store.upload(key, encoder.path)
        size = encoder.path.stat().st_size
        return FileMarker(key, size, 0, row_count=found.num_rows, stats=encoder.stats.finish())

    def merge(self, *inputs, schema=COLUMNS):
        """Merge, and see that nothing was lost, moved out of order or said wrongly."""
        merged = self.table.merge(*inputs, schema=schema)
        for marker in merged.outputs:
            check_file(self.table, marker)
        return merged

    def delete(self, condition, *inputs, schema=COLUMNS):
        """Delete, with the same checks."""
        unit = self.table.unit(
            MergeUnit, schema=schema, group=MergeGroup("", tuple(inputs)), change=RowChange("delete", condition)
        )
        left = merge_unit(unit, self.table.store, clock=self.table.clock)
        for marker in left.outputs:
            check_file(self.table, marker)
        return left

    def read(self, outputs) -> pa.Table:
        """Return all rows of some files."""
        bodies = [self.table.store.get(marker.path).body for marker in outputs]
        return pa.concat_tables([pq.read_table(io.BytesIO(body)) for body in bodies], promote_options="default")


def check_file(table, marker):
    body = table.store.get(marker.path).body
    check_page_sums(body)
    rows = pq.ParquetFile(io.BytesIO(body)).read()
    assert rows.num_rows == marker.row_count
    sort = [name for name in table.config.sort if name in rows.column_names]
    if not sort:
        return
    assert keys(rows.select(sort)) == keys(table.sort(rows.select(sort), sort))


def keys(rows: pa.Table) -> list[tuple]:
    return [tuple("nan" if value != value else value for value in row.values()) for row in rows.to_pylist()]


def make_rows(rows: list[dict], first_id: int) -> pa.Table:
    schema = make_schema(COLUMNS)
    columns = [pa.array([row.get(name) for row in rows], schema.field(name).type) for name in VALUES]
    return pa.table([*columns, pa.array(range(first_id, first_id + len(rows)), pa.int64())], schema=schema)


row = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})
some_files = st.lists(
    st.tuples(st.lists(row, min_size=1, max_size=24), st.sets(st.sampled_from(list(VALUES)), max_size=2)),
    min_size=2,
    max_size=5,
)
sorts = st.permutations(list(VALUES)).flatmap(lambda names: st.integers(0, 3).map(lambda n: tuple(names[:n])))
