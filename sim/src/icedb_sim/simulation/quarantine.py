"""Whether quarantine keeps what it was given: the part of the oracle that looks at the payloads of refused batches.

A refused batch has been accepted, so it may leave staging only for a whole copy in quarantine; that copy may go only
when its retry is staged, or by its age; last of all goes the reason, without which nobody finds the copy.
"""

from collections.abc import Callable, Mapping

from icedb_log.ingest.quarantine import batch_id_of_object, is_reason

from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.world import Violation


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
        """Whether a whole copy of a batch is there, or was before it might go."""
        return batch_id in self._since_ms

    def forget(self) -> None:
        """Forget all copies: another table has the name."""
        self._since_ms.clear()
        self._released.clear()

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of a copy. Raises Violation: it is not what was staged."""
        if not _is_copy(key):
            return
        batch_id = batch_id_of_object(key)
        if body not in (self._batches[batch_id].body, self._others.get(batch_id)):
            raise Violation(f"{key} is not what was staged as {batch_id} (I5)")
        self._since_ms.setdefault(batch_id, self._store_now_ms())

    def on_delete(self, key: str, *, retention_ms: int | None) -> None:
        """Check that a copy, or a reason, may go.

        Args:
            key: What is about to be deleted, anything below the quarantine.
            retention_ms: How old a batch gets there; ``None``: none goes by its age.

        Raises:
            Violation: A batch goes whose retry is not staged and which is not old, or its reason goes before it.
        """
        if _is_conflict(key):
            return  # looked at by the troupe of those who make them
        if is_reason(key):
            self._on_reason_delete(key, self._batches[batch_id_of_object(key)])
        elif _is_copy(key):
            self._on_copy_delete(key, self._batches[batch_id_of_object(key)], retention_ms)

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
    return ".batch." in key.rpartition("/")[2] and not _is_conflict(key)


def _is_conflict(key: str) -> bool:
    return ".conflict-" in key.rpartition("/")[2]
