"""What differs between two snapshots of one table. Pure.

Chunks of live files that both snapshots have in common are never opened: a comparison costs what has changed, not what
is there. The one place that compares: the snapshot service, and the client without a service.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icedb_log.log.live_files import LiveFiles, subtract_files
from icedb_log.model import FileMarker, Snapshot


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """What differs between two snapshots of a table.

    Attributes:
        before: The earlier one.
        after: The later one.
        added: Data files that are live in the later one only, ascending by path; compact where the snapshots are.
        removed: Data files that are live in the earlier one only, in the same way.
        changed_columns: Columns, with their types, that the earlier one does not have, or has with another type.
    """

    before: Snapshot
    after: Snapshot
    added: Sequence[FileMarker]
    removed: Sequence[FileMarker]
    changed_columns: Mapping[str, str]

    @property
    def is_stable(self) -> bool:
        """Whether the same times must give the same answer later on."""
        return self.before.is_stable and self.after.is_stable


def compare_snapshots(before: Snapshot, after: Snapshot) -> SnapshotChanges:
    """Return what differs between two snapshots of one read of a table's log (R6)."""
    if before.snapshot_id == after.snapshot_id:
        return SnapshotChanges(before, after, (), (), {})
    return SnapshotChanges(
        before,
        after,
        added=_subtract(after.live, before.live),
        removed=_subtract(before.live, after.live),
        changed_columns={
            name: sql_type for name, sql_type in after.schema.items() if before.schema.get(name) != sql_type
        },
    )


def _subtract(live: Sequence[FileMarker], other: Sequence[FileMarker]) -> Sequence[FileMarker]:
    if isinstance(live, LiveFiles) and isinstance(other, LiveFiles):
        return subtract_files(live, other)
    paths = {marker.path for marker in other}
    return tuple(marker for marker in live if marker.path not in paths)
