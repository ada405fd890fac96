"""The one place of the janitor that deletes, in bounded chunks, and its audit: what, when, why (rules J6, J10).

A chunk is announced to the audit, deleted, and its outcome written down. Between chunks the caller may be stopped: what
was deleted by then is known, what was not is found again by the next run.

The audit is written ahead: what is about to be deleted stands below ``_icedb/audit/`` before the store is asked to
delete it, and is written once more with the outcome. If the first cannot be written, nothing is deleted; if the
second cannot, the entry stays ``announced``: the object may have gone or not. A run that deletes nothing writes
nothing. Nothing about a decision is read from there: an audit that is lost costs knowledge, never data.

Each chunk of a run is an object of its own, JSON lines: the run first, then one line for each object. So memory is
bounded by a chunk, and nothing is written more than twice. It is read page by page, a few objects at once; one that
cannot be understood is reported, never a reason to stop.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import msgspec
import orjson
from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clock import Clock, uuid7_hex_ms
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError, NotFound, Unavailable
from icedb_log.holds.guards import HoldKind, Holds
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.keys import MAX_MS, TablePaths, parse_audit_key
from icedb_log.store.object_store import DeleteFailure, FailedDelete, ObjectStore, list_pages
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore

Kind = Literal[
    "log_file",
    "data_file",
    "staged_batch",
    "orphan",
    "hold",
    "publication",
    "quarantine",
    "idempotency_key",
    "dropped_table",
    "audit",
    "leftover",
]
"""What an object was, in audit, metrics and results."""

CHUNK_KEYS: Final = 10_000
"""Objects between two looks at the lock, and between two audit writes."""


class DeleteCandidate(NamedTuple):
    """An object that a run may delete. A tuple: a run makes millions, and a frozen dataclass is three times as big.

    Attributes:
        key: Its key.
        kind: What it is.
        why: Why it may go, for people: one short sentence.
        passed: Guards that were asked and did not hold it.
        died_ms: When it died, unix ms; ``None`` where that has no meaning.
        size_bytes: Its size, if known.
    """

    key: str
    kind: Kind
    why: str
    passed: tuple[str, ...] = ()
    died_ms: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of objects that were to be deleted.

    Attributes:
        keys: Those that are gone; one that was not there any more counts (J6).
        failed: The others, and why. The next run tries again.
    """

    keys: frozenset[str] = frozenset()
    failed: tuple[FailedDelete, ...] = ()


class Deleter:
    """Deletes for one run of the janitor.

    Args:
        audit: Where everything is written down; ``None``: nowhere.
        check_alive: Called before each chunk; raises to stop the run, e.g. when its lock is lost.
        chunk_keys: Objects in a chunk; smaller only in tests.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        audit: "RunAudit | None" = None,
        check_alive: CheckAlive = never_stop,
        chunk_keys: int = CHUNK_KEYS,
    ) -> None:
        self._store = store
        self._audit = audit
        self._check_alive = check_alive
        self._chunk_keys = chunk_keys

    def delete(self, candidates: Iterable[DeleteCandidate]) -> Deleted:
        """Delete objects. Idempotent. One that will not go keeps no other from going.

        Raises:
            IceDBError: What ``check_alive`` or the audit raised, before the chunk that comes next.
        """
        keys: set[str] = set()
        failed: list[FailedDelete] = []
        for done in self.delete_chunks(candidates):
            keys |= done.keys
            failed += done.failed
        return Deleted(frozenset(keys), tuple(failed))

    def delete_chunks(self, candidates: Iterable[DeleteCandidate]) -> Iterator[Deleted]:
        """Delete objects as :meth:`delete` does, and yield the outcome of each chunk.

        For callers that need the outcome of the finished chunks when the run is stopped.
        """
        pending = iter(candidates)
        while chunk := list(islice(pending, self._chunk_keys)):
            self._check_alive()
            done = self._delete_announced(chunk)
            if self._audit is not None:
                self._audit.conclude(done.failed)
            yield done

    def _delete_announced(self, chunk: Sequence[DeleteCandidate]) -> Deleted:
        """Delete objects once it is written down that they go (J10)."""
        if self._audit is not None:
            self._audit.announce(chunk)
        return self._delete_chunk(chunk)

    def _delete_chunk(self, chunk: Sequence[DeleteCandidate]) -> Deleted:
        try:
            report = self._store.delete([each.key for each in chunk])
        except Unavailable as error:
            # J6: counted and left to the next run; keys that will not go must not keep the other kinds from going.
            return Deleted(failed=tuple(FailedDelete(each.key, str(error), "unanswered") for each in chunk))
        return Deleted(frozenset(report.deleted), report.failed)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Deletes that failed alike: how, how many, one of them, and the store's words about that one."""

    kind: DeleteFailure
    count: int
    key: str
    reason: str


def group_failures(failed: Iterable[FailedDelete]) -> tuple[FailureGroup, ...]:
    """Return failed deletes by how they failed, most of them first: a few lines, however many failed."""
    counts: Counter[DeleteFailure] = Counter()
    first: dict[DeleteFailure, FailedDelete] = {}
    for each in failed:
        counts[each.kind] += 1
        first.setdefault(each.kind, each)
    return tuple(FailureGroup(kind, count, first[kind].key, first[kind].reason) for kind, count in counts.most_common())


RunKind = Literal["vacuum", "orphans", "leftovers", "purge"]
"""What the run was."""
Outcome = Literal["announced", "deleted", "failed"]
"""What became of an object; ``announced``: the run was cut off, the object may have gone or not."""

AuditStep = Literal["announce", "conclude"]
"""Which of the two writes failed. A label of metrics."""

MAX_FOUND: Final = 100
"""Names of each kind of holder that a run's first line lists; their number is always there."""
MAX_REASON_CHARS: Final = 300

SLICE_DIGITS: Final = 5
"""Of the 13 digits of a time: the listings of a search by time go by slices of 10^8 ms, a bit more than a day."""
SLICE_MS: Final = 10 ** (13 - SLICE_DIGITS)
MAX_SLICES: Final = 40
"""A search over more slices lists everything instead."""
UUID_HEX_CHARS: Final = 32
FETCH_THREADS: Final = 16
"""Parts that are fetched at once, and held in memory."""

_FOUND: Final[tuple[tuple[HoldKind, str], ...]] = (
    ("lease", "leases"),
    ("tag", "tags"),
    ("publication", "publications"),
    ("commit", "intents"),
    ("view", "wanted_logs"),
)


@cache
def _release() -> str:
    """Return the release of this library; it is looked up in files."""
    return version("icedb-log")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run decided by.

    Attributes:
        kind: What the run is.
        store_now_ms: The store's clock that ages were measured against, unix ms.
        policy: Grace periods and other bounds, by the names of the configuration's fields, e.g. ``data_grace_ms``.
        found: What was there that can hold objects: ids or names by kind. Never anything personal.
    """

    kind: RunKind
    store_now_ms: int
    policy: Mapping[str, int | None]
    found: Mapping[str, Sequence[str]] = field(default_factory=dict)


def found_holds(holds: Holds) -> dict[str, list[str]]:
    """Return what was found that can hold objects, as a run's first line has it."""
    found = {
        name: [
            each for hold in holds.of(kind) for each in (sorted(hold.files or ()) if kind == "view" else [hold.name])
        ]
        for kind, name in _FOUND
    }
    return {name: each for name, each in found.items() if each}


class AuditEntry(BaseModel):
    """What the audit says of one object: as :class:`~icedb_log.clean.deletion.DeleteCandidate`, and the outcome.

    Attributes:
        outcome: See :data:`Outcome`.
        reason: Why it would not go.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    kind: str
    why: str
    died_ms: int | None
    size_bytes: int | None
    passed: tuple[str, ...]
    outcome: str
    reason: str | None = None


class AuditPart(BaseModel):
    """One object of the audit: a run, and what it deleted at once.

    Attributes:
        part: Number of this part of the run, from 0.
        owner: Who deleted.
        store_now_ms: The store's clock that ages were measured against, unix ms.
        written_ms: When this part was written last, by the store's clock, unix ms.
        policy: Grace periods and other bounds.
        found: What was there that can hold objects: ``count`` and ``names`` for each kind.
    """

    model_config = ConfigDict(frozen=True)

    audit_key: str
    run_id: str = Field(alias="run")
    part: int
    kind: str
    owner: str
    release: str
    store_now_ms: int
    written_ms: int
    policy: Mapping[str, int | None]
    found: Mapping[str, Mapping[str, Any]]
    entries: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """An object of the audit that cannot be understood, and what is wrong."""

    audit_key: str
    problem: str


class AuditLog:
    """The audit of one table, written by one owner. ``begin`` one :class:`RunAudit` for each run.

    Args:
        clock: Makes the ids of runs.
        owner: Who deletes, e.g. ``janitor@host:123``.
        on_problem: Told when something could not be written: an announcement, and the run stops; or outcomes, and it
            goes on.
    """

    def __init__(
        self,
        table: TableStore,
        *,
        clock: Clock,
        owner: str,
        on_problem: Callable[[AuditStep, IceDBError], None] = lambda *_: None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._owner = owner
        self._on_problem = on_problem

    def begin(self, facts: RunFacts) -> "RunAudit":
        """Return the audit of one run; nothing is written before its first object is to be deleted."""
        head = {
            "run": self._clock.new_id(),
            "kind": facts.kind,
            "table": self._table.name,
            "owner": self._owner,
            "release": _release(),
            "store_now_ms": facts.store_now_ms,
            "policy": dict(facts.policy),
            "found": {
                kind: {"count": len(names), "names": list(names[:MAX_FOUND])} for kind, names in facts.found.items()
            },
        }
        return RunAudit(self._table, head, self._on_problem)


class _Line(msgspec.Struct, omit_defaults=True, gc=False):
    """The line of an object in the audit; :class:`AuditEntry` says what its fields mean."""

    key: str
    kind: Kind
    why: str
    passed: tuple[str, ...]
    died_ms: int | None
    size_bytes: int | None
    outcome: Outcome
    reason: str | None = None


_LINES: Final = msgspec.json.Encoder()


class RunAudit:
    """The audit of one run. For one thread.

    Args:
        head: The first line of each part.
        on_problem: As of :class:`AuditLog`.
    """

    def __init__(
        self, table: TableStore, head: Mapping[str, Any], on_problem: Callable[[AuditStep, IceDBError], None]
    ) -> None:
        self._table = table
        self._head = head
        self._on_problem = on_problem
        self._part_count = 0
        self._chunk: Sequence[DeleteCandidate] = ()

    def announce(self, chunk: Sequence[DeleteCandidate]) -> None:
        """Write down what is about to be deleted (J10). If this raises, nothing of the chunk may be deleted.

        Raises:
            Unavailable: The store did not answer.
            CommitOutcomeUnknown: The same.
        """
        self._part_count += 1
        self._chunk = chunk
        try:
            self._write("announced", {})
        except IceDBError as error:
            self._on_problem("announce", error)
            raise

    def conclude(self, failed: Sequence[FailedDelete]) -> None:
        """Record the outcome of the chunk announced last. Never raises: the announcement says it already."""
        # WARN: by an unconditional PUT: an announcement that was sent twice and lands once more, late, takes the
        # outcomes back to "announced". That says less, and nothing wrong.
        try:
            self._write("deleted", {each.key: each.reason[:MAX_REASON_CHARS] for each in failed})
        except IceDBError as error:
            self._on_problem("conclude", error)
        self._chunk = ()

    def _write(self, outcome: Outcome, reasons: Mapping[str, str]) -> None:
        """Write the chunk down; for what failed, by key, the outcome is another one."""
        part = self._part_count - 1
        key = self._table.paths.audit_key(time_ms=self._head["store_now_ms"], run_id=self._head["run"], part=part)
        lines = [
            _Line(*each, "failed" if each.key in reasons else outcome, reasons.get(each.key)) for each in self._chunk
        ]
        self._table.store.put(key, _LINES.encode_lines([{**self._head, "part": part}, *lines]))


def open_deleter(table: Table, audit: AuditLog | None, facts: RunFacts, *, chunk_keys: int = CHUNK_KEYS) -> Deleter:
    """Return what deletes for one run over a table, asks its ``check_alive``, and writes down what and why (J10)."""
    run_audit = None if audit is None else audit.begin(facts)
    return Deleter(table.store, audit=run_audit, check_alive=table.check_alive, chunk_keys=chunk_keys)


def sweep_audit(table: TableStore, *, retention_ms: int, clock: Clock, check_alive: CheckAlive = never_stop) -> Deleted:
    """Delete what the audit has kept for longer than its retention, by the store's clock. Idempotent. Nothing else.

    Only the janitor calls it (J6); it is not written down. Costs one listing of the old ones and of one page more: keys
    sort by time.

    Raises:
        UnsupportedFormat: No age can be told by this store (J1); nothing was deleted.
        Unavailable: The store's clock jumped, and nothing was deleted; or the store did not answer.
    """
    deleter = Deleter(table.store, check_alive=check_alive)
    keys: set[str] = set()
    failed: list[FailedDelete] = []
    for page in list_pages(table.store, table.paths.audit_prefix):
        found = [info for info in page.objects if parse_audit_key(info.key) is not None]
        old = [info for info in found if info.modified_ms + retention_ms <= page.store_now_ms]
        if old and not keys:
            check_store_clock(table.store, table.paths.clock_key, clock=clock)
        why, passed = "older than the audit's retention", ("audit_retention",)
        done = deleter.delete(
            DeleteCandidate(info.key, "audit", why, passed, size_bytes=info.size_bytes) for info in old
        )
        keys |= done.keys
        failed += done.failed
        if len(old) < len(found):
            break
    return Deleted(frozenset(keys), tuple(failed))


def read_audit(table: TableStore, *, since_ms: int = 0, until_ms: int = MAX_MS) -> Iterator[AuditPart | DamagedPart]:
    """Read the parts of all runs that began between two times of the store's clock, oldest first.

    Raises:
        Unavailable: The store did not answer.
    """
    with ThreadPoolExecutor(FETCH_THREADS, "icedb-audit-reader") as pool:
        pages = (
            page for prefix in _prefixes(table.paths, since_ms, until_ms) for page in list_pages(table.store, prefix)
        )
        for page in pages:
            names = ((info.key, parse_audit_key(info.key)) for info in page.objects)
            keys = [key for key, name in names if name is None or since_ms <= name.time_ms <= until_ms]
            for start in range(0, len(keys), FETCH_THREADS):
                # Not the whole page at once: a part has up to 10,000 objects.
                found = pool.map(partial(_read_part, table.store), keys[start : start + FETCH_THREADS])
                yield from (part for part in found if part is not None)


def find_deletions(
    table: TableStore, key: str, *, since_ms: int = 0
) -> Iterator[tuple[AuditPart, AuditEntry] | DamagedPart]:
    """Find what the audit says of one object, oldest first; nothing if it does not know it.

    Arguments and errors as :func:`read_audit`; ``key`` is the object's full key. The time in its name bounds the
    search.
    """
    for part in read_audit(table, since_ms=max(since_ms, _made_ms(key))):
        if isinstance(part, DamagedPart):
            yield part
            continue
        for entry in part.entries:
            if entry.key == key:
                yield part, entry


def _made_ms(key: str) -> int:
    """Return the time before which an object cannot have been deleted, as its name tells; 0 if it does not.

    Names are given by hosts whose clocks may be wrong: a day is taken off.
    """
    digits = key.rpartition("/")[2].partition(".")[0].rpartition("_")[2].replace("-", "")
    made_ms = uuid7_hex_ms(digits) if len(digits) == UUID_HEX_CHARS else None
    return max(0, (made_ms or 0) - SLICE_MS)


def _prefixes(paths: TablePaths, since_ms: int, until_ms: int) -> list[str]:
    first, last = max(since_ms, 0) // SLICE_MS, min(until_ms, MAX_MS) // SLICE_MS
    if last - first >= MAX_SLICES:
        return [paths.audit_prefix]
    return [f"{paths.audit_prefix}{number:0{SLICE_DIGITS}d}" for number in range(first, last + 1)]


def _read_part(store: ObjectStore, key: str) -> AuditPart | DamagedPart | None:
    if parse_audit_key(key) is None:
        return DamagedPart(key, "not the name of an audit object")
    try:
        stored = store.get(key)
    except NotFound:
        return None  # past its retention since the listing
    try:
        head, *entries = (orjson.loads(line) for line in stored.body.splitlines())
        return AuditPart(**{**head, "audit_key": key, "written_ms": stored.info.modified_ms, "entries": entries})
    except (ValueError, TypeError) as error:
        return DamagedPart(key, f"{type(error).__name__}: {error}"[:200])
