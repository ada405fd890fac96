"""What differs between two snapshots of one table. Pure.

Chunks of live files that both snapshots have in common are never opened: a comparison costs what has changed, not what
is there. The one place that compares: the snapshot service, and the client without a service.

What came and went between the last snapshots of a table is remembered as paths: snapshots themselves would keep log
files in memory that are gone.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from icedb_log.log.fold import Snapshot
from icedb_log.log.live_files import LiveFiles

MAX_REMEMBERED_FILES: Final = 10_000
MAX_REMEMBERED_STEPS: Final = 100
"""How much is remembered of each table; some 100 bytes for each file."""


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


@dataclass(frozen=True, slots=True)
class PathChanges:
    """What leads from one snapshot to a later one.

    Attributes:
        before_id: Id of the earlier one.
        after_id: Id of the later one.
        came: Paths of the data files that are live in the later one only.
        went: Paths of those that are live in the earlier one only.
    """

    before_id: str
    after_id: str
    came: AbstractSet[str]
    went: AbstractSet[str]


class ChangeHistory:
    """The last changes of one table, each with what it began from. One thread notes, any number asks."""

    def __init__(self) -> None:
        self._steps: tuple[PathChanges, ...] = ()

    def note(self, before: Snapshot, after: Snapshot) -> None:
        """Remember what leads from the snapshot that was noted last to its successor; forget the oldest steps."""
        if before.snapshot_id == after.snapshot_id:
            return
        found = compare_snapshots(before, after)
        step = PathChanges(
            before.snapshot_id, after.snapshot_id, frozenset(found.added.paths()), frozenset(found.removed.paths())
        )
        steps = [*self._steps, step][-MAX_REMEMBERED_STEPS:]
        if self._steps and self._steps[-1].after_id != before.snapshot_id:
            steps = [step]
        file_count = sum(len(each.came) + len(each.went) for each in steps)
        while file_count > MAX_REMEMBERED_FILES:
            file_count -= len(steps[0].came) + len(steps[0].went)
            del steps[0]
        self._steps = tuple(steps)

    def find(self, before_id: str, after_id: str) -> PathChanges | None:
        """Return what leads from one snapshot to another; ``None``: that is not remembered."""
        came: set[str] = set()
        went: set[str] = set()
        steps = self._steps
        end = next((at for at in reversed(range(len(steps))) if steps[at].after_id == after_id), -1)
        begin = next((at for at in range(end, -1, -1) if steps[at].before_id == before_id), None)
        if begin is None and before_id != after_id:
            return None
        for step in () if begin is None or before_id == after_id else steps[begin : end + 1]:
            came, went = (came - step.went) | (step.came - went), (went - step.came) | (step.went - came)
        return PathChanges(before_id, after_id, came, went)
