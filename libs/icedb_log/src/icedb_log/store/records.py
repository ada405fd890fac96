"""Records and claims: small objects under an id that nobody else uses."""

from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.store.object_store import ObjectStore, StoredObject


def create_record(store: ObjectStore, key: str, body: bytes, *, otherwise: str) -> str:
    """Create an object and return its ETag, also when the answer of the write got lost (W2).

    Args:
        store: The object store.
        key: With an id in it that is this caller's alone: whatever stands there was written by this very call.
        body: Its content.
        otherwise: For the message: what has not happened if the store confirms nothing, and what to do.

    Raises:
        CommitOutcomeUnknown: The store did not confirm it.
        CorruptLog: Something else stands there.
        Unavailable: The store did not take it.
    """
    try:
        return store.put_if_absent(key, body)
    except (PreconditionFailed, CommitOutcomeUnknown) as error:
        refusal = error  # refused by its own first try, or without an answer: only reading tells
    try:
        found = store.get(key)
    except (NotFound, Unavailable) as error:
        raise CommitOutcomeUnknown(f"no answer whether the record {key} was written; {otherwise}") from error
    if found.body != body:
        raise CorruptLog(f"{key}: holds something else than what was written under this id; a person must look") from (
            refusal
        )
    return found.info.etag


def create_claim(store: ObjectStore, key: str, body: bytes, *, ended: str) -> StoredObject:
    """Create an object that others may end, and return what stands there now, as the store tells it.

    Args:
        store: The object store.
        key: With an id in it that is this caller's alone: whatever stands there was made of this claim (W2).
        body: Its content; what stands there may be another by now.
        ended: For the message, if nothing stands there: what somebody did, and what to do.

    Raises:
        CommitConflict: Somebody took it away.
        CommitOutcomeUnknown: The store did not confirm the write, and nothing stands there yet.
        Unavailable: The store did not answer.
    """
    unknown: CommitOutcomeUnknown | None = None
    try:
        store.put_if_absent(key, body)
    except PreconditionFailed:
        pass
    except CommitOutcomeUnknown as error:
        unknown = error
    try:
        return store.get(key)
    except NotFound as error:
        raise unknown or CommitConflict(f"{key}: {ended}") from error
