"""A JVM that hangs is ended, so that whoever waits for it has an error and the worker's process can be replaced."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(300)]

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
