"""Random histories of a table that is published now and then: a model of its rows after each commit."""

import io
import random
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from iceberg_engines import rows_of
from icedb_client import Client
from icedb_engine.local_engine import LocalEngine
from icedb_iceberg import IcebergWriter, metadata_uri, publish_table
from icedb_iceberg.unfit_files import UnfitFiles
from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.changes.row_changes import delete_rows, rewrite_partitions
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.keys import log_name
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.mirrored_store import MirroredStore

MINUTE_MS = 60_000
PARTITIONS = (
    (), ("p",), ("d=day(ts)",), ("d=day(ts)", "p"), ("b=bucket[4](id)",), ("t=truncate[2](user)", "m=month(ts)"),
    ("h=hour(ts)",), ("t=truncate[100](id)",), ("y=year(ts)", "flag"),
)  # fmt: skip
TEXTS = (
    "", " ", "a", "ann", "Ann", "ü/%=+", "ü/%=", "日本語", "a b", "_", "__HIVE_DEFAULT_PARTITION__", "null", "%2F", "a=b", ".", "..",
    "x" * 40, "\t", "'", '"', "\\", "#?&", "😀",
)  # fmt: skip
NUMBERS = (0, 1, -1, 99, 100, 101, -100, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 1e300, 5e-324)
TIMES = (
    datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2026, 2, 28, 23, 59), datetime(2026, 3, 1),
    datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), datetime(2026, 3, 1, 7, 30, 0, 1),
)  # fmt: skip
LATE_COLUMNS = {
    "amount": pa.float64(), "odd name": pa.string(), "ü": pa.int64(), "a.b": pa.string(), "select": pa.bool_(), "day%": pa.date32(),
    "at": pa.timestamp("us"), "x/y=z": pa.string(), "Grüße 😀": pa.float64(), "1st": pa.int64(),
}  # fmt: skip


class History:
    """One table, changed by a seed.

    Attributes:
        seed: The seed.
        rows: Rows after each log file, by its name.
        published: URI of the metadata of the newest publication.
    """

    def __init__(self, root, seed, *, partition=None):
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = FakeClock(1_790_000_000_000, seed=str(seed))
        self.store = MirroredStore(root, self.clock.now_ms)
        self.place = Warehouse(self.store).table("t")
        self.writer = IcebergWriter()
        self.client = Client(store=f"file://{root}")
        self.rows = {}
        self.held_back = ""
        chance = self.random
        self.columns = {
            "id": pa.int64(),
            "user": pa.string(),
            "p": pa.string(),
            "ts": pa.timestamp("us"),
            "flag": pa.bool_(),
        }
        drawn = chance.choice(PARTITIONS)
        self.partition = drawn if partition is None else partition
        self.config = TableConfig.create(
            name="t",
            partition=tuple(map(PartitionField.parse, self.partition)),
            sort=tuple(chance.choice([(), ("id",), ("user", "id"), ("ts",)])),
            declared={"id": "BIGINT", "user": "VARCHAR", "p": "VARCHAR", "ts": "TIMESTAMP", "flag": "BOOLEAN"}
            if chance.random() < 0.8
            else {"ts": "TIMESTAMP"},
            evolution="widen",
            merge_fan_in=2,
            log_grace_ms=10 * MINUTE_MS,
            data_grace_ms=60 * MINUTE_MS,
            orphan_age_ms=180 * MINUTE_MS,
            seal_age_ms=1440 * MINUTE_MS,
        )
        create_table(self.place, self.config)
        self.clock.advance(1)
        self.engine = LocalEngine(self.store, clock=self.clock)

    def close(self):
        self.client.close()

    def run(self, steps):
        """Make so many changes, publish here and there, and at the end."""
        actions = (self.append, self.append, self.append, self.merge, self.delete, self.rewrite, self.remove, self.vacuum,
                   self.wait, self.publish, self.publish, self.grow)  # fmt: skip
        for _ in range(steps):
            self.random.choice(actions)()
        self.publish()

    def open(self):
        return Table.open(TableStore(self.store, self.place.paths), clock=self.clock, owner="histories")

    def work(self, function, *args, **options):
        result = function(self.open(), *args, **options)
        self.clock.advance(self.random.choice([1, 5, 1000]))
        self.remember()
        return result

    def is_held_back(self):
        """Whether the newest publication shows an older state than our own client does."""
        return not {log_name(file.key) for file in self.open().read_log().files} <= self.publication.log_names

    def remember(self):
        """Ask our own client for the rows, and remember them for the log files that have come."""
        names = [log_name(file.key) for file in self.open().read_log().files]
        new = [name for name in names if name not in self.rows]
        if new:
            found = rows_of(self.client.snapshot("t").to_arrow())
            self.rows |= dict.fromkeys(new, found)

    def append(self, *, ids=None):
        """Stage a batch of random rows, or one row for each of ``ids``, and flush it."""
        count = self.random.choice([1, 1, 2, 5, 20]) if ids is None else len(ids)
        columns = {
            name: pa.array([self.value(name) for _ in range(count)], kind) for name, kind in self.columns.items()
        }
        if ids is not None:
            columns["id"] = pa.array(ids, pa.int64())
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        stage_batch(self.place, body=sink.getvalue(), staging_format="parquet", batch_id=new_batch_id(self.clock))
        self.clock.advance(1)
        self.work(flush_table, self.engine.writer)

    def value(self, name):
        chance, kind = self.random, self.columns[name]
        sources = {field.column for field in self.config.partition}
        if name not in sources and chance.random() < 0.2:
            return None
        if kind == pa.bool_():
            return chance.random() < 0.5
        if kind == pa.date32():
            return chance.choice(TIMES).date()
        pool = {pa.int64(): NUMBERS, pa.float64(): FLOATS, pa.timestamp("us"): TIMES, pa.string(): TEXTS}[kind]
        if kind == pa.int64() and (name in LATE_COLUMNS or chance.random() < 0.7):
            return chance.randrange(1000)
        if kind == pa.timestamp("us") and (sources or chance.random() < 0.7):
            return datetime(2026, 2, 27) + timedelta(minutes=chance.randrange(3 * 1440))
        return chance.choice(pool)

    def grow(self):
        """Give the next batches one column more, or decimals in one of integers."""
        left = [name for name in LATE_COLUMNS if name not in self.columns]
        narrow = [name for name in self.columns if name in LATE_COLUMNS and self.columns[name] == pa.int64()]
        if narrow and self.random.random() < 0.3:
            self.columns[self.random.choice(narrow)] = pa.float64()
        elif left:
            name = self.random.choice(left)
            self.columns[name] = LATE_COLUMNS[name]

    def merge(self):
        self.work(merge_table, self.engine.merger, options=MergeOptions(full=self.random.random() < 0.7))

    def knows(self, name):
        """Whether the table has a column: one that is not declared and was null in each row has no type yet."""
        return any(name in dict(row) for rows in self.rows.values() for row in rows)

    def delete(self):
        if not self.rows:
            return
        condition = self.random.choice(['"id" % 3 = 0', '"user" IS NULL', "\"p\" = 'ü/%=+'", '"id" > 500', "flag"])
        if self.knows(next(name for name in self.columns if name in condition)):
            self.work(delete_rows, self.engine.changer, condition)

    def rewrite(self):
        if not self.rows:
            return
        query = self.random.choice(["select * from _rows", "select * from _rows where id % 2 = 0 or id is null"])
        if not self.knows("id"):
            query = "select * from _rows"
        matches = PartitionMatcher(parse_partition_filters(()), self.config)
        self.work(rewrite_partitions, self.engine.changer, query, matches=matches)

    def remove(self):
        def choose(_, infos):
            return [info.path for info in infos if info.path and self.random.random() < 0.3]

        self.work(remove_partitions, choose)

    def vacuum(self):
        self.work(vacuum_table)

    def wait(self):
        self.clock.advance(self.random.choice([2, 11, 61, 130]) * MINUTE_MS)

    def publish(self):
        if self.random.random() < 0.2:
            self.writer = IcebergWriter()  # another process, which remembers nothing
        try:
            publication = publish_table(self.open(), writer=self.writer)
        except UnfitFiles:
            self.work(rewrite_partitions, self.engine.changer, "select * from _rows",
                      matches=PartitionMatcher(parse_partition_filters(()), self.config))  # fmt: skip
            publication = publish_table(self.open(), writer=self.writer)
        self.clock.advance(1)
        self.published = metadata_uri(self.place, publication)
        self.publication = publication
