"""A worker's work on a real standalone cluster: a master and two workers."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from icedb_sim.rigs.cluster_nodes import Node
from icedb_sim.rigs.spark_cluster import SparkCluster
from waiting import LIMIT_S

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.soak]

PROCESS = Path(__file__).with_name("spark_place_process.py")
CLUSTER_OPTIONS = {
    "spark.cores.max": "2",  # of four; each application gets one on each of the two workers
    "spark.executor.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture(scope="module")
def answer(s3_server, tmp_path_factory):
    """What one run gave; only its process has the keys of the store."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ICEDB_"))}
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("cluster")
        nodes = [Node(f"worker-{number}", "127.0.0.1", folder / f"scratch-{number}") for number in range(2)]
        for node in nodes:
            node.scratch.mkdir()
        cluster = stack.enter_context(SparkCluster(folder, nodes=nodes))
        environment |= {
            "ICEDB_STORE": f"s3://{s3_server.bucket}/place",
            "ICEDB_S3_ENDPOINT": s3_server.endpoint_url,
            "ICEDB_SPARK_MASTER": cluster.url,
            "ICEDB_SPARK_OPTIONS": json.dumps(CLUSTER_OPTIONS),
            "ICEDB_SPARK_SENDS_KEYS": "1",
            "ICEDB_SPARK_MEMORY_MB": "768",
            "AWS_ACCESS_KEY_ID": s3_server.options.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3_server.options.secret_access_key,
        }
        command, pipe = [sys.executable, str(PROCESS)], subprocess.PIPE
        process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
        stack.callback(process.kill)
        yield read_answer(process)


def read_answer(process):
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def event(n):
    return [f"2026-01-0{1 + n % 3}T00:00:00", f"e{n % 5}", n]


def test_rows_that_were_flushed_merged_and_deleted_are_the_right_ones(answer):
    done = answer["flush_and_merge"]
    assert done["flushed"] == [6, [event(n) for n in range(240)]]
    assert done["files"] == [3, 3, 6, 3]
    assert done["deleted"] == 24
    assert done["rows"] == [3, [event(n) for n in range(240) if n % 10 != 3]]


def test_queries_of_users_run_there(answer):
    expected = [[ts, f"{name}!", n + 1] for ts, name, n in map(event, range(0, 20, 2))]
    assert answer["run_insert_query"] == expected


def test_footers_are_read_and_files_copied_there(answer):
    assert answer["run_import"] == [["2026-01-01T00:00:00", "in", n] for n in range(4)]


def test_a_job_that_never_ends_is_interrupted_there(answer):
    outcome, _ = answer["interrupt"]
    assert outcome == "another worker took over"
    assert answer["interrupted"] == ["stopped"]
    assert answer["alive"] == [True, False]


def test_tasks_ran_on_both_workers(answer):
    _, places = answer["interrupt"]
    assert ["worker-0" in places[0], "worker-1" in places[1]] == [True, True], places
