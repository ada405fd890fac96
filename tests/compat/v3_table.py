"""Tables as the original wire's own writer leaves them: made by hand from the rules.

That writer knows none of our fields, puts the name of its host where we have a commit id, writes JSON with spaces, merges
files together with the columns of their path, drops markers when it removes a partition, and cleans up without a trace.
"""

import json

import duckdb
from icedb_engine.local_engine import LocalEngine
from icedb_log.changes.row_changes import delete_rows, rewrite_partitions
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.rebuild import rebuild_table
from icedb_log.repair.rebuild_plan import RebuildOptions
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import PartitionMatcher
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.mirrored_store import MirroredStore

HOST = "ip-10-0-3-7.eu-west-1"


SCHEMA = {"u": "VARCHAR", "ts": "TIMESTAMP", "n": "BIGINT"}


GRACE_MS = 60_000


START_MS = 1_686_176_939_445


class V3Table(TableStore):
    """A table as the original wire's writer leaves it, and our services on it. A row is a number.

    Attributes:
        host: In the names of its log files.
        schema: Of its columns.
        grace_ms: How long data files of dead markers stay.
        start_ms: What the clock says at first.
    """

    host, schema, grace_ms, start_ms = HOST, SCHEMA, GRACE_MS, START_MS
    time_sql = "TIMESTAMP '2023-06-07 08:00:00' + INTERVAL (n) SECOND"

    def __init__(self, root):
        self.clock = FakeClock(START_MS)
        self.store = MirroredStore(root, self.clock.now_ms)
        self.paths = Warehouse(self.store).table("events").paths
        self.engine = duckdb.connect()
        self.scratch = root / "rows.parquet"
        self.files = 0

    def put(self, partition, *numbers, extra=""):
        """Upload a data file and return its marker."""
        self.files += 1
        key = f"events/_data/{partition}/00000000-0000-4000-8000-{self.files:012d}.parquet"
        values = ", ".join(map(str, numbers))
        self.engine.execute(
            f"COPY (SELECT 'a' AS u, {self.time_sql} AS ts, n{extra} FROM "
            f"(SELECT unnest([{values}])::BIGINT AS n)) TO '{self.scratch}' (FORMAT parquet, CODEC 'SNAPPY')"
        )
        body = self.scratch.read_bytes()
        self.store.put(key, body)
        return {"p": key, "b": len(body), "t": self.clock.now_ms()}

    def write(self, markers, tombstones=(), *, host=HOST, is_merged=False, schema=None, **layout):
        """Write a log file, field by field as the wire has it, and return its key."""
        time_ms = self.clock.now_ms()
        metadata = {"v": 1, "sch": 1, "f": 2 + len(tombstones), "t": time_ms}
        if tombstones:
            metadata["tmb"] = 2
        key = f"events/_log/{time_ms}{'_m' if is_merged else ''}_{host}.jsonl"
        lines = [metadata, self.schema if schema is None else schema, *tombstones, *markers]
        self.store.put(key, "\n".join(json.dumps(line, **layout) for line in lines).encode())
        self.clock.advance(5)
        return key

    def append(self, partition, *numbers, **options):
        """Insert rows; return the marker and the log file's key."""
        marker = self.put(partition, *numbers)
        return marker, self.write([marker], **options)

    def merge_as_v3(self, inputs, others=(), *, extra=""):
        """Merge appended files as the original does: with the others that their log files name."""
        partition = inputs[0][0]["p"].removeprefix("events/_data/").rpartition("/")[0]
        now_ms = self.clock.now_ms()
        numbers = [n for marker, _ in inputs for n in self.numbers_in(marker["p"])]
        output = self.put(partition, *numbers, extra=extra)
        self.clock.advance(3)
        dead = [{**marker, "tmb": now_ms} for marker, _ in inputs]
        logs = [{"p": key, "t": now_ms} for _, key in inputs]
        return output, self.write([*dead, *others, output], logs, is_merged=True)

    def numbers_in(self, *keys):
        """Return the rows of data files."""
        files = [self.store.uri(key) for key in keys]
        rows = self.engine.execute("SELECT n FROM read_parquet(?, union_by_name = true)", [files]).fetchall()
        return sorted(row[0] for row in rows)

    def adopt(self, **fields):
        """Give it a configuration, as ``icedb table create`` does."""
        options = {"sort": ("ts",), "merge_fan_in": 2, "data_grace_ms": GRACE_MS, "log_grace_ms": 20_000}
        fields = {"partition": (PartitionField.parse("u"), PartitionField.parse("d=day(ts)")), **options, **fields}
        config = TableConfig.create(name="events", orphan_age_ms=4 * GRACE_MS, **fields)
        create_table(self, config)

    def reader(self, **options):
        return LogReader(self, clock=self.clock, **options)

    def numbers(self, as_of_ms=None):
        """Return all rows, read as every reader of ours does."""
        snapshot = fold(self.reader().read(), as_of_ms=as_of_ms)
        compact = fold(self.reader(is_compact=True).read(), as_of_ms=as_of_ms)
        assert compact.snapshot_id == snapshot.snapshot_id
        return self.numbers_in(*(marker.path for marker in snapshot.live)) if snapshot.live else []

    def run(self, function, **options):
        result = function(self, clock=self.clock, **options)
        self.clock.advance(5)
        return result

    def work(self, function, *args, owner, paths=None, **options):
        """Run an operation on a table."""
        table = Table.open(TableStore(self.store, paths or self.paths), clock=self.clock, owner=owner)
        result = function(table, *args, **options)
        self.clock.advance(5)
        return result

    def time_of(self, number):
        return f"2023-06-07T09:00:{number % 60:02d}Z"

    def flush(self, *numbers):
        rows = [{"u": "a", "ts": self.time_of(n), "n": n} for n in numbers]
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        stage_batch(self, body=body, staging_format="ndjson", batch_id=new_batch_id(self.clock))
        return self.work(flush_table, LocalEngine(self.store, clock=self.clock).writer, owner="flush")

    def merge(self, **options):
        return self.work(
            merge_table,
            LocalEngine(self.store, clock=self.clock).merger,
            owner="merge",
            options=MergeOptions(**options),
        )

    def delete(self, condition):
        changer = LocalEngine(self.store, clock=self.clock).merger
        return self.work(delete_rows, changer, condition, owner="delete")

    def rewrite(self, query):
        matches = PartitionMatcher((), read_table_config(self))
        changer = LocalEngine(self.store, clock=self.clock).merger
        return self.work(rewrite_partitions, changer, query, matches=matches, owner="rewrite")

    def rebuild(self, **options):
        footers = ParquetFooterReader(self.store)
        return self.work(rebuild_table, footers=footers, owner="rebuild", options=RebuildOptions(**options))

    def columns_of(self, key):
        return [
            row[0]
            for row in self.engine.execute(
                "DESCRIBE FROM read_parquet(?, hive_partitioning = false)", [self.store.uri(key)]
            ).fetchall()
        ]

    def vacuum(self):
        return self.work(vacuum_table, owner="")

    def problems(self):
        """Return what fsck finds, but for what it says of a configuration that does not say how files are laid out."""
        found = self.run(fsck_table).findings
        return [each for each in found if each.code != "config-mismatch"]

    def deep_problems(self):
        """Return what a deep fsck finds, but for the same, and notes."""
        options = FsckOptions(footers=ParquetFooterReader(self.store))
        found = self.run(fsck_table, options=options).findings
        return [each for each in found if each.code != "config-mismatch" and each.severity != "note"]
