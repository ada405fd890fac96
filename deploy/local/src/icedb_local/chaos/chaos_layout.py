"""The stack that is made to fail. Pure values.

As ``make up STORE=s3`` starts it, with three Redis masters for locks, short times, and the store behind the fault
proxy.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from icedb_log.store_settings import StoreSettings

from icedb_local.ports import LOOPBACK, find_free_ports
from icedb_local.stack_layout import (
    LARGE,
    StackLayout,
    StackPorts,
)
from icedb_local.supervisor_config import Program

Engine = Literal["spark", "light"]

LOCK_MASTERS: Final = ("lock-1", "lock-2", "lock-3")
BROKER: Final = "redis"
SCRATCH_USERS: Final = ("ingest", "merger")
STORE_USERS: Final = ("snapshot", "ingest", "merger", "janitor", "frontend", "enqueue", "gateway", "beat")
"""Each has a door of its own of the fault proxy, which so knows whom a fault has met."""
WATCHERS_DOOR: Final = "watchers"
SERVER_TIMEOUT_S: Final = 60.0
"""Of the last look, which goes past the proxy: how busy the machine is says nothing about a table."""
DEADLY_READER: Final = Path(__file__).parent / "deadly_reader"
"""On the path of the ingest worker, and so of its tasks' processes: Python runs what is in it when a process starts."""
START_RETRIES: Final = 1000
STOP_WAIT_S: Final = 0
"""Who stops a run has judged it: nobody waits for services that end in good order."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast everything is: what takes hours in production takes seconds here.

    Attributes:
        log_grace_ms: Of tables; three quarters of it are the time in which a producer may send a batch again.
        data_grace_ms: Of tables.
        orphan_age_ms: Of tables; a commit gives up after half of it.
        lock_ttl_ms: How long a process has to stand still to lose its lock.
        read_timeout_ms: After how long a request to the store is given up.
        sweep_ms: Time between sweeps.
    """

    log_grace_ms: int = 40_000
    data_grace_ms: int = 45_000
    orphan_age_ms: int = 90_000
    lock_ttl_ms: int = 3_000
    read_timeout_ms: int = 4_000
    sweep_ms: int = 1_000

    @property
    def env(self) -> dict[str, str]:
        """Settings of the services."""
        return {
            "ICEDB_FLUSH_INTERVAL_MS": "300",
            "ICEDB_MERGE_WAKE_COMMITS": "1",
            "ICEDB_MERGE_COMMIT_BYTES": "1",  # a commit for each group: a run is rarely left alone for long
            "ICEDB_INGEST_SWEEP_INTERVAL_MS": str(self.sweep_ms),
            "ICEDB_MERGE_SWEEP_INTERVAL_MS": str(self.sweep_ms),
            "ICEDB_JANITOR_SWEEP_INTERVAL_MS": str(self.sweep_ms),
            "ICEDB_ORPHAN_SWEEP_INTERVAL_MS": str(max(1_000, 5 * self.sweep_ms)),
            "ICEDB_LOCK_TTL_MS": str(self.lock_ttl_ms),
            "ICEDB_S3_READ_TIMEOUT_MS": str(self.read_timeout_ms),
            "ICEDB_S3_CONNECT_TIMEOUT_MS": "1000",
            "ICEDB_MESSAGE_EXPIRY_MS": str(max(5_000, 5 * self.sweep_ms)),
            "ICEDB_TASK_TIME_LIMIT_MS": "120000",
            "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "2000",
            "ICEDB_FRONTEND_ACK_TIMEOUT_MS": "8000",
            "ICEDB_FRONTEND_TABLE_CACHE_MS": "2000",
            "ICEDB_GATEWAY_STALENESS_MS": "0",
            "ICEDB_READ_WAIT_MS": "10000",
            # Runs that are cut off leave more in small tables than a log that was lost would leave in large ones.
            "ICEDB_JANITOR_ORPHAN_SHARE": "1",
            "ICEDB_SPARK_MEMORY_MB": "512",
            "ICEDB_SPARK_MASTER": "local[2]",
            "ICEDB_TASK_MEMORY_MB": "256",
            "ICEDB_BATCH_MAX_DECODED_MB": "64",
        }


@dataclass(frozen=True, slots=True)
class TestedLayout(StackLayout):
    """Where a stack lives that is put to the test.

    Attributes:
        pace: How fast it is.
    """

    pace: Pace = dataclasses.field(default_factory=Pace)

    @property
    def door_settings(self) -> StoreSettings:
        """How readers and producers reach the store."""
        return self.store_settings


@dataclass(frozen=True, slots=True)
class ChaosLayout(TestedLayout):
    """Where the stack lives and what it runs.

    Attributes:
        engine: ``light`` runs units of work in the workers' own processes, without Spark.
        lock_ports: Of the Redis masters for locks.
        proxy_ports: Of the fault proxy, by door: one for each service, one for those who watch.
        beat_metrics_port: Where beat serves its metrics.
        left_out: Programs that are not started.
    """

    engine: Engine = "spark"
    lock_ports: tuple[int, ...] = ()
    proxy_ports: Mapping[str, int] = dataclasses.field(default_factory=dict)
    beat_metrics_port: int = 0
    left_out: frozenset[str] = frozenset()

    @classmethod
    def make(cls, run_dir: Path, *, pace: Pace, engine: Engine, left_out: frozenset[str] = frozenset()) -> Self:
        """Return a layout on free ports."""
        doors = (*STORE_USERS, WATCHERS_DOOR)
        beat_port, *others = find_free_ports(1 + len(LOCK_MASTERS) + len(doors))
        lock_ports, door_ports = others[: len(LOCK_MASTERS)], others[len(LOCK_MASTERS) :]
        return cls(
            run_dir,
            "s3",
            StackPorts.find_free(),
            pace.env,
            has_frontend=True,
            pace=pace,
            engine=engine,
            lock_ports=tuple(lock_ports),
            proxy_ports=dict(zip(doors, door_ports, strict=True)),
            beat_metrics_port=beat_port,
            left_out=left_out | {LARGE},  # no batch here is large
        )

    @property
    def door_settings(self) -> StoreSettings:
        """How readers and producers reach the store: through a door of their own of the proxy."""
        return self._settings_at(self.proxy_ports[WATCHERS_DOOR], timeout_s=self.pace.read_timeout_ms / 1000)

    @property
    def server_settings(self) -> StoreSettings:
        """How the last look reaches the store: past the proxy."""
        return self._settings_at(self.ports.s3, timeout_s=SERVER_TIMEOUT_S)

    @property
    def redis_ports(self) -> dict[str, int]:
        """Name of each Redis server and its port."""
        return {BROKER: self.ports.redis, **dict(zip(LOCK_MASTERS, self.lock_ports, strict=True))}

    @property
    def metrics_ports(self) -> dict[str, int]:
        """Name of each service that runs, and the port of its metrics."""
        names = ("snapshot", "ingest", "merger", "janitor", "frontend", "enqueue", "gateway")
        found = {name: self.ports.metrics_of(name) for name in names} | {"beat": self.beat_metrics_port}
        return {name: port for name, port in found.items() if name not in self.left_out}

    def scratch_dir(self, program_name: str) -> Path:
        """Return the folder for temporary files of a worker."""
        return self.run_dir / f"scratch-{program_name}"

    def service_env(self) -> dict[str, str]:
        """Return the environment of every service: locks have their own masters."""
        masters = ",".join(f"redis://{LOOPBACK}:{port}/0" for port in self.lock_ports)
        return StackLayout.service_env(self) | {"ICEDB_REDLOCK_URLS": masters}

    def programs(self) -> tuple[Program, ...]:
        """Return every program, in the order of starting."""
        masters = tuple(self._redis(name, port) for name, port in self.redis_ports.items() if name != BROKER)
        programs = (*masters, *StackLayout.programs(self))
        return tuple(self._adapt(program) for program in programs if program.name not in self.left_out)

    def _adapt(self, program: Program) -> Program:
        env, command = dict(program.env), program.command
        if program.name in SCRATCH_USERS:
            scratch = str(self.scratch_dir(program.name))
            env |= {"TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
            if self.engine == "light":
                command = (command[0], "-m", "icedb_local.chaos.light_worker", program.name)
        if program.name == "ingest":
            env["PYTHONPATH"] = str(DEADLY_READER)
        if program.name in STORE_USERS:
            env["ICEDB_S3_ENDPOINT"] = f"http://{LOOPBACK}:{self.proxy_ports[program.name]}"
        if program.name == "beat":
            env["ICEDB_METRICS_PORT"] = str(self.beat_metrics_port)
        return dataclasses.replace(
            program, env=env, command=command, start_retries=START_RETRIES, stop_wait_s=STOP_WAIT_S
        )

    def _settings_at(self, port: int, *, timeout_s: float) -> StoreSettings:
        base = self.store_settings
        assert base.s3 is not None
        options = dataclasses.replace(
            base.s3,
            endpoint_url=f"http://{LOOPBACK}:{port}",
            connect_timeout_s=1.0,
            read_timeout_s=timeout_s,
        )
        return StoreSettings(base.url, options)
