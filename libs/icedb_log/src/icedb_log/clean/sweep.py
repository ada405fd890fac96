"""A sweep of what no log file names: orphans, then leftovers, by one walk through the table, then old audit objects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icedb_log.clean.deletion import AuditLog, Deleted, sweep_audit
from icedb_log.clean.leftovers import LeftoverResult, sweep_leftovers
from icedb_log.clean.orphans import OrphanPolicy, OrphanResult, sweep_orphans
from icedb_log.commit.table import Table


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep did with each kind of object."""

    orphans: OrphanResult
    leftovers: LeftoverResult
    audit: Deleted

    @property
    def is_idle(self) -> bool:
        """Whether no orphan or leftover was deleted."""
        return not (self.orphans.deleted or any(self.leftovers.deleted.values()))

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task."""
        orphans, walk = self.orphans, self.orphans.walk
        return {
            "deleted_orphans": len(orphans.deleted),
            "failed_orphans": len(orphans.failed),
            "waiting_orphans": walk.old_tally.count - len(orphans.deleted) - len(orphans.failed),
            "held_orphans": orphans.held.count,
            "young_orphans": walk.young_tally.count,
            "orphan_share": round(orphans.share, 4),
            "unknown_objects": walk.unknown_count,
            "deleted_leftovers": sum(self.leftovers.deleted.values()),
            "failed_leftovers": len(self.leftovers.failed),
            "deleted_audit": len(self.audit.keys),
        }


def sweep_table(
    table: Table,
    *,
    policy: OrphanPolicy | None = None,
    audit: AuditLog | None = None,
    on_orphans: Callable[[OrphanResult], object] = lambda _: None,
) -> SweepResult:
    """Delete the orphans, leftovers and audit objects of a table whose time has come. Idempotent.

    Args:
        table: The table.
        policy: Bounds of the sweep of orphans.
        audit: Where each deletion is recorded.
        on_orphans: Told of the orphans before the rest is swept.

    Raises:
        Unavailable: The store did not answer; what was deleted by then is gone.
        HaltError: The table needs a person; no orphan was deleted.
    """
    orphans = sweep_orphans(table, policy=policy, audit=audit)
    on_orphans(orphans)
    leftovers = sweep_leftovers(table, orphans.walk, audit=audit)
    retention_ms = table.config.audit_retention_ms
    old = sweep_audit(table, retention_ms=retention_ms, clock=table.clock, check_alive=table.check_alive)
    return SweepResult(orphans, leftovers, old)
