"""A batch that ends the process of the task that reads it, on a real Spark session (I5)."""

import json
import os

import pytest
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.spark.spark_blobs import SparkBlobs
from icedb_engine.spark.spark_jobs import spark_errors
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_tasks import TaskUnits, encode_shared, make_task, read_answers
from icedb_engine.work import decode_result
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import JobCrashed
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig

pytestmark = pytest.mark.spark

CLOCK = SystemClock()


class KillingRunner(SparkRunner):
    """Ends the process of each task whose unit has a certain batch."""

    deadly = ""

    def checking(self, check_alive):
        runner = KillingRunner(self.spark, self.store, rules=self._rules, check_alive=check_alive)
        runner.deadly = self.deadly
        return runner

    def run(self, kind, units, **_):
        told, deadly = TaskUnits.of(encode_shared(units)), self.deadly
        task = make_task(kind, self.store, told)

        def answer(number):
            if deadly in told.read(number):
                os._exit(1)
            return task(number)

        with spark_errors("a flush job"):
            rows = self.collect(answer, told)
        return [decode_result(kind, body) for body in read_answers(rows, range(len(units)))]

    def open_blobs(self):
        return KillingBlobs(self)


class KillingBlobs(SparkBlobs):
    """The same, where some units read and others write."""

    def parse(self, units):
        runner = self._runner
        if any(runner.deadly in batch.batch_id for unit in units for batch in unit.batches):
            runner.run("flush", units)
            raise AssertionError("a task lives on")
        return super().parse(units)


@pytest.mark.parametrize("direct_bytes", [1 << 30, 0], ids=["one job", "two jobs"])
def test_the_others_are_committed_and_that_one_goes_to_quarantine(spark, tmp_path, direct_bytes):
    settings = StoreSettings(f"file://{tmp_path}/store")
    place = settings.open().table("t")
    create_table(place, TableConfig.create(name="t"))
    ids = [new_batch_id(CLOCK) for _ in range(4)]
    for number, batch_id in enumerate(ids):
        body = json.dumps({"n": number}).encode()
        stage_batch(place, body=body, staging_format="ndjson", batch_id=batch_id)
    runner = KillingRunner(spark, settings)
    runner.deadly = ids[2]
    batch = FlushUnitLimits(unit_target_bytes=1)
    limits = JobLimits(batch, EngineLimits(scratch_folder=str(tmp_path / "scratch")), direct_bytes=direct_bytes)
    writer = FlushDriver(runner, clock=CLOCK, limits=limits)
    while flush_table(Table.open(place, clock=CLOCK), writer).has_more:
        pass
    live = fold(Table.open(place, clock=CLOCK).read_log()).live
    assert sum(marker.row_count for marker in live) == 3
    (entry,) = list_quarantined(place)
    assert entry.batch_id == ids[2]
    assert "Python worker exited unexpectedly" in entry.reason


def test_an_error_that_nobody_foresaw_is_told_by_its_task(spark, tmp_path):
    """Spark does not try it again, and the message says where it was."""
    settings = StoreSettings(f"file://{tmp_path}/store")
    runner = SparkRunner(spark, settings)
    with pytest.raises(JobCrashed, match=r"a unit crashed while reading batches: AttributeError: .*\(.*\.py:\d+\)"):
        raise_from(runner)


def raise_from(runner):
    from icedb_engine.units.run_unit import run_unit  # noqa: PLC0415 - in the task as well

    def answer(number):
        try:
            run_unit("flush", None, None, clock=CLOCK)
        except JobCrashed as error:
            return {"unit": number, "outcome": "JobCrashed", "body": str(error), "failures": None}
        raise AssertionError

    told = TaskUnits.of(["{}"])
    read_answers(runner.collect(answer, told), [0])
