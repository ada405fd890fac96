"""A real Spark standalone cluster, and a Spark Connect server of a user's, from the Python package.

Ports are free ones, chosen by the processes. Each process leads a session of its own, works in a folder of its own,
and is stopped with all that it started, whatever happens. Not for production: nothing is encrypted or asks for a name.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import pyspark
from icedb_engine.spark.spark_session import LOOPBACK, find_java
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable

from icedb_sim.rigs.cluster_nodes import Node

START_LIMIT_MS: Final = 240_000
STOP_S: Final = 20
DAEMON_MEMORY: Final = "768m"
WORKER_CORE_MB: Final = 768
_POLL_MS: Final = 50
_SPARK: Final = Path(pyspark.__file__).parent
_MASTER_URL: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master (\S+)")
_CONNECT_PORT: Final = re.compile(r"Spark Connect server started at: \S+:(\d+)")


class SparkCluster:
    """A master and its workers; use as a context manager.

    Args:
        folder: For logs, work and scratch; made if it is not there.
        nodes: Where the workers run, one on each.
        worker_cores: Cores of each; it has 768 MiB of memory for each core.
        host: The address of the master, which the workers reach.
        env: What processes find in their environment besides, executors among them: keys of a store.
        master_options: Options of the master, ``spark.deploy.…``.

    Raises:
        Unavailable: On entry: a process did not start; with the end of its log.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[Node],
        worker_cores: int = 2,
        host: str = LOOPBACK,
        env: Mapping[str, str] | None = None,
        master_options: Mapping[str, str] | None = None,
    ) -> None:
        self.url = ""
        self._folder, self._nodes, self._worker_cores, self._host = folder, nodes, worker_cores, host
        self._env = env or {}
        self._master_env = {
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{name}={value}" for name, value in (master_options or {}).items()),
        }
        self._stack = ExitStack()
        self._master = self._make_master("master", port=0)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.kill_master)
            self.url = self._master.start().wait_for(_MASTER_URL)
            workers = [stack.enter_context(self._make_worker(node)) for node in self._nodes]
            for worker in workers:
                worker.wait_for(_REGISTERED)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def kill_master(self) -> None:
        """Kill the master."""
        self._master.stop(signal.SIGKILL)

    def restart_master(self) -> None:
        """Start another master at the same address, and wait until it is there; workers come back by themselves."""
        self._master = self._make_master(f"master-{SystemClock().new_id()}", port=int(self.url.rpartition(":")[2]))
        self._master.start().wait_for(_MASTER_URL)

    def _make_master(self, name: str, *, port: int) -> "_Daemon":
        command = _class("master.Master", "--host", self._host, "--port", str(port), "--webui-port", "0")
        return _Daemon(self._folder / name, command, env=self._master_env)

    def _make_worker(self, node: Node) -> "_Daemon":
        place = self._folder / node.name
        command = _class(
            "worker.Worker",
            *("--host", node.address, "--webui-port", "0", "--work-dir", str(place / "work")),
            *("--cores", str(self._worker_cores), "--memory", f"{WORKER_CORE_MB * self._worker_cores}m", self.url),
        )
        scratch = {"SPARK_LOCAL_DIRS": str(node.scratch), "TMPDIR": str(node.scratch)}
        env = {**self._env, **node.env(), **scratch, "SPARK_LOCAL_IP": node.address}
        return _Daemon(place, node.command(command), env=env)


@contextmanager
def running_connect_server(folder: Path, *, master: str, options: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a Spark Connect server, and give its address, ``sc://127.0.0.1:port``.

    Args:
        folder: For its log and scratch; made if it is not there.
        master: Where its tasks run: ``local[n]``, or the master of a cluster.
        options: Options of Spark.

    Raises:
        Unavailable: It did not start; with the end of its log.
    """
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": LOOPBACK,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        **(options or {}),
    }
    command = [
        str(_SPARK / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    with _Daemon(folder, command) as server:
        yield f"sc://{LOOPBACK}:{server.wait_for(_CONNECT_PORT)}"


class _Daemon:
    """A process of Spark, from its start to the end of all that it started."""

    def __init__(self, folder: Path, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._command = command
        self._env = env or {}
        self._clock = SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start it; wait for nothing."""
        (self._folder / "scratch").mkdir(parents=True)
        (self._folder / "conf").mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=_make_environment(self._folder) | dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def stop(self, *endings: signal.Signals) -> None:
        """End it and all that it started, with SIGTERM at first unless told otherwise. Idempotent."""
        process = self._process
        if process is None:
            return
        for ending in endings or (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)

    def wait_for(self, words: re.Pattern[str]) -> str:
        """Wait until the log says something, and return its first group."""
        deadline_ms = self._clock.monotonic_ms() + START_LIMIT_MS
        while True:
            text = self._log.read_text(errors="replace")
            found = words.search(text)
            if found:
                return found[1]
            process: Any = self._process
            if process.poll() is not None or self._clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"{self._command[-1]} did not start: {text[-2000:]}")
            self._clock.sleep_ms(_POLL_MS)

    @property
    def _log(self) -> Path:
        return self._folder / "log"


def _class(name: str, *arguments: str) -> list[str]:
    return [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


def _make_environment(folder: Path) -> dict[str, str]:
    """Return what the process inherits: nothing of the worker's own settings, and above all no keys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ICEDB_", "SPARK_"))}
    return {
        **kept,
        "JAVA_HOME": str(find_java().path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_SPARK),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_LOCAL_IP": LOOPBACK,
        "TMPDIR": str(folder / "scratch"),
    }
