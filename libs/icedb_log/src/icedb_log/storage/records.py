"""Records: small objects under an id that nobody else uses."""

from icedb_log.errors import CommitOutcomeUnknown, CorruptLog, NotFound, PreconditionFailed, Unavailable
from icedb_log.storage.object_store import ObjectStore


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
