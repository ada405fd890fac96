"""Where the containers of a run listen, and how fast they are. Pure values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from icedb_local.chaos.chaos_layout import Pace, TestedLayout
from icedb_local.ports import find_free_ports
from icedb_local.stack_layout import StackPorts

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
