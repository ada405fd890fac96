"""A snapshot service in this process, on a free loopback port, and one channel to it."""

from dataclasses import dataclass
from typing import Any, Final

import grpc
from icedb_log.clock import Clock, SystemClock
from icedb_log.units import MIB
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2_grpc
from icedb_snapshot.server import SnapshotService
from icedb_snapshot.settings import SnapshotSettings

from icedb_sim.rigs.frontend_rig import LOOPBACK

_POLL_MS: Final = 1
NO_REDIS = f"redis://{LOOPBACK}:1/0"
"""Where nobody listens: watched tables are looked at each interval."""
# Without the probe a client takes 64 KiB ahead of its reader; with it sometimes so much that nobody ever waits.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", 64 * MIB), ("grpc.http2.bdp_probe", 0))


@dataclass(slots=True)
class SnapshotRig:
    """A running service, and how it is called."""

    service: SnapshotService
    channel: Any
    stub: Any

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.service.port

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{LOOPBACK}:{self.port}"

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if it has none."""
        return self.service.parts.metrics.registry.get_sample_value(name, labels) or 0.0

    def has_exported(self) -> bool:
        """Whether the exporter has looked: once, and at the logs of all tables, or it could not list them."""
        name = "icedb_snapshot_exporter"
        return bool(
            self.metric(f"{name}_round_duration_seconds_count") or self.metric(f"{name}_failures_total", what="list")
        )

    def is_at_rest(self) -> bool:
        """Whether nobody watches, and no read is under way that somebody gave up."""
        watched = self.metric("icedb_snapshot_watchers") or self.metric("icedb_snapshot_watched_tables")
        return not watched and not self.service.parts.reads.work.job_count

    def stop(self) -> None:
        """Stop both."""
        self.channel.close()
        self.service.stop()


def start_snapshot(warehouse: Warehouse, *, clock: Clock | None = None, **fields: Any) -> SnapshotRig:
    """Start a service, and return when its exporter has looked; end it with ``rig.stop()``.

    Args:
        warehouse: What it serves.
        clock: For ages.
        fields: Settings other than the defaults. The port is a free one, there is no Redis, the exporter looks once.
    """
    values: dict[str, Any] = {
        "store": "file:///unused",
        "redis_url": NO_REDIS,
        "snapshot_address": f"{LOOPBACK}:0",
        "snapshot_lag_interval_ms": 600_000,
        "s3_endpoint": None,
    }
    settings = SnapshotSettings(**{**values, **fields})
    service = SnapshotService(warehouse, settings=settings, clock=clock or SystemClock())
    service.start()
    channel = grpc.insecure_channel(f"{LOOPBACK}:{service.port}", options=CHANNEL_OPTIONS)
    rig = SnapshotRig(service, channel, snapshot_pb2_grpc.SnapshotServiceStub(channel))
    while not rig.has_exported():  # a test that counts requests to the store counts those of its calls alone
        SystemClock().sleep_ms(_POLL_MS)
    return rig
