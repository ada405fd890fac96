"""The audit in the simulation: no log file and no data file goes that was not announced before (J10).

The audit is not written to the store with its faults: what becomes of a write that fails is for tests with a fault at
every call. So it takes no part in the schedule, and schedules stay what they were.
"""

from collections.abc import Collection
from typing import cast

import orjson
from icedb_log.clean.audit import AuditLog
from icedb_log.store.object_store import ObjectStore

from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Violation


class AuditWatch:
    """Told of each change before the others; and the store that audits are written to.

    Args:
        named: Data files that a commit has ever named: the others are nobody's, and whoever wrote one may delete it.
    """

    def __init__(self, *, named: Collection[str]) -> None:
        self._named = named
        self._announced: set[str] = set()
        self._clock = FakeClock(seed="audit")

    def open(self) -> AuditLog:
        """Return an audit for a janitor."""
        return AuditLog(cast("ObjectStore", self), PATHS, clock=self._clock, owner="janitor")

    def put(self, key: str, body: bytes) -> str:
        """Take a part of an audit."""
        del key
        _, *entries = body.splitlines()
        self._announced.update(orjson.loads(entry)["key"] for entry in entries)
        return ""

    def on_put(self, key: str, body: bytes) -> None:
        """Take no note."""

    def on_delete(self, key: str) -> None:
        """Check that an object that only the janitor deletes was announced."""
        if (key.startswith(PATHS.log_prefix) or key in self._named) and key not in self._announced:
            raise Violation(f"{key} is deleted, and no audit has announced it (J10)")
