"""What the oracle of the simulation remembers, and checks by itself: batches, rows, copies in quarantine, the audit.

The model (:mod:`icedb_sim.simulation.model`) asks these at each change of the store and at each read. A refused batch
has been accepted, so it may leave staging only for a whole copy in quarantine; that copy may go only when its retry is
staged, or by its age; last of all goes the reason, without which nobody finds the copy. No log file and no data file
goes that was not announced before (J10); the audit is not written to the store with its faults, so it takes no part in
the schedule.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import orjson
from icedb_log.clean.deletion import AuditLog
from icedb_log.holds.leases import Lease
from icedb_log.ingest.quarantine import batch_id_of, is_reason
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore

from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.simulation.changes import Intent, Removal, RemovedRows
from icedb_sim.simulation.data import ROW_BITS
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Violation


@dataclass(slots=True)
class SimBatch:
    """One batch of a producer.

    Attributes:
        batch_id: Its id, of one with a key (I7) that of the first try.
        body: As it is staged.
        rows: Its rows, in any partition, without the bad ones.
        bad_count: Its bad rows.
        is_acknowledged: Whether a producer was told that it is accepted.
        is_quarantined: Whether it lies in quarantine, whole, or did until an operator took it away.
        has_reason: Whether the reason of that is there.
        bad_rows_key: Where its bad rows lie, by the last reason that says so.
        retry_id: Id under which an operator stages it again.
    """

    batch_id: str
    body: bytes
    rows: frozenset[int]
    bad_count: int = 0
    is_acknowledged: bool = False
    is_quarantined: bool = False
    has_reason: bool = False
    bad_rows_key: str = ""
    retry_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Where the world stood when a read began: what it must see at least."""

    commit_count: int
    committed: frozenset[str]
    types: dict[str, str]


@dataclass(slots=True)
class HeldLease:
    """A lease that its holder relies on: it was written, and then the tagged time could be read."""

    lease: Lease
    live: frozenset[str]


@dataclass(frozen=True, slots=True)
class Promise:
    """Until when the files of a read must exist."""

    until_ms: int
    live: frozenset[str]


@dataclass(slots=True)
class Landed:
    """A commit that landed."""

    time_ms: int
    batch_ids: tuple[str, ...]


@dataclass(slots=True)
class Counters:
    """What a schedule did, so that one can see that it did something."""

    commits: int = 0
    merges: int = 0
    removals: int = 0
    widenings: int = 0
    seals: int = 0
    strips: int = 0
    deleted_logs: int = 0
    deleted_data: int = 0
    deleted_orphans: int = 0
    reads: int = 0
    past_reads: int = 0
    refused_past_reads: int = 0
    leases: int = 0
    quarantined: int = 0
    quarantined_rows: int = 0
    retries: int = 0
    crashes: int = 0


class RowTruth:
    """The rows of batches and data files, and what was taken away.

    Args:
        batches: All that were ever staged, by id.
    """

    def __init__(self, batches: Mapping[str, SimBatch]) -> None:
        self.files: Final[dict[str, tuple[int, ...]]] = {}
        self.removed: Final = RemovedRows()
        self._batches = batches

    def rows_of(self, paths: Iterable[str]) -> list[int]:
        """Return the rows of data files, one by one."""
        files = self.files
        return [row for path in paths for row in files[path]]

    def rows_of_batches(self, batch_ids: Iterable[str]) -> set[int]:
        """Return the rows of batches, but for the bad ones."""
        batches = self._batches
        return set().union(*[batches[batch_id].rows for batch_id in batch_ids])

    def check_commit(
        self, key: str, rows: list[int], committed: Iterable[str], *, intent: Intent | None, removal: tuple[int, int]
    ) -> bool:
        """Check what is live after a commit; return whether it took rows away that its actor asked for.

        Args:
            key: Its log file.
            rows: What is live by everything that ever landed, file by file.
            committed: Batches.
            intent: What the actor asked for; ``None``: nothing.
            removal: Time and number of the commit.

        Raises:
            Violation: A row is there twice, or is missing, or is not of a committed batch.
        """
        live = set(rows)
        expected = self.rows_of_batches(committed) - self.removed.rows
        has_removed = False
        if intent is not None:
            time_ms, number = removal
            found = Removal(time_ms, number, frozenset(expected - live))
            due = self.rows_of_batches(intent.committed)
            self.removed.on_commit(key, found, intent=intent, live=live, due=due)
            has_removed = bool(found.rows)
            expected -= found.rows
        if len(rows) != len(expected) or live != expected:
            _explain(rows, expected, f"after {key} landed")
        return has_removed

    def check_read(
        self,
        rows: list[int],
        at_least: Iterable[str],
        at_most: Iterable[str],
        what: str,
        *,
        mark: ReadMark,
        at_ms: int | None = None,
    ) -> None:
        """Check what a read saw.

        Args:
            rows: File by file.
            at_least: Batches that it has to see.
            at_most: Batches that it may see.
            what: Names the read.
            mark: Where the world stood when it began.
            at_ms: The time that was asked for; ``None``: the newest state.

        Raises:
            Violation: Rows are missing, or there twice, or a batch or a removal was seen in part.
        """
        seen = set(rows)
        most = self.rows_of_batches(at_most) - self.removed.before(mark.commit_count, at_ms=at_ms)
        if len(seen) == len(rows) and seen == most:
            return
        going = self.removed.since(mark.commit_count, at_ms=at_ms)
        leaving = {row for gone in going for row in gone}
        by_number = {row >> ROW_BITS for row in seen}
        whole = self.rows_of_batches(b.batch_id for b in self._batches.values() if _number(b) in by_number) & most
        # What was there when the read began, and batches of which it saw something; less what went meanwhile.
        due = (self.rows_of_batches(at_least) & most) | whole
        least = due - leaving
        if len(seen) != len(rows) or not least <= seen <= most:
            _explain(rows, least if not least <= seen else seen & most, what)
        for gone in going:
            if gone & seen and not gone & due <= seen:
                _explain(rows, seen | (gone & due), f"{what} saw a part of a removal")


def _explain(rows: list[int], expected: set[int], what: str) -> None:
    twice = sorted({row for row in rows if rows.count(row) > 1})
    missing = sorted(expected - set(rows))
    extra = sorted(set(rows) - expected)
    raise Violation(
        f"{what}: rows twice {twice[:5]}, missing {missing[:5]}, not committed {extra[:5]}; nothing of these: "
        "a part of a batch (S1, M1, I3)"
    )


def _number(batch: SimBatch) -> int:
    return min(batch.rows) >> ROW_BITS if batch.rows else -1


class KeptBatches:
    """Copies of batches in quarantine.

    Args:
        batches: All that were ever staged, by id.
        others: Other content that was staged under an id.
        store_now_ms: The store's clock.
    """

    def __init__(
        self, batches: Mapping[str, SimBatch], others: Mapping[str, bytes], store_now_ms: Callable[[], int]
    ) -> None:
        self._batches = batches
        self._others = others
        self._store_now_ms = store_now_ms
        self._since_ms: dict[str, int] = {}
        self._released: set[str] = set()

    def __contains__(self, batch_id: str) -> bool:
        """Whether a whole copy of a batch, by its first id, is there, or was before it might go."""
        return batch_id in self._since_ms

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of a copy. Raises Violation: it is not what was staged."""
        if not _is_copy(key):
            return
        batch_id = batch_id_of(key)
        if body not in (self._batches[batch_id].body, self._others.get(batch_id)):
            raise Violation(f"{key} is not what was staged as {batch_id} (I5)")
        self._since_ms.setdefault(self._batches[batch_id].batch_id, self._store_now_ms())

    def on_delete(self, key: str, *, retention_ms: int | None) -> None:
        """Check that a copy, or a reason, may go.

        Args:
            key: What is about to be deleted, anything below the quarantine.
            retention_ms: How old a batch gets there; ``None``: none goes by its age.

        Raises:
            Violation: A batch goes whose retry is not staged and which is not old, or its reason goes before it.
        """
        if _is_conflict(key):
            return  # looked at by the scenario of those who make them
        if is_reason(key):
            self._on_reason_delete(key, self._batches[batch_id_of(key)])
        elif _is_copy(key):
            self._on_copy_delete(key, self._batches[batch_id_of(key)], retention_ms)

    def _on_copy_delete(self, key: str, batch: SimBatch, retention_ms: int | None) -> None:
        self._released.add(batch.batch_id)
        if batch.retry_id:
            if batch.retry_id not in self._batches:
                raise Violation(f"{key} goes, but its retry {batch.retry_id} was never staged (J11)")
        elif retention_ms is None or self._store_now_ms() < self._since_ms[batch.batch_id] + retention_ms:
            raise Violation(f"{key} goes, though nobody retried it, and before its time (J11)")

    def _on_reason_delete(self, key: str, batch: SimBatch) -> None:
        if batch.has_reason and batch.batch_id not in self._released:
            raise Violation(f"{key} goes before the batch that nobody finds without it (J11)")
        batch.has_reason = False


def _is_copy(key: str) -> bool:
    return ".batch-" in key.rpartition("/")[2] and not _is_conflict(key)


def _is_conflict(key: str) -> bool:
    return ".conflict-" in key.rpartition("/")[2]


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
        return AuditLog(TableStore(cast("ObjectStore", self), PATHS), clock=self._clock, owner="janitor")

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
