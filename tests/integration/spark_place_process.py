"""One run of everything that a worker does with Spark, in the place that ``ICEDB_SPARK_MASTER`` names.

A process of its own: PySpark knows one driver, or one kind of session, in a process. Prints one JSON object: what is
in the tables afterwards, and where tasks ran.
"""

import io
import itertools
import json
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_engine.imports.import_unit import open_source
from icedb_engine.jobs import import_driver
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.limits import FlushUnitLimits, JobLimits
from icedb_engine.spark.spark_engine import open_spark_engine
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_watch import WatchRules
from icedb_log.changes.row_changes import delete_rows
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_service.settings import SparkServiceSettings, load_settings

CLOCK = SystemClock()
BATCHES, ROWS, DAYS, SOURCES = 4, 60, 3, 4
SPREAD = JobLimits(FlushUnitLimits(unit_target_bytes=1), direct_bytes=0, write_task_bytes=1000)
"""Each batch becomes a unit of its own, and each partition a write task."""


def make_event(n):
    return {"ts": f"2026-01-0{1 + n % DAYS}T00:00:00Z", "event": f"e{n % 5}", "n": n}


class Place:
    def __init__(self):
        self.settings = load_settings(SparkServiceSettings)
        self.interrupted = []
        self.engine = open_spark_engine(self.settings, app_name="test", on_interrupt=self.interrupted.append)
        self.warehouse = self.settings.store_settings.open()
        self.store = self.warehouse.store
        self.spread = FlushDriver(
            SparkRunner(self.engine.spark, self.settings.store_settings), clock=CLOCK, limits=SPREAD
        )

    def create(self, name, **options):
        fields = (PartitionField.parse("d=day(ts)"),)
        create_table(
            TableStore(self.store, self.warehouse.table(name).paths),
            TableConfig.create(name=name, partition=fields, **options),
        )
        return self.warehouse.table(name).paths

    def append(self, paths, *numbers, writer):
        for chosen in numbers:
            body = "".join(f"{json.dumps(make_event(n))}\n" for n in chosen).encode()
            stage_batch(TableStore(self.store, paths), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))
        return flush_table(Table.open(TableStore(self.store, paths), clock=CLOCK, owner="test"), writer)

    def rows(self, paths):
        live = fold(LogReader(TableStore(self.store, paths), clock=CLOCK).read()).live
        tables = [pq.read_table(io.BytesIO(self.store.get(marker.path).body), partitioning=None) for marker in live]
        rows = pa.concat_tables(tables, promote_options="default").sort_by("n").to_pylist()
        return len(live), [[row["ts"].isoformat(), row["event"], row["n"]] for row in rows]

    def flush_and_merge(self):
        paths = self.create("events", sort=("event", "n"))
        batches = [range(number * ROWS, (number + 1) * ROWS) for number in range(BATCHES)]
        spread = self.append(paths, *batches[1:], writer=self.spread)
        direct = self.append(paths, batches[0], writer=self.engine.writer)
        flushed = self.rows(paths)
        merged = merge_table(
            Table.open(TableStore(self.store, paths), clock=CLOCK, owner="test"),
            self.engine.merger,
            options=MergeOptions(full=True),
        )
        deleted = delete_rows(
            Table.open(TableStore(self.store, paths), clock=CLOCK, owner="test"), self.engine.changer, "n % 10 = 3"
        )
        return {
            "flushed": flushed,
            "files": [spread.file_count, direct.file_count, merged.input_count, merged.output_count],
            "deleted": deleted.rows_removed,
            "rows": self.rows(paths),
        }

    def run_insert_query(self):
        query = "select ts, concat(event, '!') as event, n + 1 as n from _rows where n % 2 = 0"
        types = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT"}
        paths = self.create("queried", source=types, declared=types, insert_query=query)
        self.append(paths, range(10), range(10, 20), writer=self.spread)
        return self.rows(paths)[1]

    def run_import(self):
        import_driver.DIRECT_FILES, import_driver.FOOTERS_PER_UNIT, import_driver.COPIES_PER_UNIT = 0, 2, 2
        for number in range(SOURCES):
            sink = io.BytesIO()
            stamp = pa.array([1767225600_000000], pa.timestamp("us"))
            pq.write_table(pa.table({"ts": stamp, "event": ["in"], "n": [number]}), sink)
            self.store.put(f"{self.warehouse.root}/in/{number}.parquet", sink.getvalue())
        paths = self.create("imported")
        opener = open_source(self.settings.store_settings.s3)
        sources = list_sources(
            [parse_pattern(f"{self.settings.store}/in/*.parquet")], open_store=opener, allowed=["s3://"]
        )
        import_files(
            Table.open(TableStore(self.store, paths), clock=CLOCK, owner="test"),
            self.engine.importer,
            sources,
            options=ImportOptions(),
        )
        return self.rows(paths)[1]

    def interrupt(self):
        """A task that never ends is interrupted; then two tasks run at the same time, so no core is held."""

        def spin(chunks):
            for chunk in chunks:
                while True:
                    time.sleep(0.001)
                yield chunk

        def tell(chunks):
            for chunk in chunks:
                yield pa.RecordBatch.from_pydict({"place": [str(Path.cwd())] * chunk.num_rows})

        spark, begun = self.engine.spark, CLOCK.monotonic_ms()

        def check_alive():
            if CLOCK.monotonic_ms() - begun > 1000:
                raise Fenced("another worker took over")

        rules = WatchRules(interval_s=0.05, on_interrupt=self.interrupted.append)
        runner = SparkRunner(spark, self.settings.store_settings, rules=rules, check_alive=check_alive)
        try:
            with runner.job("tasks that never end"):
                spark.range(0, 2, 1, 2).mapInArrow(spin, schema="id BIGINT").collect()
        except Fenced as error:
            outcome = str(error)
        rows = spark.range(0, 2, 1, 2).mapInArrow(tell, schema="place STRING", barrier=True).collect()
        return outcome, sorted(row["place"] for row in rows)


def main():
    times = [CLOCK.monotonic_ms()]
    place = Place()
    answer = {}
    for name in ("flush_and_merge", "run_insert_query", "run_import", "interrupt"):
        times.append(CLOCK.monotonic_ms())
        answer[name] = getattr(place, name)()
    is_alive = place.engine.is_alive()
    place.engine.close()
    times.append(CLOCK.monotonic_ms())
    steps_ms = [after - before for before, after in itertools.pairwise(times)]
    print(
        json.dumps(
            {**answer, "interrupted": place.interrupted, "alive": [is_alive, place.engine.is_alive()], "ms": steps_ms}
        )
    )


if __name__ == "__main__":
    sys.exit(main())
