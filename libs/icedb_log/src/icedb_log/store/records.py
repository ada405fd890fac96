"""Records: small objects that several writers create and change, each write under a condition (W2).

A conditional write that was refused, or got no answer, says nothing for certain: it may have been refused by its own
first try. Only reading tells, and here is who reads. A record's owner alone knows what its bytes mean. Of many small
objects that are looked at again and again, :class:`KnownObjects` fetches those that have changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    HaltError,
    IceDBError,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject, limit_reads, map_each
from icedb_log.texts import first_message

_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)


def parse_record(model: type[_Model], stored: StoredObject, error: type[HaltError], says: str) -> _Model:
    """Return what an object says, as a model reads it.

    Args:
        model: The model.
        stored: The object.
        error: What is raised if it cannot be understood.
        says: Its message, after the key: what it is not, why (``{why}``), and what a person does.
    """
    try:
        return model.model_validate_json(stored.body)
    except ValidationError as problem:
        raise error(f"{stored.info.key}: {says.format(why=first_message(problem))}") from problem


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


def replace_claim(store: ObjectStore, key: str, body: bytes, *, etag: str) -> ObjectInfo | None:
    """Write over the state with ``etag``, and look; ``None`` if another state is there, or none.

    Args:
        store: The object store.
        key: Its key.
        body: Another one than any before: bodies never repeat.
        etag: Of the state that was read.

    Raises:
        CommitOutcomeUnknown: No answer, and the old state is there: the write may still land.
        Unavailable: The store did not answer.
    """
    unknown: CommitOutcomeUnknown | None = None
    try:
        store.put_if_match(key, body, etag=etag)
    except PreconditionFailed:
        pass  # W2: an earlier try of this very request may have landed; only reading tells
    except CommitOutcomeUnknown as error:
        unknown = error
    try:
        found = store.get(key)
    except NotFound:
        return None
    if found.body == body:
        return found.info
    if unknown is not None and found.info.etag == etag:
        raise unknown
    return None


def replace_record(store: ObjectStore, key: str, body: bytes, *, etag: str | None) -> bool:
    """Write over the state with ``etag``, or over none (``None``); return whether it certainly is written.

    If not, somebody else was faster, or it was this very request, or there was no answer: only reading tells (W2).
    Raises Unavailable.
    """
    try:
        if etag is None:
            store.put_if_absent(key, body)
        else:
            store.put_if_match(key, body, etag=etag)
    except (PreconditionFailed, CommitOutcomeUnknown):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Record(Generic[_T]):
    """One object that is changed by compare-and-set, as its owner reads it.

    Attributes:
        store: Where it is.
        key: Its key.
        decode: Returns what an object says; raises, if it cannot be understood.
        encode: Returns the bytes.
    """

    store: ObjectStore
    key: str
    decode: Callable[[StoredObject], _T]
    encode: Callable[[_T], bytes]

    def read(self) -> tuple[_T | None, str | None]:
        """Return what it says, with its ETag; both ``None`` if it is not there. Raises Unavailable."""
        try:
            stored = self.store.get(self.key)
        except NotFound:
            return None, None
        return self.decode(stored), stored.info.etag

    def change(self, change: Callable[[_T | None], _T], *, tries: int, gave_up: IceDBError) -> _T:
        """Change it by compare-and-set until that holds; return what it says then. Idempotent if ``change`` is.

        Args:
            change: Makes the new value of the current one (``None``: there is none). Called again when somebody else
                was faster, or nobody knows (W2), so it must change only what is still to be changed. An equal value is
                not written.
            tries: How often.
            gave_up: What is raised if others kept changing it.

        Raises:
            IceDBError: What ``change`` and ``decode`` raise, or ``gave_up``.
            Unavailable: The store did not answer.
        """
        for _ in range(tries):
            current, etag = self.read()
            changed = change(current)
            if changed == current or replace_record(self.store, self.key, self.encode(changed), etag=etag):
                return changed
        raise gave_up


FETCH_THREADS: Final = 16
_Said = TypeVar("_Said")


class KnownObjects(Generic[_Said]):
    """Reads the objects of listings of one prefix; keeps what it read by key and version. Thread-safe.

    Args:
        decode: Makes a value of an object; must not raise.
        threads: Objects fetched at once, where the store is one that is waited for.
    """

    def __init__(self, decode: Callable[[StoredObject], _Said], *, threads: int = FETCH_THREADS) -> None:
        self._decode = decode
        self._threads = threads
        self._known: dict[str, tuple[ObjectInfo, _Said]] = {}

    def read(self, store: ObjectStore, infos: Sequence[ObjectInfo]) -> list[_Said]:
        """Return what listed objects say, without those that are gone. One GET for each that is new or has changed.

        Raises:
            Unavailable: The store did not answer.
        """
        known = self._known
        current = {info.key: known[info.key] for info in infos if info.key in known and known[info.key][0] == info}
        stale = [info for info in infos if info.key not in current]

        def fetch(info: ObjectInfo) -> tuple[ObjectInfo, _Said] | None:
            try:
                # Time and content from one answer: it may have been written again since the listing. It is kept as what
                # was listed: the next listing says otherwise, and it is read again.
                return info, self._decode(store.get(info.key))
            except NotFound:
                return None

        fetched = map_each(fetch, stale, threads=limit_reads(store, self._threads), name="icedb-known-objects")
        current |= {found[0].key: found for found in fetched if found is not None}
        self._known = current
        return [current[info.key][1] for info in infos if info.key in current]
