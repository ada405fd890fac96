"""Back-pressure: how much a table's log and merge backlog slow ingest down. See ``docs/protocol.md``, "Back-pressure".

Owns the measure (pure), ``_icedb/pressure.json``, by which the ingest worker tells every front end, and the gate
that front ends ask. Halted and failing flushes of a table are reported in the same way. Nothing here is needed for
correctness: an absent, old or unreadable object means no pressure, and two workers that write the object at once only
say the same thing twice. Must never keep producers out for ever: what a dead worker said runs out.
"""

import threading
from dataclasses import dataclass
from typing import Final, Literal, get_args

import orjson
from cachetools import LRUCache

from icedb_log.clock import Clock
from icedb_log.errors import (
    CommitOutcomeUnknown,
    HaltError,
    IceDBError,
    JobCrashed,
    NotFound,
    Overloaded,
    TableHalted,
    Unavailable,
)
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore, delete_or_raise
from icedb_log.store.table_store import TableStore
from icedb_log.units import MINUTE_MS, SECOND_MS

Level = Literal["none", "slow", "stop"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""From the mildest to the hardest."""

HALTED: Final = "halted"
"""What is said instead of a level of a table on which the last flush halted: no flush commits what it takes."""

FAILING: Final = "failing"
"""What is said instead of a level, unless that is ``stop``, of a table whose flushes fail: it takes batches, which
wait."""

Trouble = Literal["halted", "failing"]
TROUBLES: Final[tuple[Trouble, ...]] = get_args(Trouble)

FAILURES_TOLD: Final = 3
"""So many flushes in a row that fail for an unreachable server are reported; an unforeseen failure is reported at
once."""

HALT_TTL_MS: Final = 10 * MINUTE_MS
"""How long either counts: flushes of such a table are tried again within a minute or two."""

MAX_HALT_CHARS: Final = 2000


@dataclass(frozen=True, slots=True)
class Bounds:
    """From how many files on a table slows its producers down.

    Attributes:
        slow: Flushes come less often.
        stop: Front ends refuse batches, too.
    """

    slow: int
    stop: int


LOG_FILES: Final = Bounds(400, 800)
"""Objects below ``_log``; the wire allows less than 1,000."""

BACKLOG_FILES: Final = Bounds(5000, 20_000)
"""Data files that a merge would take now."""

MAX_STRETCH: Final = 60.0
"""Factor of the flush interval from the stop bound on."""

RETRY_AFTER_MS: Final = 10 * SECOND_MS
"""When a refused producer should try again, at the stop bound; longer in proportion above it."""

MAX_RETRY_AFTER_MS: Final = MINUTE_MS

PRESSURE_TTL_MS: Final = 2 * MINUTE_MS
"""How long what a worker said counts, unless it says it again (it does so after half of it)."""

_MAX_TTL_MS: Final = 60 * MINUTE_MS
_MAX_TABLES: Final = 1000


@dataclass(frozen=True, slots=True)
class Pressure:
    """How a table stands.

    Attributes:
        level: ``none``; ``slow``: flushes come less often; ``stop``: front ends refuse batches, too.
        stretch: Factor of the flush interval, 1 to the largest.
        reason: Which bound was passed by how much, in words for operators and producers; empty for ``none``.
        retry_after_ms: When a refused producer should try again.
    """

    level: Level = "none"
    stretch: float = 1.0
    reason: str = ""
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class PublishedPressure:
    """What ``_icedb/pressure.json`` says.

    Attributes:
        level: As measured, or that the table is halted, or its flushes fail.
        reason: As measured, or why it is halted, or why they fail.
        retry_after_ms: As measured.
        ttl_ms: How long it counts from the time it was written.
        written_ms: When, by the writer's clock; makes each writing a new ETag. Never compared with another clock.
        etag: Version of the object.
        modified_ms: When it was written, by the store's clock.
    """

    level: Level | Trouble
    reason: str
    retry_after_ms: int
    ttl_ms: int
    written_ms: int
    etag: str
    modified_ms: int

    def find_halt(self, *, store_now_ms: int) -> str:
        """Return why the table is halted; empty if it is not, or nobody has said so for too long."""
        return self._find(HALTED, store_now_ms)

    def find_failure(self, *, store_now_ms: int) -> str:
        """Return why flushes fail; empty if they do not, or nobody has said so for too long."""
        return self._find(FAILING, store_now_ms)

    def _find(self, level: Trouble, store_now_ms: int) -> str:
        return self.reason if self.level == level and store_now_ms - self.modified_ms <= self.ttl_ms else ""


def measure_pressure(*, log_files: int, backlog_files: int) -> Pressure:
    """Return how much a table should slow its producers down. Pure, and monotone in both counts.

    The stretch grows by the same factor with each further file between the slow and the stop bound, so that ingest
    brakes softly and early; the worse of the two counts decides.

    Args:
        log_files: Objects below ``_log``.
        backlog_files: Data files that the merge policy would merge now.
    """
    counts = ((log_files, LOG_FILES, "log files"), (backlog_files, BACKLOG_FILES, "data files to merge"))
    level: Level = "none"
    stretch = 1.0
    retry_after_ms = 0
    reasons: list[str] = []
    for count, bounds, what in counts:
        if count < bounds.slow:
            continue
        is_stop = count >= bounds.stop
        level = "stop" if is_stop or level == "stop" else "slow"
        stretch = max(stretch, MAX_STRETCH ** min(1.0, (count - bounds.slow) / (bounds.stop - bounds.slow)))
        effect = f"batches are refused from {bounds.stop}" if is_stop else f"flushes come less often from {bounds.slow}"
        reasons.append(f"{count} {what}: {effect} on")
        if is_stop:
            wait_ms = RETRY_AFTER_MS * count // bounds.stop // SECOND_MS * SECOND_MS
            retry_after_ms = max(retry_after_ms, min(wait_ms, MAX_RETRY_AFTER_MS))
    return Pressure(level, stretch, "; ".join(reasons), retry_after_ms)


def read_pressure(table: TableStore) -> PublishedPressure | None:
    """Read what was published last, however old; ``None`` if nothing was. One small GET.

    An object that is none of ours reads as level ``none``.

    Raises:
        Unavailable: The store did not answer.
    """
    try:
        stored = table.store.get(table.paths.pressure_key)
    except NotFound:
        return None
    etag, modified_ms = stored.info.etag, stored.info.modified_ms
    try:
        value = orjson.loads(stored.body)
        level = value["level"]
        return PublishedPressure(
            level=level if level in LEVELS or level in TROUBLES else "none",
            reason=str(value["reason"]),
            retry_after_ms=max(0, min(int(value["retry_after_ms"]), MAX_RETRY_AFTER_MS)),
            ttl_ms=max(0, min(int(value["ttl_ms"]), _MAX_TTL_MS)),
            written_ms=int(value["written_ms"]),
            etag=etag,
            modified_ms=modified_ms,
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return PublishedPressure("none", "", 0, 0, 0, etag, modified_ms)


def publish_pressure(table: TableStore, pressure: Pressure, *, clock: Clock, ends_trouble: bool = False) -> bool:
    """Tell front ends. Idempotent; ``none`` removes what was said before.

    Returns whether the table is said to be halted, or its flushes to fail: that is left as it is until a flush ends
    well, or it runs out. A table that has to refuse batches does so although its flushes fail.

    Costs one small GET, and a write only when level or retry time changed or half the time to live has gone: a
    reason whose count moved on is not worth one.

    Args:
        table: The table.
        pressure: As it was measured just now.
        clock: Of the writer: its own earlier writings are compared with it. One that is ahead of or behind another
            writer's clock writes more often, never less.
        ends_trouble: Whether a flush of the table has just ended well.

    Raises:
        Unavailable: The store did not answer; front ends go by what was said before until that runs out.
        CommitOutcomeUnknown: The same.
    """
    known = read_pressure(table)
    now_ms = clock.now_ms()
    if known is not None and known.level in TROUBLES and not ends_trouble:
        is_harder = known.level == FAILING and pressure.level == "stop"
        if not is_harder and abs(now_ms - known.written_ms) < known.ttl_ms:
            return True
    if pressure.level == "none":
        if known is not None:
            delete_or_raise(table.store, [table.paths.pressure_key])  # one that stays runs out by itself
        return False
    is_said = known is not None and (known.level, known.retry_after_ms) == (pressure.level, pressure.retry_after_ms)
    if known is not None and is_said and 0 <= now_ms - known.written_ms < PRESSURE_TTL_MS // 2:
        return False
    body = {
        "level": pressure.level,
        "reason": pressure.reason,
        "retry_after_ms": pressure.retry_after_ms,
        "ttl_ms": PRESSURE_TTL_MS,
        "written_ms": now_ms,
    }
    table.store.put(table.paths.pressure_key, orjson.dumps(body))
    return False


def find_trouble(error: Exception, *, failure_count: int) -> Trouble | None:
    """Return what a flush that ended with an error makes of its table; ``None``: nothing yet.

    Args:
        error: What it ended with; it need not be one of ours.
        failure_count: How many flushes of the table have failed in a row, this one among them.
    """
    if isinstance(error, HaltError):
        return HALTED
    is_unforeseen = isinstance(error, JobCrashed) or not isinstance(error, IceDBError)
    return FAILING if is_unforeseen or failure_count >= FAILURES_TOLD else None


def is_failure(error: Exception) -> bool:
    """Return whether an error of a flush counts as a failure: not a lost race, and not a wrong request."""
    if isinstance(error, Overloaded):
        return False
    return isinstance(error, HaltError | Unavailable | CommitOutcomeUnknown) or not isinstance(error, IceDBError)


def end_trouble(table: TableStore) -> None:
    """Take back that a table is halted, or its flushes fail, if that is said. One small GET.

    Raises:
        Unavailable: The store did not answer.
    """
    known = read_pressure(table)
    if known is not None and known.level in TROUBLES:
        delete_or_raise(table.store, [table.paths.pressure_key])


def publish_trouble(table: TableStore, level: Trouble, reason: str, *, clock: Clock) -> None:
    """Tell front ends and people that flushes of a table halt or fail. Costs what :func:`publish_pressure` does.

    Idempotent. Nothing is said of flushes that fail while the table has to refuse batches.

    Args:
        table: The table.
        level: Which.
        reason: Why, and what to do, for people.
        clock: Of the writer.

    Raises:
        Unavailable: The store did not answer; front ends take batches, which wait.
        CommitOutcomeUnknown: The same.
    """
    reason = reason[:MAX_HALT_CHARS]
    known = read_pressure(table)
    now_ms = clock.now_ms()
    if known is not None and 0 <= now_ms - known.written_ms < known.ttl_ms:
        if level == FAILING and known.level == "stop":
            return
        if (known.level, known.reason) == (level, reason) and now_ms - known.written_ms < HALT_TTL_MS // 2:
            return
    body = {"level": level, "reason": reason, "retry_after_ms": 0, "ttl_ms": HALT_TTL_MS, "written_ms": now_ms}
    table.store.put(table.paths.pressure_key, orjson.dumps(body))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The last read of one table's object.

    Attributes:
        said: What it says; kept over a failed read, so that its age goes on.
        said_at_ms: Monotonic time from which its time to live counts.
        read_ms: Monotonic time of the read.
        is_known: Whether the read went well.
    """

    said: PublishedPressure | None
    said_at_ms: int
    read_ms: int
    is_known: bool


class _Table:
    """One table: its last answer, and the lock of the one who asks anew."""

    __slots__ = ("answer", "asking")

    def __init__(self) -> None:
        self.answer: _Answer | None = None
        self.asking = threading.Lock()


def describe_halt(table: str, reason: str) -> str:
    """Return what producers and people are told of a halted table."""
    return f"table {table} is halted: it takes no batches, and commits none, until a person has looked: {reason}"


def describe_failure(table: str, reason: str) -> str:
    """Return what producers and people are told of a table whose flushes fail."""
    return f"table {table} takes batches, but its flushes fail, so that they wait: {reason}"


class PressureGate:
    """Asks before a batch is accepted. Thread-safe; one small GET for each table and ``max_age_ms``.

    While one caller asks, the others go by the answer before; only a table that nobody has asked for yet makes them
    wait. A store that does not answer means no pressure: the batch's own PUT tells the producer soon enough.

    Args:
        store: The object store.
        clock: Monotonic time only: ages do not depend on anybody's wall clock.
        max_age_ms: How old an answer may be.
        max_tables: How many tables are remembered; of one that is forgotten the store's clock tells the age again.
    """

    def __init__(
        self, store: ObjectStore, *, clock: Clock, max_age_ms: int = SECOND_MS, max_tables: int = _MAX_TABLES
    ) -> None:
        self._store = store
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._tables: LRUCache[str, _Table] = LRUCache(max_tables)
        self._lock = threading.Lock()

    def check(self, paths: TablePaths) -> None:
        """Return if the table takes batches.

        Raises:
            Overloaded: It does not; ``retry_after_ms`` says when to send the same batch again.
            TableHalted: It does not, until a person has looked; the message says why.
        """
        self._judge(paths, self._ask(paths))

    def _judge(self, paths: TablePaths, answer: _Answer) -> None:
        said = answer.said
        if said is None or said.level not in ("stop", HALTED) or not answer.is_known:
            return
        if self._clock.monotonic_ms() - answer.said_at_ms > said.ttl_ms:
            return  # who said so is dead, or cannot reach the store: staging takes batches without it
        if said.level == HALTED:
            raise TableHalted(describe_halt(paths.name, said.reason))
        raise Overloaded(
            f"table {paths.name} takes no batches just now: {said.reason}. Send the same batch again in "
            f"{said.retry_after_ms / SECOND_MS:g} s; if this lasts, its merges or its vacuum do not keep up",
            retry_after_ms=said.retry_after_ms,
        )

    def check_known(self, paths: TablePaths) -> bool:
        """Check as :meth:`check` does, with its errors, if that asks the store for nothing; else return False."""
        answer = self._remember(paths.prefix).answer
        if answer is None or not self._is_fresh(answer):
            return False
        self._judge(paths, answer)
        return True

    def find_failure(self, paths: TablePaths) -> str:
        """Return why flushes of a table fail, in words for who sends batches; empty if nobody says so.

        By the last answer, however old: who sends a batch has had the table checked. Nobody waits for a new one.
        """
        answer = self._remember(paths.prefix).answer or self._ask(paths)
        said = answer.said
        if said is None or said.level != FAILING or self._clock.monotonic_ms() - answer.said_at_ms > said.ttl_ms:
            return ""
        return describe_failure(paths.name, said.reason)

    def _ask(self, paths: TablePaths) -> _Answer:
        table = self._remember(paths.prefix)
        before = table.answer
        if before is not None and self._is_fresh(before):
            return before
        if before is None:
            table.asking.acquire()
        elif not table.asking.acquire(blocking=False):
            return before
        try:
            before = table.answer
            if before is None or not self._is_fresh(before):
                table.answer = before = self._read(paths, before)
            return before
        finally:
            table.asking.release()

    def _is_fresh(self, answer: _Answer) -> bool:
        return self._clock.monotonic_ms() - answer.read_ms < self._max_age_ms

    def _read(self, paths: TablePaths, before: _Answer | None) -> _Answer:
        known = before.said if before is not None else None
        known_at_ms = before.said_at_ms if before is not None else 0
        try:
            said = read_pressure(TableStore(self._store, paths))
        except IceDBError:
            return _Answer(known, known_at_ms, self._clock.monotonic_ms(), is_known=False)
        now_ms = self._clock.monotonic_ms()
        if said is not None and known is not None and said.etag == known.etag:
            return _Answer(said, known_at_ms, now_ms, is_known=True)
        age_ms = self._age_ms(paths, said) if said is not None and said.level in ("stop", *TROUBLES) else 0
        return _Answer(said, now_ms - age_ms, now_ms, is_known=True)

    def _age_ms(self, paths: TablePaths, said: PublishedPressure) -> int:
        """Return how old a statement is that is new to this process, by the store's own clock.

        A listing for each new statement that stops: without it a dead worker's last word would keep out every process
        that lives shorter than its time to live.
        """
        try:
            page = self._store.list_page(paths.pressure_key, limit=1)
        except IceDBError:
            return 0
        written_ms = (info.modified_ms for info in page.objects if info.etag == said.etag)
        return max(0, page.store_now_ms - next(written_ms, page.store_now_ms))

    def _remember(self, prefix: str) -> _Table:
        with self._lock:
            return self._tables.setdefault(prefix, _Table())
