"""A worker's JVM hangs, or dies: it is ended, counted, and the worker's process is replaced, also where nobody asks it."""

import json
import signal
import subprocess
import sys

import psutil
import pytest
from processes import free_port, is_running, read_metrics, running, service_env
from waiting import LIMIT_S, wait_until

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
    died = 'icedb_merge_engine_failures_total{reason="died"}'
    with running(["-m", "icedb_merger"], env, tmp_path) as process:
        wait_until(lambda: read_metrics(port).get("icedb_merge_engine_up") == 1, "the engine is open")
        (child,) = psutil.Process(process.pid).children()
        (jvm,) = [each for each in child.children() if each.name() == "java"]
        before = read_metrics(port)
        jvm.send_signal(signal.SIGKILL)
        # Nothing but /metrics is asked: no task, no /healthz.
        wait_until(lambda: read_metrics(port).get(died, 0) > before.get(died, 0), "the death is counted")
        wait_until(lambda: not is_running(child), "the process is replaced")
        wait_until(lambda: read_metrics(port).get("icedb_merge_engine_up") == 1, "another engine is open")
        after = read_metrics(port)
        assert after[died] == before[died] + 1, "the count outlives the process that counted"
        assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
        assert process.poll() is None, "the worker's parent stays"
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    log = (tmp_path / "log").read_text()
    assert log.count('"engine_died"') == 1
    assert "process_stuck" not in log
