"""What differs between two snapshots of one table. Pure.

Chunks of live files that both snapshots have in common are never opened: a comparison costs what has changed, not what
is there. The one place that compares: the snapshot service, and the client without a service.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from icedb_log.log.live_files import LiveFiles
from icedb_log.model import Snapshot


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """What differs between two snapshots of a table.

    Attributes:
        before: The earlier one.
        after: The later one.
        added: Data files that are live in the later one only, ascending by path.
        removed: Data files that are live in the earlier one only, in the same way.
        changed_columns: Columns, with their types, that the earlier one does not have, or has with another type.
    """

    before: Snapshot
    after: Snapshot
    added: LiveFiles
    removed: LiveFiles
    changed_columns: Mapping[str, str]

    @property
    def is_stable(self) -> bool:
        """Whether the same times must give the same answer later on."""
        return self.before.is_stable and self.after.is_stable


def compare_snapshots(before: Snapshot, after: Snapshot) -> SnapshotChanges:
    """Return what differs between two snapshots of one read of a table's log (R6)."""
    if before.snapshot_id == after.snapshot_id:
        return SnapshotChanges(before, after, LiveFiles(), LiveFiles(), {})
    return SnapshotChanges(
        before,
        after,
        added=after.live.minus(before.live),
        removed=before.live.minus(after.live),
        changed_columns={
            name: sql_type for name, sql_type in after.schema.items() if before.schema.get(name) != sql_type
        },
    )
