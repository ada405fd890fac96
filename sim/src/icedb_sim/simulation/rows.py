"""Which rows a table has to have: the part of the oracle that counts them, at each commit and at each read."""

from collections.abc import Iterable, Mapping
from typing import Final

from icedb_sim.simulation.changes import Intent, Removal, RemovedRows
from icedb_sim.simulation.data import ROW_BITS
from icedb_sim.simulation.facts import ReadMark, SimBatch
from icedb_sim.simulation.world import Violation


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
        "a part of a batch (S1, M1, M2, I3)"
    )


def _number(batch: SimBatch) -> int:
    return min(batch.rows) >> ROW_BITS if batch.rows else -1
