"""A small table in a memory store on which one unit of work runs without Spark."""

import contextlib
import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.limits import EngineLimits, FlushUnitLimits
from icedb_engine.units.flush_unit import flush_unit
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import DataFile, FlushUnit, MergeUnit, ReadUnit, UnitResult, WriteUnit
from icedb_log.clock import new_batch_id
from icedb_log.errors import NotFound
from icedb_log.jobs import MergedGroup, MergeGroup, SizeClass, StagedBatch
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.units import MIB
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore

SQL_TYPES = {arrow_type: sql_type for sql_type, arrow_type in ARROW_TYPES.items()}
COMMIT_ID = "c0ffee"
_ENGINE = duckdb.connect(config={"threads": 1})
"""One for all tests: to open one takes longer than what it is asked."""
TIME_MS = 1_700_000_000_000


@dataclass
class PartsTable:
    """One table: stage batches, flush them, merge files, read what was written."""

    config: TableConfig
    engine: EngineLimits
    limits: FlushUnitLimits = field(default_factory=FlushUnitLimits)
    clock: FakeClock = field(default_factory=FakeClock)
    paths: TablePaths = field(default_factory=lambda: TablePaths("events", "wh/events"))
    sizes: SizeClass | None = None

    def __post_init__(self):
        self.store = MemoryObjectStore(self.clock.now_ms)

    def stage(self, *rows, body: bytes | None = None, staging_format: str = "ndjson") -> StagedBatch:
        """Stage rows (dicts), or the bytes of ``body``."""
        batch_id = new_batch_id(self.clock)
        if body is None:
            body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        key = self.paths.staging_key(batch_id=batch_id, staging_format=staging_format)
        self.store.put(key, body)
        return StagedBatch(key, batch_id, staging_format, len(body), TIME_MS)

    def job(self, kind, **more):
        """Make a job for the table."""
        told = {"paths": self.paths, "config": self.config, "schema": {}, "commit_id": COMMIT_ID, "time_ms": TIME_MS}
        return kind(**{**told, **more})

    def unit(self, kind, **more):
        """Make a unit of work."""
        return self.job(kind, **{"engine": self.engine, **more})

    def flush_unit(self, *batches: StagedBatch, schema=None, **more) -> FlushUnit:
        """Make a unit of some batches."""
        schema = {**(schema or {}), **self.config.declared}
        return self.unit(FlushUnit, schema=schema, batches=batches, limits=self.limits, sizes=self.sizes, **more)

    def write_unit(self, columns, **more) -> WriteUnit:
        """Make a unit that writes rows with these columns."""
        return self.unit(WriteUnit, schema=columns, **more)

    def read_unit(self, columns, *files, **more) -> ReadUnit:
        """Make a unit that reads data files."""
        return ReadUnit(
            paths=self.paths, columns=columns, files=tuple(map(DataFile.of, files)), engine=self.engine, **more
        )

    def flush(self, *batches: StagedBatch, schema=None, refused=None) -> UnitResult:
        """Flush batches as one unit; ``refused`` are columns that cannot become wider, with the reason."""
        unit = self.flush_unit(*batches, schema=schema, refused_widenings=refused or {})
        return flush_unit(unit, self.store, clock=self.clock)

    def reason(self, *batches: StagedBatch, schema=None) -> str:
        """Flush batches, and return the reason why the only rejected one was rejected."""
        result = self.flush(*batches, schema=schema)
        assert len(result.rejected) == 1, result
        return next(iter(result.rejected.values()))

    def merge(self, *inputs: FileMarker, schema=None, engine=None) -> MergedGroup:
        """Merge data files of one partition as one unit; by default of a table that has all of their columns."""
        partition = self.paths.partition_of(inputs[0].path)
        schema = schema or self.united_types(inputs)
        unit = self.unit(MergeUnit, schema=schema, group=MergeGroup(partition, inputs), engine=engine or self.engine)
        result = merge_unit(unit, self.store, clock=self.clock)
        before, after = ([self.parquet(marker).read() for marker in markers] for markers in (inputs, result.outputs))
        if not after:
            assert not sum(rows.num_rows for rows in before)
            return result
        written = after[0].schema
        assert {name for rows in before for name in rows.column_names if name in schema} == {*written.names}
        assert checksums(after, written) == checksums(before, written), "a merge has changed values"
        assert result.contents.differences == (), "and where it has not, footers do not say so"
        return result

    def united_types(self, markers) -> dict[str, str]:
        """Return column to SQL type of some data files, as far as they can be read."""
        types: dict[str, str] = {}
        for marker in markers:
            with contextlib.suppress(NotFound, pa.ArrowException, OSError):
                for column in self.parquet(marker).schema_arrow:
                    types.setdefault(column.name, SQL_TYPES.get(column.type, str(column.type).upper()))
        return types

    def put_file(self, table, file_id: str, *, partition: str = "", **options) -> FileMarker:
        """Write an Arrow table as a data file."""
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        key = self.paths.data_key(partition=partition, file_id=file_id)
        self.store.put(key, sink.getvalue())
        return FileMarker(key, len(sink.getvalue()), TIME_MS, row_count=table.num_rows)

    def parquet(self, marker: FileMarker) -> pq.ParquetFile:
        """Open a data file."""
        return pq.ParquetFile(io.BytesIO(self.store.get(marker.path).body))

    @staticmethod
    def sort(rows: pa.Table, columns) -> pa.Table:
        """Sort rows by some columns as the native engine does, nulls last."""
        order = ", ".join(f'"{name}" NULLS LAST' for name in columns)
        with _ENGINE.cursor() as engine:
            engine.register("rows", rows)
            return engine.execute(f"SELECT * FROM rows {order and 'ORDER BY '}{order}").to_arrow_table()

    def rows(self, *markers: FileMarker) -> list[dict]:
        """Read data files, one after the other."""
        return [row for marker in markers for row in self.parquet(marker).read().to_pylist()]


def checksums(tables: list[pa.Table], schema: pa.Schema) -> dict[str, tuple[int, int]]:
    """Return nulls and a checksum of each column and of whole rows, whatever the order of files and rows.

    A column that a table lacks is null in all its rows; values are compared as they are in ``schema``.
    """
    names = schema.names
    rows = pa.concat_tables(
        pa.table(
            {
                name: table[name].cast(schema.field(name).type)
                if name in table.column_names
                else pa.nulls(table.num_rows, schema.field(name).type)
                for name in names
            },
            schema=schema,
        )
        for table in tables
    )
    quoted = [f'"{name}"' for name in names]
    terms = {
        name: (f"count(*) - count({each})", f"sum(hash({each}))") for name, each in zip(names, quoted, strict=True)
    }
    terms["(rows)"] = ("count(*)", f"sum(hash({', '.join(quoted)}))")
    sql = ", ".join(term for pair in terms.values() for term in pair)
    with _ENGINE.cursor() as engine:
        found = engine.register("rows", rows).execute(f"SELECT {sql} FROM rows").fetchone()
    return dict(zip(terms, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.fixture
def make_table(tmp_path: Path):
    """Return a function that makes a table: partition texts, sort, declared types, other configuration."""

    def make(
        *partition: str, limits: FlushUnitLimits | None = None, memory_bytes: int = 256 * MIB, **config
    ) -> PartsTable:
        fields = tuple(PartitionField.parse(text) for text in partition)
        config = {"evolution": "add_columns", "on_bad_rows": "quarantine_batch", **config}
        engine = EngineLimits(memory_bytes=memory_bytes, thread_count=1, scratch_folder=str(tmp_path / "scratch"))
        table = PartsTable(TableConfig.create(name="events", partition=fields, **config), engine)
        return table if limits is None else replace(table, limits=limits)

    yield make
    assert list(tmp_path.glob("scratch/*")) == [], "a unit left its scratch folder behind"
