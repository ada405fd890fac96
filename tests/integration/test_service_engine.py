"""A worker whose engine dies while nobody uses it: that is counted, and the process replaced, also where nobody asks it.

The engine is a process that does nothing; a soak has Spark's (``test_spark_hang.py``).
"""

import pytest
from processes import free_port
from worker_process import require_engine_replaced, running_worker

pytestmark = pytest.mark.redis

METRICS = 'WorkerMetrics("janitor", package="icedb-janitor", tasks=["vacuum"], has_engine=True)'
ENGINE = """
import os, subprocess
from icedb_service.metrics import WorkerMetrics

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
    port = free_port()
    begin = ENGINE.format(port=port)
    with running_worker(redis.url, tmp_path, before=begin, engine="Mortal", metrics=METRICS) as process:
        require_engine_replaced(process, tmp_path, port=port, component="janitor", engine="sleep")
