"""A real Spark standalone cluster, and a Spark Connect server of a user's, on loopback, from the Python package.

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
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import Unavailable

START_LIMIT_MS: Final = 240_000
STOP_S: Final = 20
DAEMON_MEMORY: Final = "768m"
WORKER_CORE_MB: Final = 768
_POLL_MS: Final = 50
_SPARK: Final = Path(pyspark.__file__).parent
_MASTER_URL: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master (\S+)")
_CONNECT_PORT: Final = re.compile(r"Spark Connect server started at: \S+:(\d+)")


@contextmanager
def running_cluster(folder: Path, *, worker_count: int = 2, worker_cores: int = 2) -> Iterator[str]:
    """Run a master and workers, and give the master's URL, ``spark://127.0.0.1:port``.

    Args:
        folder: For logs, work and scratch; made if it is not there.
        worker_count: How many workers.
        worker_cores: Cores of each; it has 768 MiB of memory for each core.

    Raises:
        Unavailable: A process did not start; with the end of its log.
    """
    with ExitStack() as stack:
        master = stack.enter_context(
            _Daemon(folder / "master", _class("master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0"))
        )
        url = master.wait_for(_MASTER_URL)
        workers = [
            stack.enter_context(
                _Daemon(
                    place := folder / f"worker-{number}",
                    _class(
                        "worker.Worker",
                        *("--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(place / "work")),
                        *("--cores", str(worker_cores), "--memory", f"{WORKER_CORE_MB * worker_cores}m", url),
                    ),
                )
            )
            for number in range(worker_count)
        ]
        for worker in workers:
            worker.wait_for(_REGISTERED)
        yield url


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

    def __init__(self, folder: Path, command: Sequence[str], *, clock: Clock | None = None) -> None:
        self._folder = folder
        self._command = command
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self._folder / "scratch").mkdir(parents=True)
        (self._folder / "conf").mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=_make_environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        process = self._process
        if process is None:
            return
        for ending in (signal.SIGTERM, signal.SIGKILL):
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
