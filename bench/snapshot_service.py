"""The snapshot service as a process of its own, as it is deployed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import psutil
from icedb_log.store.stores import StoreSettings
from icedb_log.units import MIB

START_LIMIT_S: Final = 60
POLL_S: Final = 0.005
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
    """Run a service on a warehouse."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "snapshot.log"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ICEDB_", "AWS_"))}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "icedb_snapshot"], env=inherited | _environment(store), stdout=stream, stderr=stream
        )
    try:
        yield Service(_await_address(process, log), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(store: StoreSettings) -> dict[str, str]:
    env = {
        "ICEDB_STORE": store.url,
        "ICEDB_SNAPSHOT_ADDRESS": "127.0.0.1:0",
        "ICEDB_METRICS_PORT": "0",
        "ICEDB_SNAPSHOT_MAX_MESSAGE_BYTES": str(MESSAGE_BYTES),
    }
    if store.s3 is not None:
        env |= {"ICEDB_S3_ENDPOINT": store.s3.endpoint_url or "", "AWS_ACCESS_KEY_ID": store.s3.access_key_id or ""}
        env |= {"AWS_SECRET_ACCESS_KEY": store.s3.secret_access_key or ""}
    return env


def _await_address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = monotonic() + START_LIMIT_S
    while process.poll() is None and monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("{") and json.loads(line).get("event") == "snapshot_served":
                return str(json.loads(line)["address"])
        sleep(POLL_S)
    raise RuntimeError(f"the snapshot service did not start: {log.read_text()[-2000:]}")
