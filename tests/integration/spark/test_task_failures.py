"""Requests to the store that fail inside Spark's tasks are counted by the service that started them."""

import pytest
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_tasks import OK, TaskUnits, make_answer, read_answers, watch_requests
from icedb_local.chaos.fault_proxy import FaultProxy, ProxyFault
from icedb_log.clock import SystemClock
from icedb_log.store.request_failures import listen_to_failures, stop_listening
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings

pytestmark = [pytest.mark.s3, pytest.mark.spark]

CLOCK = SystemClock()


@pytest.fixture
def told():
    failures = []

    def note(operation, reason):
        failures.append((operation, reason))

    listen_to_failures(note)
    yield failures
    stop_listening(note)


def make_read_task(settings, units):
    def read(number):
        watch_requests()
        return make_answer(number, OK, settings.open().store.get(units.read(number)).body.decode())

    return read


def test_what_a_retry_hides_in_a_task_is_told_where_it_is_counted(spark, s3_server, told):
    with FaultProxy(int(s3_server.endpoint_url.rpartition(":")[2]), {"door": 0}, clock=CLOCK) as proxy:
        options = S3Options(
            endpoint_url=f"http://127.0.0.1:{proxy.ports['door']}", access_key_id="dev", secret_access_key="dev"
        )
        settings = StoreSettings(f"s3://{s3_server.bucket}/task-failures", options)
        key = f"task-failures/{CLOCK.new_id()}"
        settings.open().store.put(key, b"x")
        units = TaskUnits.of([key])
        runner, read = SparkRunner(spark, settings), make_read_task(settings, units)
        hits = proxy.begin(ProxyFault("status", status=503, limit=2))
        assert read_answers(runner.collect(read, units), [0]) == ["x"]
        assert hits.total == 2
        assert told == [("read", "throttled")] * 2
        assert read_answers(runner.collect(read, units), [0]) == ["x"]
        assert len(told) == 2, "each is told once"
