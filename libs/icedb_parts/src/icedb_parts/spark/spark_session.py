"""The Spark session: where tasks run, with which bounds, and whether it is still alive.

One setting moves the work: a master (``local[2]``, ``spark://…``, ``k8s://…``) or a Spark Connect server. Only the
DataFrame API is used with it. Everything on one machine stays on the loopback interface, without a web interface.
"""

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from icedb_log.errors import InvalidRequest, Unavailable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icedb_parts.spark.java import find_java

DEFAULT_MASTER: Final = "local[2]"
LOOPBACK: Final = "127.0.0.1"
JVM_END_S: Final = 20
"""How long a JVM may take to end by itself."""

_QUERY_OPTIONS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # a cast that fails is an error, never a silent NULL
    "spark.sql.runSQLOnFiles": "false",  # SQL of users reads our views, no files
}

_MASTER: Final = re.compile(r"local(\[(\*|[1-9]\d*)(,\d+)?\])?|(spark|k8s|yarn)(://.+)?")
_MEMORY: Final = re.compile(r"[1-9]\d*[mg]")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and with what.

    Attributes:
        master: Spark master; ``local[n]`` runs n tasks at once inside this machine. Not used with ``remote``.
        remote: Address of a Spark Connect server, ``sc://host:port``; None: a session of this process.
        app_name: What Spark calls the application.
        driver_memory: Heap of the JVM, e.g. ``1g``. The rows are not in it: tasks hold them outside the JVM.
        task_attempt_count: How often a task is tried that died (not one that answered with an error).
        shuffle_partition_count: Partitions after a shuffle of user SQL.
    """

    master: str = DEFAULT_MASTER
    remote: str | None = None
    app_name: str = "icedb"
    driver_memory: str = "1g"
    task_attempt_count: int = 2
    shuffle_partition_count: int = 4

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidRequest."""
        if self.remote is None and not _MASTER.fullmatch(self.master):
            raise InvalidRequest(
                f"Spark master is {self.master[:80]!r}: use local[n], spark://host:port, k8s://… or yarn "
                "(ICEDB_SPARK_MASTER)"
            )
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise InvalidRequest(f"Spark remote is {self.remote[:80]!r}: use sc://host:port (ICEDB_SPARK_REMOTE)")
        if not _MEMORY.fullmatch(self.driver_memory):
            raise InvalidRequest(f"Spark driver memory is {self.driver_memory[:80]!r}: use e.g. 512m or 2g")

    @property
    def is_local(self) -> bool:
        """Whether tasks run on this machine, as children of this process's JVM."""
        return self.remote is None and self.master.startswith("local")


def open_spark(settings: SparkSettings | None = None) -> SparkSession:
    """Open the session of this process, or return the one that is open already.

    Sets ``JAVA_HOME``, ``SPARK_LOCAL_IP`` and ``PYSPARK_PYTHON`` of this process, because the JVM inherits them.

    Raises:
        InvalidRequest: No Java that runs Spark, or a package for Spark Connect is missing.
        Unavailable: Spark does not start or the server does not answer.
    """
    settings = settings or SparkSettings()
    if settings.remote is not None:
        return _open_remote(settings)
    os.environ["JAVA_HOME"] = str(find_java().path)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.is_local:
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder: Any = SparkSession.builder
    builder = builder.master(settings.master).appName(settings.app_name)
    for name, value in _session_options(settings).items():
        builder = builder.config(name, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise Unavailable(f"Spark does not start with master {settings.master}: {_first_line(error)}") from error
    return spark


def close_spark(spark: SparkSession) -> None:
    """Stop a session and, if this process started its JVM, wait until the JVM has gone. Idempotent.

    ``SparkSession.stop`` alone leaves the JVM to notice, some time after this process has ended, that it is gone.
    """
    with contextlib.suppress(PySparkException, Py4JError, OSError):  # a JVM that died already
        spark.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - PySpark has no public word for its JVM
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process.stdin.close()
    try:
        process.wait(JVM_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_session_alive(spark: SparkSession) -> bool:
    """Tell whether the session's JVM or server still answers: one round trip, no job."""
    try:
        context = getattr(spark, "_sc", None)
        if context is not None and context._jsc is None:  # noqa: SLF001 - stopped, and no public word for it
            return False
        # Not `spark.version`: PySpark keeps that, and answers for a JVM that is long dead.
        return spark.conf.get("spark.sql.session.timeZone") is not None
    except Exception:  # noqa: BLE001 - whatever it raises, it is not alive
        return False


def _open_remote(settings: SparkSettings) -> SparkSession:
    try:
        builder: Any = SparkSession.builder
        spark: SparkSession = builder.remote(settings.remote).appName(settings.app_name).getOrCreate()
        for name, value in _QUERY_OPTIONS.items():
            spark.conf.set(name, value)
    except ImportError as error:
        raise InvalidRequest(f"Spark Connect needs `pip install 'pyspark[connect]'`: {_first_line(error)}") from error
    except Exception as error:
        raise Unavailable(f"no Spark Connect session at {settings.remote}: {_first_line(error)}") from error
    return spark


def _session_options(settings: SparkSettings) -> dict[str, str]:
    logging = quote(str(files("icedb_parts").joinpath("log4j2.properties")))
    options = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file://{logging}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(settings.task_attempt_count),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_QUERY_OPTIONS,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partition_count),
    }
    if settings.is_local:
        options["spark.driver.host"] = options["spark.driver.bindAddress"] = LOOPBACK
    return options


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
