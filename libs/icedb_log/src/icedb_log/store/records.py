"""Records: small objects that several writers create and change, each write under a condition (W2).

A conditional write that was refused, or got no answer, says nothing for certain: it may have been refused by its own
first try. Only reading tells, and here is who reads. A record's owner alone knows what its bytes mean. Of many small
objects that are looked at again and again, :class:`KnownObjects` fetches those that have changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from icedb_log.clock import Clock
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

MAX_SETTLE_ATTEMPTS: Final = 8
"""How often it is looked for a write without an answer, where looks get none either."""
FIRST_BACKOFF_MS: Final = 5
MAX_BACKOFF_MS: Final = 1000

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
        CommitOutcomeUnknown: The store did not confirm the write, and nothing stands there yet, or nobody could look.
        Unavailable: The store did not take it.
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
    except Unavailable as error:
        raise _unknown(key) from error


def put_over(store: ObjectStore, key: str, body: bytes, *, etag: str | None, clock: Clock | None = None) -> str | None:
    """Write over the state that was read, and return the new ETag; ``None`` if another state is there, or none.

    One PUT, if it is answered.

    Args:
        store: The object store.
        key: Its key.
        body: Another one than any before: bodies never repeat, so that one that is found is this very write (W2).
        etag: Of the state that was read; ``None``: there was none.
        clock: Waits between looks that get no answer; ``None``: there is one look.

    Raises:
        CommitOutcomeUnknown: No answer, and the write may still land. Or nobody could look.
        Unavailable: The store did not take it.
    """
    is_unknown = False
    try:
        return store.put_if_absent(key, body) if etag is None else store.put_if_match(key, body, etag=etag)
    except PreconditionFailed:
        pass  # W2: an earlier try of this very request may have landed; only reading tells
    except CommitOutcomeUnknown:
        is_unknown = True
    for attempt in range(1 if clock is None else MAX_SETTLE_ATTEMPTS):
        if clock is not None:
            back_off(clock, attempt)
        try:
            found = store.get(key)
        except NotFound:
            if is_unknown and etag is None:
                break
            return None
        except Unavailable:
            is_unknown = True
            continue
        if found.body == body:
            return found.info.etag
        if is_unknown and found.info.etag == etag:
            break
        return None
    raise _unknown(key)


def replace_claim(store: ObjectStore, key: str, body: bytes, *, etag: str) -> ObjectInfo | None:
    """Write as :func:`put_over`, and return what the store says of the new state, above all its time.

    ``None`` if another state is there, or none, by now. Raises as :func:`put_over`.
    """
    if put_over(store, key, body, etag=etag) is None:
        return None
    try:
        found = store.get(key)
    except NotFound:
        return None
    except Unavailable as error:
        raise _unknown(key) from error
    return found.info if found.body == body else None


def back_off(clock: Clock, attempt: int) -> None:
    """Wait before a look, longer each time; not before the first, which is number 0."""
    if attempt:
        clock.sleep_ms(min(FIRST_BACKOFF_MS << attempt, MAX_BACKOFF_MS))


def _unknown(key: str) -> CommitOutcomeUnknown:
    return CommitOutcomeUnknown(f"{key}: no answer whether it was written; what is there now tells")


MAX_CHANGE_ATTEMPTS: Final = 10
"""How often a change is written, if others change the object meanwhile, or nobody knows whether it was."""


@dataclass(frozen=True, slots=True)
class Change(Generic[_T]):
    """The outcome of an update.

    Attributes:
        state: What the object says now.
        is_new: Whether a write of this very call landed: another writer of the very same bytes counts for it.
    """

    state: _T
    is_new: bool


@dataclass(frozen=True, slots=True)
class CasObject(Generic[_T]):
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

    def read(self) -> _T | None:
        """Return what it says; ``None``: it is not there. Raises Unavailable, and what ``decode`` does."""
        stored = self._look()
        return None if stored is None else self.decode(stored)

    def update(
        self,
        change: Callable[[_T | None], _T],
        *,
        gave_up: type[IceDBError] = CommitConflict,
        in_steps: bool = False,
        is_likely_new: bool = False,
    ) -> Change[_T]:
        """Change it by compare-and-set, until that holds or there is nothing to change.

        A write that is refused, or gets no answer, is looked for (W2): it has landed if the object has its bytes, and
        never will once the object has another ETag than the one that was written over.

        Args:
            change: Returns the new state, given the current one (``None``: there is none): an equal one is not written.
                Called again when somebody else was faster, or nobody knows: it must change only what is still to be
                changed. What it raises ends the call.
            gave_up: What is raised if others kept changing it.
            in_steps: Go on after a write until ``change`` finds nothing to change any more.
            is_likely_new: Suppose that it is not there, and save the first look.

        Raises:
            IceDBError: What ``change`` and ``decode`` raise, or ``gave_up``: nothing was written, nor will be.
            CommitOutcomeUnknown: A write got no answer and may land yet, or its outcome could not be read.
            Unavailable: The store did not answer; nothing was written.
        """
        last = _LastWrite()
        try:
            for count in range(MAX_CHANGE_ATTEMPTS + 1):
                stored = None if is_likely_new and not count else self._look()
                last.judge(stored)
                if stored is not None and last.is_new and not in_steps:
                    return Change(self.decode(stored), is_new=True)
                current = None if stored is None else self.decode(stored)
                changed = change(current)
                if changed == current:
                    return Change(changed, last.is_new)
                is_sent = count < MAX_CHANGE_ATTEMPTS and last.send(self, self.encode(changed), over=stored)
                if is_sent and not in_steps:
                    return Change(changed, is_new=True)
            raise gave_up(f"{self.key}: others changed it {MAX_CHANGE_ATTEMPTS} times in a row; try again later")
        except IceDBError as error:
            if last.is_open or (last.is_new and isinstance(error, Unavailable)):
                raise _unknown(self.key) from error
            raise

    def _look(self) -> StoredObject | None:
        try:
            return self.store.get(self.key)
        except NotFound:
            return None


@dataclass(slots=True)
class _LastWrite:
    """The outcome of the last write of an update (W2).

    Attributes:
        body: What was sent.
        over: ETag of the state that it was sent over; ``None``: of none.
        is_open: Whether it may have landed, or may land yet.
        is_new: Whether this one, or one before, has landed.
    """

    body: bytes | None = None
    over: str | None = None
    is_open: bool = False
    is_new: bool = False
    _is_unanswered: bool = False

    def send(self, place: "CasObject[Any]", body: bytes, *, over: StoredObject | None) -> bool:
        """Write over a state, or over none; return whether it certainly landed. Raises Unavailable: it did not."""
        self.body, self.over = body, None if over is None else over.info.etag
        try:
            if self.over is None:
                place.store.put_if_absent(place.key, body)
            else:
                place.store.put_if_match(place.key, body, etag=self.over)
        except (PreconditionFailed, CommitOutcomeUnknown) as error:
            self.is_open, self._is_unanswered = True, isinstance(error, CommitOutcomeUnknown)
            return False
        self.is_new, self.is_open = True, False
        return True

    def judge(self, found: StoredObject | None) -> None:
        """See what is there now: the bytes that were sent, a state over which they never land, or the one before."""
        etag = None if found is None else found.info.etag
        if self.is_open and found is not None and found.body == self.body:
            self.is_new, self.is_open = True, False
        self.is_open = self.is_open and self._is_unanswered and etag == self.over


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
