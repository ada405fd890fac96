"""A worker's operations on a cluster, as its tasks run them: lock, fence, jobs, commit; one after the other, as asked.

A process of its own, so that it can be killed. Reads one JSON object a line, ``{"do": "merge", "table": "events"}``, and
answers with one: ``{"ok": …}`` or ``{"error": [class, message]}``. The first line that it writes says that it is open.
"""

import json
import sys
from functools import partial

import structlog
from icedb_engine.imports.import_unit import open_source
from icedb_engine.jobs import import_driver
from icedb_engine.limits import FlushUnitLimits, JobLimits
from icedb_engine.spark import spark_engine
from icedb_engine.spark.spark_watch import WatchRules
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError
from icedb_log.ingest.flush import flush_table
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.operations import ChangeRequest, ImportRequest
from icedb_service.redis_clients import TableLock, open_redis
from icedb_service.settings import SparkServiceSettings, load_settings

CLOCK = SystemClock()
LIMITS = JobLimits(FlushUnitLimits(unit_target_bytes=1), direct_bytes=0, write_task_bytes=1000)
"""Each batch becomes a unit of its own, and each partition a write task: as those of a large table would."""
SPLIT_BYTES = 1000
spark_engine.WatchRules = partial(WatchRules, no_executor_limit_ms=20_000)
import_driver.DIRECT_FILES, import_driver.FOOTERS_PER_UNIT, import_driver.COPIES_PER_UNIT = 0, 2, 2


class Operations:
    def __init__(self):
        self.settings = load_settings(SparkServiceSettings)
        self.engine = spark_engine.open_spark_engine(self.settings, app_name="cluster", limits=LIMITS)
        self.context = self.engine.spark.sparkContext
        self.warehouse = self.settings.store_settings.open()
        self.masters = [
            open_redis(url, timeout_ms=self.settings.redis_timeout_ms) for url in self.settings.lock_master_urls
        ]

    def lock(self, role, table):
        return TableLock(self.masters, f"{role}:{table}", ttl_ms=self.settings.lock_ttl_ms, clock=CLOCK)

    def run(self, role, table, work):
        with self.lock(role, table) as lock:
            opened = Table.open(self.warehouse.table(table), clock=CLOCK, owner=self.context.applicationId)
            return work(opened.watched_by(lock.check_alive))

    def flush(self, table):
        return self.run("ingest", table, lambda opened: flush_table(opened, self.engine.writer)).file_count

    def merge(self, table):
        def work(opened):
            while (done := merge_table(opened, self.engine.merger, options=MergeOptions(full=True))).has_more:
                opened.check_alive()
            return done.output_count

        return self.run("merger", table, work)

    def change(self, table, kind, sql, partitions=None):
        request = ChangeRequest.parse(table, kind=kind, sql=sql, partitions=partitions, dry_run=False)
        return self.run("merger", table, lambda opened: request.run(opened, self.engine.changer).rows_removed)

    def take_in(self, table, sources):
        opener = open_source(self.settings.store_settings.s3)
        opened = Table.open(self.warehouse.table(table), clock=CLOCK, owner=self.context.applicationId)
        result, _ = ImportRequest([sources]).run(
            opened, self.engine.importer, open_store=opener, allowed=["s3://"], hold=lambda: self.lock("ingest", table)
        )
        return result.file_count

    def copy(self, table, into, where):
        """Read a table, and append it to another one, both by the data source."""
        read = self.engine.spark.read.format("icedb").option("table", table).option("splitBytes", SPLIT_BYTES)
        rows = read.option("where", where).load()
        rows.write.format("icedb").option("table", into).option("writeId", f"{table}-{into}").mode("append").save()
        return read.option("where", where).load().count()

    def tell(self, **question):
        """Answer, when the event log has everything that was done."""
        try:
            answer = {"ok": getattr(self, question.pop("do"))(**question)}
        except IceDBError as error:
            answer = {"error": [type(error).__name__, str(error)], "alive": self.engine.is_alive()}
        if self.engine.is_alive():
            self.context._jsc.sc().listenerBus().waitUntilEmpty()
        return answer


def main():
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    operations = Operations()
    print(json.dumps({"application": operations.context.applicationId}), flush=True)
    for line in sys.stdin:
        print(json.dumps(operations.tell(**json.loads(line))), flush=True)
    operations.engine.close()


if __name__ == "__main__":
    main()
