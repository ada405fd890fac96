"""A running ``compose.yaml``: brought up in the order that it asks for, watched, killed and restarted.

podman-compose makes and starts the containers; what it leaves out where podman is old, or systemd is not there, is done
here: waiting for what a service depends on, and asking the health checks.
"""

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import yaml  # type: ignore[import-untyped]
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, Unavailable

from icedb_local.chaos.chaos_layout import Pace, TestedLayout
from icedb_local.containers.images import STAND_INS, image_name, stand_in_name
from icedb_local.containers.podman import Podman
from icedb_local.ports import find_free_ports
from icedb_local.stack_layout import S3_ACCESS_KEY, S3_SECRET_KEY, StackPorts

PACE: Final = Pace(
    log_grace_ms=120_000, data_grace_ms=120_000, orphan_age_ms=3_600_000, read_timeout_ms=20_000, sweep_ms=2_000
)
"""As short as the command of a release lets a table be; long enough for a container that is started anew."""
SETTINGS: Final = {
    "ICEDB_FLUSH_INTERVAL_MS": "500",
    "ICEDB_MERGE_WAKE_COMMITS": "4",
    "ICEDB_MERGE_SWEEP_INTERVAL_MS": "3000",
    "ICEDB_JANITOR_SWEEP_INTERVAL_MS": "3000",
    "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "5000",
    "ICEDB_GATEWAY_STALENESS_MS": "0",
}
"""What differs from the compose file: what takes minutes in production takes seconds here."""
PROJECT: Final = "icedb-containers"
NOT_TO_BE_HAD: Final = ("grafana",)
"""No package of Debian or PyPI brings it."""
ONCE: Final = "bucket"
COMMAND: Final = "cli"
HEALTH_DEADLINE_MS: Final = 240_000
"""A JVM starts within it on a machine that does much else."""
POLL_MS: Final = 500


@dataclass(frozen=True, slots=True)
class ContainersLayout(TestedLayout):
    """How the containers are reached from outside.

    Attributes:
        prometheus_port: On loopback.
    """

    prometheus_port: int = 0

    @classmethod
    def make(cls, run_dir: Path) -> Self:
        """Choose ports that are free now."""
        return cls(
            run_dir, "s3", StackPorts.find_free(), has_frontend=True, pace=PACE, prometheus_port=find_free_ports(1)[0]
        )


@dataclass(frozen=True, slots=True)
class Release:
    """What can be brought up.

    Attributes:
        version: Of its images.
        folder: Its sources, with ``deploy/compose.yaml``.
        services: What stands in that file, by name.
    """

    version: str
    folder: Path
    services: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @classmethod
    def read(cls, version: str, folder: Path) -> "Release":
        """Read a release's compose file."""
        text = (folder / "deploy" / "compose.yaml").read_text(encoding="utf-8")
        return cls(version, folder, yaml.safe_load(text)["services"])

    @property
    def ours(self) -> tuple[str, ...]:
        """The services whose images are built from the Dockerfile, without the command."""
        return tuple(name for name, one in self.services.items() if "build" in one and name != COMMAND)

    @property
    def servers(self) -> tuple[str, ...]:
        """The services whose images come from a registry and can be stood in for, without those that end."""
        return tuple(name for name in self.services if name in STAND_INS and name != ONCE)

    def waves(self) -> tuple[tuple[str, ...], ...]:
        """Return all services that are started, in the order in which they depend on each other."""
        names = {*self.ours, *self.servers, ONCE}
        waves: list[tuple[str, ...]] = []
        while names:
            ready = tuple(
                name
                for name in self.services
                if name in names and not names & {*self.services[name].get("depends_on", ())}
            )
            if not ready:
                raise Unavailable(
                    f"{', '.join(sorted(names))} depend on each other in {self.folder}/deploy/compose.yaml"
                )
            waves.append(ready)
            names -= {*ready}
        return tuple(waves)

    def override(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Return what is laid over the compose file: images that are there, and the pace of a run."""
        changes: dict[str, Any] = {
            name: {
                "image": image_name(self.services[name]["build"]["target"], self.version),
                "environment": {**settings},
            }
            for name in (*self.ours, COMMAND)
        }
        changes |= {name: {"image": stand_in_name(target)} for name, target in STAND_INS.items()}
        changes["s3"]["command"] = ["--bucket", "healthz"]
        return {"services": changes}


class Composed:
    """The containers of one project.

    Args:
        podman: Where they run.
        layout: Where they listen.
        release: What is brought up.
        settings: ``ICEDB_…`` variables on top of the compose file's.
        folder: For files of the run.
        clock: For waiting.
    """

    def __init__(
        self,
        podman: Podman,
        layout: ContainersLayout,
        release: Release,
        settings: Mapping[str, str],
        folder: Path,
        *,
        clock: Clock,
    ) -> None:
        self.release = release
        self.restarts_wanted: dict[str, int] = {}
        self._podman = podman
        self._layout = layout
        self._settings = settings
        self._folder = folder
        self._clock = clock

    def up(self) -> None:
        """Bring everything up. Raises Unavailable: something does not come up."""
        for wave in self.release.waves():
            self.start(*wave)
            self.wait_until_well(*(name for name in wave if name != ONCE))
            if ONCE in wave:
                self._wait_until_done()

    def start(self, *services: str) -> None:
        """Make and start containers that are not there."""
        self.compose("up", "--detach", "--no-deps", "--no-recreate", *services)
        self.restarts_wanted.update(dict.fromkeys(services, 0))

    def compose(self, *arguments: str) -> str:
        """Run podman-compose. Raises Unavailable: it failed."""
        override = self._folder / f"override-{self.release.version}.yaml"
        override.write_text(json.dumps(self.release.override(self._settings), indent=2))
        env_file = self._folder / "compose.env"
        env_file.write_text("".join(f"{name}={value}\n" for name, value in self._variables().items()))
        files = ("--file", str(self.release.folder / "deploy" / "compose.yaml"), "--file", str(override))
        options = ("--in-pod", "false", "--project-name", PROJECT, "--env-file", str(env_file), "--profile", "s3")
        return self._podman.run(*files, *options, *arguments, tool="podman-compose", env=self._variables())

    def run_command(self, *arguments: str) -> str:
        """Run the ``icedb`` command of the compose file once. Raises Unavailable: it failed."""
        return self.compose("--profile", "cli", "run", "--rm", "--no-deps", "-T", COMMAND, *arguments)

    def look(self, service: str) -> dict[str, Any]:
        """Return what podman knows of a service's container. Raises Unavailable: there is none."""
        labels = (f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}")
        ids = self._podman.find_containers(labels)
        if len(ids) != 1:
            raise Unavailable(f"{service} has {len(ids)} containers")
        return self._podman.inspect(*ids)[0]

    def is_well(self, service: str) -> bool:
        """Whether a service runs and its health check says that it is well; beat has none."""
        with contextlib.suppress(Unavailable):
            known = self.look(service)
            if not known["State"]["Running"]:
                return False
            return not _has_check(known) or self._podman.try_to_run("healthcheck", "run", known["Id"])
        return False

    def wait_until_well(self, *services: str) -> None:
        """Wait until services are well. Raises Unavailable: one is not in time; the message has the end of its log."""
        deadline_ms = self._clock.monotonic_ms() + HEALTH_DEADLINE_MS
        waiting = list(services)
        while waiting := [name for name in waiting if not self.is_well(name)]:
            if self._clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"{waiting[0]} is not well:\n{self.read_log(waiting[0])[-3000:]}")
            self._clock.sleep_ms(POLL_MS)

    def kill(self, service: str) -> None:
        """Kill the first process of a container as the kernel would, and wait until another one is well."""
        before = self.look(service)["State"]
        os.kill(int(before["Pid"]), signal.SIGKILL)
        self.restarts_wanted[service] += 1
        deadline_ms = self._clock.monotonic_ms() + HEALTH_DEADLINE_MS
        while self.look(service)["State"]["StartedAt"] == before["StartedAt"] or not self.is_well(service):
            if self._clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"{service} was killed and is not well again:\n{self.read_log(service)[-3000:]}")
            self._clock.sleep_ms(POLL_MS)

    def stop(self, *services: str) -> dict[str, int]:
        """Stop services, each within the compose file's time; return the exit code of each one's process."""
        ids = {name: self.look(name)["Id"] for name in services}
        grace_s = max(read_seconds(self.release.services[name]["stop_grace_period"]) for name in services)
        self._podman.run("stop", "--time", str(grace_s), *ids.values())
        return {name: int(self.look(name)["State"]["ExitCode"]) for name in services}

    def restart(self, service: str) -> int:
        """Stop a service and start its container again; return the exit code that it stopped with."""
        code = self.stop(service)[service]
        known = self.look(service)
        self._podman.run("start", known["Id"])
        self.restarts_wanted[service] = int(self.look(service).get("RestartCount", 0))
        self.wait_until_well(service)
        return code

    def count_crashes(self) -> dict[str, int]:
        """Return how often each service was restarted though nobody killed it."""
        counts = {
            name: int(self.look(name).get("RestartCount", 0)) - wanted
            for name, wanted in self.restarts_wanted.items()
            if name != ONCE
        }
        return {name: count for name, count in counts.items() if count > 0}

    def try_inside(self, service: str, *command: str) -> bool:
        """Whether a command succeeds in a service's container."""
        return self._podman.try_to_run("exec", self.look(service)["Id"], *command)

    def read_log(self, service: str) -> str:
        """Return what a service has said."""
        with contextlib.suppress(Unavailable):
            return self._podman.run("logs", self.look(service)["Id"], keeps_errors=True)
        return ""

    def save_logs(self, services: Iterable[str]) -> None:
        """Write what services have said to the run's folder."""
        for service in services:
            with (self._folder / f"{service}.log").open("a", encoding="utf-8") as file:
                file.write(self.read_log(service))

    def down(self) -> None:
        """Remove all containers, the network and the volumes."""
        self.compose("down", "--volumes", "--timeout", "0")

    def _wait_until_done(self) -> None:
        deadline_ms = self._clock.monotonic_ms() + HEALTH_DEADLINE_MS
        while True:
            state = self.look(ONCE)["State"]
            if state["Status"] == "exited" and state["ExitCode"] == 0:
                return
            if self._clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"{ONCE} does not end well:\n{self.read_log(ONCE)[-3000:]}")
            self._clock.sleep_ms(POLL_MS)

    def _variables(self) -> dict[str, str]:
        """Return what stands in ``.env``."""
        ports = self._layout.ports
        return {
            "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY,
            "GRAFANA_ADMIN_PASSWORD": S3_SECRET_KEY,
            "ICEDB_STORE": self._layout.store_settings.url,
            "ICEDB_VERSION": self.release.version,
            "ICEDB_S3_PORT": str(ports.s3),
            "ICEDB_REDIS_PORT": str(ports.redis),
            "ICEDB_SNAPSHOT_PORT": str(ports.snapshot),
            "ICEDB_GATEWAY_PORT": str(ports.gateway),
            "ICEDB_GATEWAY_ICEBERG_PORT": str(ports.gateway_iceberg),
            "ICEDB_FRONTEND_HTTP_PORT": str(ports.http),
            "ICEDB_FRONTEND_GRPC_PORT": str(ports.grpc),
            "ICEDB_PROMETHEUS_PORT": str(self._layout.prometheus_port),
        }


def read_seconds(duration: str) -> int:
    """Return the seconds of a duration as compose files have it, such as ``11m`` or ``1m30s``."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    if found is None:
        raise InvalidRequest(f"{duration} is no duration such as 1m30s")
    return 60 * int(found[1] or 0) + int(found[2] or 0)


def _has_check(known: Mapping[str, Any]) -> bool:
    test: Sequence[str] = (known["Config"].get("Healthcheck") or {}).get("Test") or ("NONE",)
    return test[0] != "NONE"
