"""The snapshot service, or the gateway, as a process of its own, as it is deployed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from icedb_log.store_settings import StoreSettings
from icedb_log.units import MIB

from bench.servers import running, store_environment

MESSAGE_BYTES: Final = 256 * MIB
"""Largest answer: what 100,000 files take, and more."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that answers."""

    address: str
    process_id: int

    def resident_mb(self) -> float:
        """Return the memory that it holds now, MiB."""
        return float(psutil.Process(self.process_id).memory_info().rss) / MIB

    def peak_mb(self) -> float:
        """Return the most that it ever held, MiB."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        return float(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def running_service(store: StoreSettings, folder: Path) -> Iterator[Service]:
    """Run a snapshot service on a warehouse."""
    env = {"ICEDB_SNAPSHOT_ADDRESS": "127.0.0.1:0", "ICEDB_SNAPSHOT_MAX_MESSAGE_BYTES": str(MESSAGE_BYTES)}
    with _running(store, folder, "snapshot", "address", env) as service:
        yield service


@contextmanager
def running_catalog(store: StoreSettings, folder: Path) -> Iterator[Service]:
    """Run a gateway on a warehouse; its address is that of the Iceberg catalog."""
    env = {"ICEDB_GATEWAY_PORT": "0", "ICEDB_GATEWAY_ICEBERG_PORT": "0", "ICEDB_ACCESS_LOG": "none"}
    with _running(store, folder, "gateway", "iceberg", env) as service:
        yield service


@contextmanager
def _running(store: StoreSettings, folder: Path, name: str, field: str, env: Mapping[str, str]) -> Iterator[Service]:
    """Run a service until it says where it is, in a field of its first words."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    env = {**store_environment(store), "ICEDB_METRICS_PORT": "0", **env}
    with running([f"icedb_{name}"], log, find=lambda: _find_address(log, name, field), env=env) as server:
        yield Service(server.said, server.process_id)


def _find_address(log: Path, name: str, field: str) -> str | None:
    for line in log.read_text().splitlines():
        if line.startswith("{") and json.loads(line).get("event") == f"{name}_served":
            return str(json.loads(line)[field])
    return None
