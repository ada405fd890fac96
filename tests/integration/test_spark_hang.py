"""A worker's JVM hangs, or dies: it is ended, counted, and the worker's process is replaced, also where nobody asks it."""

import json
import subprocess
import sys

import pytest
from processes import free_port, running, service_env
from worker_process import require_engine_replaced

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PROGRAM = """
import json, os, signal, threading, time
from icedb_engine.spark import spark_engine
from icedb_engine.spark.spark_watch import HangWatch
from icedb_engine.spark.spark_session import SparkSettings, is_session_alive, open_spark
from icedb_log.clock import SystemClock
from pyspark import SparkContext

spark = open_spark(SparkSettings(master="local[1]", app_name="hang", driver_memory="512m"))
process = SparkContext._gateway.proc
watch = HangWatch(lambda: is_session_alive(spark), every_s=0.2, limit_s=5)
told = {"before": is_session_alive(spark)}
clock = SystemClock()
clock.sleep_ms(2000)
told["kept"] = process.poll() is None
os.kill(process.pid, signal.SIGSTOP)
try:
    spark.range(10).count()
except Exception as error:
    told["error"] = type(error).__name__
told["code"] = process.wait(60)
told["after"] = is_session_alive(spark)
watch.close()
print(json.dumps(told))
os._exit(0)
"""


def test_a_jvm_that_stands_still_is_ended_and_a_call_that_waits_for_it_fails():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("error")
    assert told == {"before": True, "kept": True, "code": -9, "after": False}
    assert "jvm hangs" in done.stdout + done.stderr


def test_the_jvm_of_an_idle_worker_dies_and_nobody_has_to_ask_for_it_to_be_counted_and_replaced(redis_server, tmp_path):
    """As with an engine that takes no JVM, which `make test` kills: `test_service_engine.py`."""
    port = free_port()
    env = service_env(
        ICEDB_STORE=f"file://{tmp_path / 'warehouse'}",
        ICEDB_REDIS_URL=redis_server.url,
        ICEDB_METRICS_PORT=port,
        ICEDB_SPARK_MASTER="local[1]",
        ICEDB_SPARK_MEMORY_MB=512,
    )
    with running(["-m", "icedb_merger"], env, tmp_path) as process:
        require_engine_replaced(process, tmp_path, port=port, component="merge", engine="java")
