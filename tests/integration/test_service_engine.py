"""A worker whose engine dies while nobody uses it: that is counted, and the process replaced, also where nobody asks it.

The engine is a process that does nothing; a soak has Spark's (``test_spark_hang.py``).
"""

import psutil
import pytest
from processes import free_port, is_running, read_metrics
from waiting import LIMIT_S, wait_until
from worker_process import running_worker

pytestmark = pytest.mark.redis

ENGINE = """
import os, subprocess

os.environ["ICEDB_METRICS_PORT"] = "{port}"

class Mortal(Engine):
    def __init__(self):
        self.process = subprocess.Popen(["sleep", "3600"])

    def has_died(self):
        return self.process.poll() is not None

    def close(self):
        self.process.kill()
        self.process.wait()
"""


def test_the_engine_of_an_idle_worker_dies_and_nobody_has_to_ask_for_it_to_be_counted_and_replaced(redis, tmp_path):
    port, died = free_port(), 'icedb_janitor_engine_failures_total{reason="died"}'
    with running_worker(redis.url, tmp_path, before=ENGINE.format(port=port), engine="Mortal") as process:
        wait_until(lambda: read_metrics(port).get("icedb_janitor_engine_up") == 1, "the engine is open")
        (child,) = psutil.Process(process.pid).children()
        (engine,) = child.children()
        before = read_metrics(port)
        engine.kill()
        # Nothing but /metrics is asked: no task, no /healthz.
        wait_until(lambda: read_metrics(port).get(died, 0) > before.get(died, 0), "the death is counted")
        wait_until(lambda: not is_running(child), "the process is replaced")
        wait_until(lambda: read_metrics(port).get("icedb_janitor_engine_up") == 1, "another engine is open")
        after = read_metrics(port)
        assert after[died] == before[died] + 1, "the count outlives the process that counted"
        assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
        assert process.poll() is None, "the worker's parent stays"
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    log = (tmp_path / "log").read_text()
    assert log.count('"engine_died"') == 1
    assert "process_stuck" not in log
