"""Quarantine: batches that cannot be committed, kept whole with the reason (rule I5).

For each batch two objects: the payload under its staged name, and ``<batch id>.json`` with the reason. The reason
is written last and the staged object deleted after it, so a crash at any step leads to the same end.
"""

from dataclasses import dataclass

import orjson

from icedb_log.clock import Clock
from icedb_log.errors import NotFound
from icedb_log.jobs import RejectedBatch
from icedb_log.keys import TablePaths
from icedb_log.object_store import ObjectInfo, ObjectStore, list_all

_REASON_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class QuarantinedBatch:
    """One batch in quarantine.

    Attributes:
        batch_id: Its id.
        reason: Why it could not be committed, in words for its producer.
        payload_key: Where its rows are.
        size_bytes: Size of the payload as it was staged.
        quarantined_ms: When, by the worker's clock.
    """

    batch_id: str
    reason: str
    payload_key: str
    size_bytes: int
    quarantined_ms: int


def quarantine_batch(store: ObjectStore, paths: TablePaths, *, rejected: RejectedBatch, clock: Clock) -> None:
    """Move a staged batch to quarantine. Idempotent; a batch that is gone already was moved by another run.

    Raises:
        Unavailable: The store did not answer; the batch stays staged.
        CommitOutcomeUnknown: The same; the next run does it again.
    """
    batch = rejected.batch
    name = batch.key.rpartition("/")[2]
    try:
        body = store.get(batch.key).body
    except NotFound:
        return
    payload_key = paths.quarantine_key(name)
    store.put(payload_key, body)
    reason = {
        "batch_id": batch.batch_id,
        "reason": rejected.reason,
        "payload": payload_key,
        "bytes": batch.size_bytes,
        "quarantined_ms": clock.now_ms(),
    }
    store.put(paths.quarantine_key(batch.batch_id + _REASON_SUFFIX), orjson.dumps(reason))
    store.delete([batch.key])


def count_quarantined(store: ObjectStore, paths: TablePaths) -> int:
    """Count the batches in quarantine: one listing."""
    listing = list_all(store, paths.quarantine_prefix)
    return sum(1 for info in listing.objects if info.key.endswith(_REASON_SUFFIX))


def list_quarantined(store: ObjectStore, paths: TablePaths) -> tuple[QuarantinedBatch, ...]:
    """Read every batch in quarantine, oldest id first. Costs a listing and one GET for each batch.

    A reason that cannot be read does not hide the others: it comes as an entry that says so.
    """
    found: list[QuarantinedBatch] = []
    for info in list_all(store, paths.quarantine_prefix).objects:
        if not info.key.endswith(_REASON_SUFFIX):
            continue
        try:
            found.append(_parse_reason(info, store.get(info.key).body))
        except NotFound:
            continue  # an operator has just taken it away
    return tuple(found)


def _parse_reason(info: ObjectInfo, body: bytes) -> QuarantinedBatch:
    try:
        value = orjson.loads(body)
        return QuarantinedBatch(
            batch_id=str(value["batch_id"]),
            reason=str(value["reason"]),
            payload_key=str(value["payload"]),
            size_bytes=int(value["bytes"]),
            quarantined_ms=int(value["quarantined_ms"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        name = info.key.rpartition("/")[2].removesuffix(_REASON_SUFFIX)
        reason = f"{info.key} does not hold a reason ({type(error).__name__}); inspect it by hand"
        return QuarantinedBatch(name, reason, info.key, info.size_bytes, info.modified_ms)
