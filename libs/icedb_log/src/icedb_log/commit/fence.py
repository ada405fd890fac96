"""The fence: one committer at a time for a role, without trusting a lock or a clock (rules F1 to F6, W2).

Owns ``_icedb/fence/<role>.json`` and every PUT of a new log file. The order inside :meth:`HeldFence.commit`
is what keeps two owners apart: first the intent in the fence, then the log file. A new owner settles the
intent of the old one before it reads anything: it seals the key, or finds that the commit landed.
Must never delete anything, and must never take a lost answer for a lost write. A run that works looks now and then
whether it still has its fence (:class:`FenceWatch`), so that a lost run ends early.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Final

import orjson
from pydantic import TypeAdapter, ValidationError

from icedb_log.clock import Clock
from icedb_log.commit.losses import NO_LOSSES, Losses
from icedb_log.commit.table import Acquired, PreviousHolder, Table
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    Fenced,
    HaltError,
    IceDBError,
    InvariantViolated,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.jobs import CheckAlive
from icedb_log.keys import ROLES, Role, parse_log_key
from icedb_log.log.codec import decode_log_file, decode_log_head, encode_log_file
from icedb_log.log.fold import add_landed
from icedb_log.model import LogFile
from icedb_log.phases import phase
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.store.records import FIRST_BACKOFF_MS, MAX_SETTLE_ATTEMPTS, back_off, put_over
from icedb_log.store.table_store import TableStore
from icedb_log.texts import first_message
from icedb_log.units import MINUTE_MS, SECOND_MS

MAX_ACQUIRE_ATTEMPTS = 20

CLAIM_MS: Final = 8 * SECOND_MS
"""How long others keep away from a fence after each write of its owner (F6)."""
MAX_INTERRUPTED: Final = 13
"""Runs in a row that were interrupted, as far as they are counted: of the 5,000 batches of a flush one is left."""
MAX_SEAL_BYTES: Final = 128
"""No seal is larger, and hardly another log file as small."""
MAX_PAUSE_MS: Final = 160
"""Between two reads of a fence by a run that waits for it."""
WORKER_SEEN_MS: Final = MINUTE_MS
"""A worker of the stack that has written a fence within so long, by the store's clock, counts as alive."""
_WORKERS: Final = ("ingest", "merger", "janitor")


@dataclass(frozen=True, slots=True)
class FenceState:
    """Content of a fence object.

    Attributes:
        epoch: Number of the ownership; grows by one with each acquisition.
        owner: Unique for each acquisition, never reused.
        commit: Key of the log file that the owner is about to PUT; ``None`` when nothing is under way.
        sequence: Number of the write within the ownership: no two states are ever equal, so an ETag never returns.
        landed: Names of the log files of the last commits that certainly landed, the newest last (F5). One that is
            not there proves nothing: the history is short.
        differed: Key of an input of the merge whose outputs did not hold what its inputs hold (M6); empty: of none.
        claim_ms: For how long after this write, by the store's clock, the owner asks others to keep away (F6); 0: it
            has let the fence go. Advice: nothing is built on it.
        work: Commit id of the data files that the owner is writing (B1); empty: none.
        worker_ms: LastModified of the last write by a worker of the stack, if another owner has the fence since.
        losses: Owners that have ended without a word, in a row: what they read may have ended their process (I5). A
            flush that has taken all there was forgets them.
        interrupted: Of ``ingest``, runs in a row that lost the fence while they worked, to one whose patience had ended
            (F6). A flush takes fewer batches by it, and takes one off when it has written their data files.
    """

    epoch: int
    owner: str
    commit: str | None
    sequence: int = 0
    landed: tuple[str, ...] = ()
    differed: str = ""
    claim_ms: int = 0
    work: str = ""
    worker_ms: int = 0
    losses: Losses = NO_LOSSES
    interrupted: int = 0

    @property
    def holder(self) -> str:
        """The process that has the fence, the same in all its acquisitions."""
        return self.owner.rpartition("/")[0]

    def previous_holder(self, owner: str) -> PreviousHolder:
        """Return in which state ``owner`` finds the fence; its own earlier acquisition counts as abandoned (F6)."""
        if not (self.claim_ms or self.commit):
            return "free"
        return "working" if self.claim_ms and self.holder != owner else "abandoned"

    def claimed_ms(self, modified_ms: int, *, now_ms: int) -> int:
        """Return how long others should keep away, by the store's clock (F6). Whatever a claim says is bounded."""
        return max(0, modified_ms + min(self.claim_ms, CLAIM_MS) - now_ms)

    def seen_worker_ms(self, modified_ms: int) -> int:
        """Return when a worker of the stack wrote the fence last; 0: unknown."""
        return modified_ms if self.owner.partition("@")[0] in _WORKERS else self.worker_ms


_STATE: Final = TypeAdapter(FenceState)
_ALWAYS_SAID: Final = ("epoch", "owner", "commit", "sequence")
_LEFT_OUT: Final = {each.name: each.default for each in fields(FenceState) if each.name not in _ALWAYS_SAID}
_STATE_FIELDS: Final = tuple(each.name for each in fields(FenceState))


@dataclass(frozen=True, slots=True)
class FenceLook:
    """What a fence says about its owner.

    Attributes:
        owner: The last owner; empty: none.
        claimed_ms: How long its claim still lasts; 0: it has released the fence, or its claim has run out.
        worker_age_ms: How long ago a worker of the stack wrote the fence; ``None``: unknown.
        role: Of the fence: ``ingest`` adds rows, ``merge`` replaces data files.
        commit: Key of the log file that is about to be written; ``None``: none.
        landed: Names of the log files of commits that certainly landed (F5).
    """

    owner: str = ""
    claimed_ms: int = 0
    worker_age_ms: int | None = None
    role: Role = "ingest"
    commit: str | None = None
    landed: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_worker_alive(self) -> bool:
        """Whether a worker of the stack has been at work just now."""
        return self.worker_age_ms is not None and self.worker_age_ms <= WORKER_SEEN_MS


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that certainly landed: the key of its log file and its content."""

    key: str
    log: LogFile


class HeldFence:
    """An acquired fence. Valid until another owner acquires it; only a commit finds out. Not thread-safe."""

    def __init__(self, table: Table, role: Role, *, state: FenceState, etag: str, follows_lost: bool = False) -> None:
        self._store = table.store
        self._paths = table.paths
        self._clock = table.clock
        self._reader = table.reader
        self._role: Role = role
        self._state = state
        self._etag = etag
        self._follows_lost = follows_lost

    @property
    def epoch(self) -> int:
        """Number of this ownership."""
        return self._state.epoch

    @property
    def differed(self) -> str:
        """Key of an input of the last merge that was refused by its contents (M6); empty: of none."""
        return self._state.differed

    def note_difference(self, path: str) -> None:
        """Remember for the owners to come that a merge of a data file was refused by its contents (M6).

        Raises:
            Fenced: Another owner took over.
            CommitOutcomeUnknown: No usable answer.
        """
        self._state = replace(self._state, differed=path)
        self._advance(commit=None, claim_ms=0)

    def forget_difference(self) -> None:
        """Forget it with the next write of the fence."""
        self._state = replace(self._state, differed="")

    @property
    def losses(self) -> Losses:
        """Owners before this one that have ended without a word, in a row (I5)."""
        return self._state.losses

    @property
    def follows_lost(self) -> bool:
        """Whether the owner right before this one is one of them."""
        return self._follows_lost

    @property
    def interrupted(self) -> int:
        """How many runs in a row were interrupted before this one (F6)."""
        return self._state.interrupted

    def read_part(self, first: str, last: str) -> None:
        """Write down which batches are read now: if that ends this process, the next owner knows (I5).

        Args:
            first: The least of their ids.
            last: The greatest.

        Raises:
            Fenced: Another owner took over.
            CommitOutcomeUnknown: No usable answer.
        """
        self._state = replace(self._state, losses=self.losses.read_part(first, last, epoch=self.epoch))
        self._advance(commit=None)

    def note_written(self) -> None:
        """Say with the next write of the fence that the data files are written: this run was not lost, nor interrupted.

        Whoever has lost the fence meanwhile says nothing.
        """
        interrupted = max(0, self.interrupted - 1)
        self._state = replace(self._state, losses=self.losses.note_read(), interrupted=interrupted)

    def forget_lost(self) -> None:
        """Forget lost owners with the next write of the fence: nothing that they may have read is left."""
        self._state = replace(self._state, losses=NO_LOSSES)

    def announce_writing(self, commit_id: str) -> None:
        """Name, in each write of the fence from now on, the commit whose data files are being written (B1)."""
        self._state = replace(self._state, work=commit_id)

    def commit(
        self, log: LogFile, *, last_check: Callable[[], None] | None = None, beside: "HeldFence | None" = None
    ) -> Committed:
        """Commit a log file (F3): write the intent, then PUT the log file.

        Not idempotent: each commit has its own ``commit_id`` and key. Its three outcomes: returned means landed;
        ``Fenced`` and ``CommitConflict`` mean certainly refused; ``CommitOutcomeUnknown`` means look again later.

        Args:
            log: With ``commit_id`` set. Its key follows from role, ``time_ms`` and ``commit_id``.
            last_check: Called between intent and PUT; raises if the work has become too old (W3).
            beside: The fence of the other role, acquired before the log was read last: its next owner settles this
                commit, too, before it reads anything (S2).

        Raises:
            IceDBError: What ``last_check`` raised; nothing was written to the log.
            Fenced: Another owner took over; nothing was written to the log.
            CommitConflict: The PUT got lost and its key has been sealed: it certainly did not land.
            CommitOutcomeUnknown: The store answered neither the PUT nor the questions about it (W2).
        """
        if log.commit_id is None:
            raise InvariantViolated(f"table {self._paths.name}: a commit needs a commit id (W2)")
        key = self._paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id, is_merged=self._role == "merge")
        with phase("write the intent"):
            self._advance(commit=key)
        if beside is not None:
            try:
                beside._advance(commit=key)  # noqa: SLF001 - of this class
            except IceDBError:
                self.release()
                raise
        if last_check is not None:
            # WARN: not before the intent. A worker that stalls after the check and has no intent yet is invisible:
            # the orphan sweep deletes its data files, it wakes up and names them. With the intent, J5 seals it.
            try:
                last_check()
            except IceDBError:
                if beside is not None:
                    beside.release()
                self.release()
                raise
        self._put_log_file(key, log)
        # F5: said at the next write of the fence, and never before: an intent is no commit.
        self._state = replace(self._state, landed=add_landed(self._state.landed, key))
        return Committed(key, log)

    def _put_log_file(self, key: str, log: LogFile) -> None:
        body = encode_log_file(log)
        try:
            with phase("put the log file"):
                etag = self._store.put_if_absent(key, body)
        except PreconditionFailed:
            self._require_landed(key, log, is_key_taken=True)
        except CommitOutcomeUnknown:
            self._require_landed(key, log, is_key_taken=False)
        else:
            if self._role == "ingest":  # who reads heads
                self._reader.heads.remember(key, etag=etag, body=body)

    def confirm(self) -> None:
        """Prove that the fence is still mine, by a conditional write of it, which renews its claim (F6).

        No commit may be under way.

        Raises:
            Fenced: Another owner took over.
            CommitOutcomeUnknown: No usable answer.
        """
        self._advance(commit=None)

    def require_held(self) -> None:
        """Look whether another owner took the fence; no proof that none will (:meth:`confirm`, :meth:`commit`).

        Raises:
            Fenced: Another owner took over.
            Unavailable: No usable answer.
        """
        key = self._paths.fence_key(self._role)
        try:
            is_mine = self._store.head(key).etag == self._etag
        except NotFound:
            is_mine = False
        if not is_mine:
            raise self._taken()

    def release(self) -> None:
        """Say that no commit is under way, so that the next owner has nothing to settle. Best effort.

        Only if nothing was sent, or after a commit whose outcome is known. A failure is harmless: the next owner
        settles it (F1).
        """
        self.announce_writing("")
        self.release_keeping_writer()

    def release_keeping_writer(self) -> None:
        """Release the fence, and leave in it the commit whose data files were being written (B1). Best effort."""
        try:
            self._advance(commit=None, claim_ms=0)
        except (Fenced, CommitOutcomeUnknown, Unavailable):
            return

    def _advance(self, *, commit: str | None, claim_ms: int = CLAIM_MS) -> None:
        held = self._state
        state = replace(held, commit=commit, sequence=held.sequence + 1, claim_ms=claim_ms)
        etag = write_fence(self._store, self._paths.fence_key(self._role), state, etag=self._etag, clock=self._clock)
        if etag is None:
            raise self._taken()
        self._state, self._etag = state, etag

    def _taken(self) -> Fenced:
        return Fenced(
            f"table {self._paths.name}: another {self._role} worker took the fence from epoch {self._state.epoch}; "
            "this run stops, the other one goes on"
        )

    def _require_landed(self, key: str, log: LogFile, *, is_key_taken: bool) -> None:
        """Find out what became of a PUT (W2); return if it landed."""
        has_tried_to_seal = False
        for attempt in range(MAX_SETTLE_ATTEMPTS):
            back_off(self._clock, attempt)
            try:
                found = decode_log_file(key, self._store.get(key).body)
            except NotFound:
                if is_key_taken:
                    break  # it was there and is gone: landed and vacuumed, or sealed; nobody can say
                has_tried_to_seal = True
                if self._is_sealed_now(key):
                    raise self._refused(key) from None
                continue  # the commit came in between, or no answer: only reading tells
            except Unavailable:
                continue
            if found.commit_id == log.commit_id:
                return
            if has_tried_to_seal:
                raise self._refused(key)
            raise Fenced(f"table {self._paths.name}: the commit {key} was sealed by a new owner; this run stops")
        raise CommitOutcomeUnknown(
            f"table {self._paths.name}: no answer whether the commit {key} landed; its files stay, "
            "the next run settles it"
        )

    def _is_sealed_now(self, key: str) -> bool:
        try:
            return seal(self._store, key)
        except (CommitOutcomeUnknown, Unavailable):
            # WARN: W2: whatever becomes of the seal, the commit before it may still land: only reading tells.
            return False

    def _refused(self, key: str) -> CommitConflict:
        return CommitConflict(
            f"table {self._paths.name}: the commit {key} did not reach the store and is sealed; run again"
        )


def acquire_fence(table: Table, role: Role) -> HeldFence:
    """Become the one committer of a role (F1). The log must be read only after this returned (F2).

    Whoever is at work is waited for (F6), within the patience of the table; its own owner is not.

    Args:
        table: The table. Its owner is made unique here.
        role: ``ingest`` or ``merge``.

    Raises:
        IceDBError: What ``check_alive`` of the table raised while it waited.
        Unavailable: The store did not answer, or others kept taking the fence.
    """
    store, paths, clock = table.store, table.paths, table.clock
    key = paths.fence_key(role)
    unique_owner = f"{table.owner}/{clock.new_id()}"
    begun_ms = clock.monotonic_ms()
    # F6: not all who wait for one lose their patience at once, and take the fence from each other.
    until_ms = begun_ms + table.patience_ms + table.patience_ms * int(unique_owner[-2:], 16) // 1024
    attempt = 0
    while attempt < MAX_ACQUIRE_ATTEMPTS:
        back_off(clock, attempt)
        found = _wait_for_others(table, key, until_ms=until_ms)
        current = found.state
        attempt = 1 if found.has_waited else attempt + 1  # many wait, one wins: that is no reason to give up
        landed = () if current is None else current.landed
        if current is not None and current.commit is not None:
            # F1: after this, the old owner's commit has landed or can never land (F4).
            try:
                is_sealed = _settle(TableStore(store, paths), current.commit)
            except CommitOutcomeUnknown:
                continue
            if not is_sealed and _has_landed(store, current.commit):
                landed = add_landed(landed, current.commit)
        is_lost = _is_lost(found, owner=table.owner)
        losses = current.losses if current is not None else NO_LOSSES
        if current is not None and is_lost:
            losses = losses.add(epoch=current.epoch, modified_ms=found.modified_ms)
        state = FenceState(
            (current.epoch if current else 0) + 1,
            unique_owner,
            None,
            landed=landed,
            differed=current.differed if current is not None else "",
            claim_ms=CLAIM_MS,
            worker_ms=found.worker_ms,
            losses=losses,
            interrupted=found.interrupted if role == "ingest" else 0,  # merges commit parts of their work as they go
        )
        try:
            new_etag = write_fence(store, key, state, etag=found.etag, clock=clock)
        except CommitOutcomeUnknown:
            continue
        if new_etag is not None:
            before = "" if current is None else current.holder
            table.on_fence(Acquired(role, before, found.previous_holder, waited_ms=clock.monotonic_ms() - begun_ms))
            return HeldFence(table, role, state=state, etag=new_etag, follows_lost=is_lost)
    raise Unavailable(
        f"table {paths.name}: the {role} fence {key} was taken by others {MAX_ACQUIRE_ATTEMPTS} times; try again later"
    )


@dataclass(frozen=True, slots=True)
class _Found:
    state: FenceState | None
    etag: str | None
    previous_holder: PreviousHolder
    modified_ms: int = 0
    has_waited: bool = False

    @property
    def worker_ms(self) -> int:
        """When a worker of the stack wrote the fence last; 0: unknown."""
        return self.state.seen_worker_ms(self.modified_ms) if self.state is not None else 0

    @property
    def interrupted(self) -> int:
        """How many runs in a row were interrupted, with the one from which the fence is taken now (F6)."""
        interrupted = self.state.interrupted if self.state is not None else 0
        return min(interrupted + (self.has_waited and self.previous_holder == "working"), MAX_INTERRUPTED)


def _wait_for_others(table: Table, key: str, *, until_ms: int) -> _Found:
    """Return the fence once its owner has let it go, or its claim has ended, or this one's patience (F6)."""
    clock = table.clock
    ahead_ms: int | None = None
    for attempt in count():
        state, info = read_fence_object(table.store, key)
        if state is None or info is None:
            return _Found(None, None, "free", has_waited=attempt > 0)
        now_ms, previous_holder = clock.monotonic_ms(), state.previous_holder(table.owner)
        if previous_holder == "working" and now_ms < until_ms:
            if ahead_ms is None:  # F6: the store's clock, for one request, and only if somebody is at work
                ahead_ms = table.read_store_clock() - now_ms
            claimed_ms = state.claimed_ms(info.modified_ms, now_ms=clock.monotonic_ms() + ahead_ms)
            if claimed_ms:
                table.check_alive()
                pause_ms = min(FIRST_BACKOFF_MS << min(attempt, 8), MAX_PAUSE_MS, until_ms - now_ms, claimed_ms)
                clock.sleep_ms(1 + pause_ms * int(clock.new_id()[-2:], 16) // 256)  # not all at once
                continue
            previous_holder = "abandoned"
        return _Found(state, info.etag, previous_holder, info.modified_ms, has_waited=attempt > 0)
    raise AssertionError  # it ends with its patience


def _is_lost(found: _Found, *, owner: str) -> bool:
    """Whether the last owner was lost: its claim ran out before it committed (I5).

    Not one from whom the fence is taken before that, by who has no patience or bears the same name: he may be at work
    (in another thread), and the batch that he reads a good one.
    """
    state = found.state
    if state is None or found.previous_holder != "abandoned" or state.holder == owner:
        return False
    return bool(state.claim_ms) and state.commit is None


def look_at_fence(table: TableStore, role: Role = "ingest") -> FenceLook:
    """Read who holds a fence of a table: two small requests. The answer may change at once.

    Raises:
        CorruptLog: The fence cannot be understood.
        Unavailable: The store did not answer.
    """
    return _look(table, role, now_ms=table.read_store_clock())


def look_at_fences(table: TableStore, *, now_ms: int) -> tuple[FenceLook, ...]:
    """Read who holds each fence of a table, given the store's time. Raises as :func:`look_at_fence`."""
    return tuple(_look(table, role, now_ms=now_ms) for role in ROLES)


def _look(table: TableStore, role: Role, *, now_ms: int) -> FenceLook:
    state, info = read_fence_object(table.store, table.paths.fence_key(role))
    if state is None or info is None:
        return FenceLook(role=role)
    seen_ms = state.seen_worker_ms(info.modified_ms)
    claimed_ms = state.claimed_ms(info.modified_ms, now_ms=now_ms)
    worker_age_ms = max(0, now_ms - seen_ms) if seen_ms else None
    return FenceLook(state.holder, claimed_ms, worker_age_ms, role, state.commit, state.landed)


def settle_fence(table: TableStore, role: Role) -> None:
    """Make sure that no commit of a role is under way: it landed before this returns, or never will (F1).

    Takes nothing away from the owner of the fence but the commit that it is just about to PUT, if there is one.

    Raises:
        CommitOutcomeUnknown: No usable answer.
        Unavailable: The store did not answer.
    """
    current, _ = read_fence(table.store, table.paths.fence_key(role))
    if current is not None and current.commit is not None:
        _settle(table, current.commit)


def read_landed(table: TableStore, *roles: Role) -> tuple[str, ...]:
    """Return the log files of commits that certainly landed, as the fences of some roles say now, or of all (F5).

    Raises:
        CorruptLog: A fence cannot be understood.
        Unavailable: The store did not answer.
    """
    states = (read_fence(table.store, table.paths.fence_key(role))[0] for role in roles or ROLES)
    return tuple(name for state in states if state is not None for name in state.landed)


def read_fence(store: ObjectStore, key: str) -> tuple[FenceState | None, str | None]:
    """Return a fence's state and ETag; both ``None`` when it was never written."""
    state, info = read_fence_object(store, key)
    return state, None if info is None else info.etag


def read_fence_object(store: ObjectStore, key: str) -> tuple[FenceState | None, ObjectInfo | None]:
    """Return a fence's state and what the store says of its object; both ``None`` when it was never written.

    Raises:
        CorruptLog: The object is not a fence.
        Unavailable: The store did not answer.
    """
    try:
        stored = store.get(key)
    except NotFound:
        return None, None
    try:
        return _STATE.validate_json(stored.body), stored.info
    except ValidationError as error:
        what = first_message(error)
        raise CorruptLog(f"{key}: not a fence: {what}; a person must restore it, never delete it") from error


def write_fence(store: ObjectStore, key: str, state: FenceState, *, etag: str | None, clock: Clock) -> str | None:
    """Write a fence state over the one with ``etag`` and return the new ETag; ``None`` if another state is there.

    Raises:
        CommitOutcomeUnknown: The write may still land.
    """
    said = {name: value for name in _STATE_FIELDS if (value := getattr(state, name)) != _LEFT_OUT.get(name, ...)}
    return put_over(store, key, orjson.dumps(said), etag=etag, clock=clock)  # W2: states are unique


def seal(store: ObjectStore, key: str) -> bool:
    """Keep a commit from ever landing at ``key`` (F1, F4): PUT an empty log file there.

    Returns:
        True if the key is sealed by this call; False if something stands there already.

    Raises:
        CommitOutcomeUnknown: No usable answer.
    """
    try:
        store.put_if_absent(key, encode_log_file(LogFile(time_ms=parse_log_key(key).time_ms, is_seal=True)))
    except PreconditionFailed:
        return False
    return True


def _settle(table: TableStore, commit: str) -> bool:
    """Settle a commit (F1); return whether this very call sealed it."""
    if not commit.startswith(table.paths.log_prefix):
        raise CorruptLog(
            f"table {table.name}: a fence names {commit[:200]!r}, no log file of this table; a person must restore it"
        )
    return seal(table.store, commit)


def _has_landed(store: ObjectStore, key: str) -> bool:
    """Whether a commit is read back as landed (F5). What cannot be read now is not remembered: that proves nothing."""
    try:
        head = decode_log_head(key, store.get(key).body)
    except (NotFound, Unavailable, HaltError):
        return False
    return not head.is_seal and head.commit_id == parse_log_key(key).commit_id


FENCE_LOOK_MS: Final = 5000
"""Least time between two confirmations of the fence. Each costs one request; a claim lasts longer."""


class FenceWatch:
    """The check of a run: the caller's own, each time, and now and then the fence. For one thread at a time.

    Args:
        fence: The run's.
        check_alive: The caller's check.
        clock: Measures how long ago the last look was.

    Raises:
        Fenced: On a call: another run took over, or what ``check_alive`` raised.
    """

    def __init__(self, fence: HeldFence, *, check_alive: CheckAlive, clock: Clock) -> None:
        self._fence = fence
        self._check_alive = check_alive
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()

    def __call__(self) -> None:
        """Raise if the run should stop."""
        self._check_alive()
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < FENCE_LOOK_MS:
            return
        self._looked_ms = now_ms
        try:
            self._fence.confirm()
        except CommitOutcomeUnknown:
            return  # unknown: the work goes on, the commit will tell
