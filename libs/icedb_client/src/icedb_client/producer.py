"""A buffered sender: rows one by one from many threads, batches to the table from a few.

Owns that no row is lost without a word: each row that ``send`` took is accepted, or stands in ``unsent`` with the
reason; and that memory is bounded. Must never send a batch under a second id once it may be staged (I1).
"""

import atexit
import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final, Self

import orjson
from icedb_log.clock import new_batch_id
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.units import MIB, SECOND_MS

from icedb_client.bodies import MAX_BATCH_BYTES, compress_body, encode_row
from icedb_client.delivery import DEFAULT_RETRY_MS, Delivery, Wait
from icedb_client.transport import EnqueuedBatch, Transport

MAX_SENDERS: Final = 32
BATCHES_IN_MEMORY: Final = 2
"""The memory of a producer holds at least so many batches: one is filled while another is on its way."""
LAST_ATTEMPT_MS: Final = 30 * SECOND_MS
"""How much longer than ``retry_ms`` closing waits: one attempt may be on its way when the time is over."""
_CHUNK_ROWS: Final = 256


class BufferFull(Unavailable):
    """A producer's memory is full. What the caller does: send the row again later; it was not taken.

    Attributes:
        taken_rows: Rows of the same call that were taken before.
    """

    def __init__(self, message: str, *, taken_rows: int = 0) -> None:
        super().__init__(message)
        self.taken_rows = taken_rows


class UnsentRows(IceDBError):
    """Rows were not accepted. What the caller does: keep ``batches`` and enqueue each under its id, or let them go.

    Attributes:
        batches: What was not accepted, with ids, rows and reasons.
    """

    def __init__(self, message: str, batches: "tuple[UnsentBatch, ...]") -> None:
        super().__init__(message)
        self.batches = batches


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The bounds of a producer.

    Attributes:
        max_rows: A batch is sent when it has so many rows.
        max_bytes: … or when another row would make it larger than this, as NDJSON.
        max_age_ms: … or when its first row is so old.
        max_memory_bytes: Most NDJSON held: rows that wait, are on their way, or could not be sent.
        senders: Batches that are on their way at once.
        retry_ms: How long one batch is tried, and how long ``close`` waits; never beyond the table's retry window.
    """

    max_rows: int = 10_000
    max_bytes: int = 4 * MIB
    max_age_ms: int = SECOND_MS
    max_memory_bytes: int = 64 * MIB
    senders: int = 2
    retry_ms: int = DEFAULT_RETRY_MS

    def __post_init__(self) -> None:
        """Check the bounds. Raises InvalidRequest that names the first that is wrong."""
        limits = {"max_bytes": MAX_BATCH_BYTES, "senders": MAX_SENDERS}
        for name, least in (("max_rows", 1), ("max_bytes", 1), ("max_age_ms", 1), ("senders", 1), ("retry_ms", 0)):
            value = getattr(self, name)
            most = limits.get(name)
            if value < least or (most is not None and value > most):
                upper = "" if most is None else f" and at most {most}"
                raise InvalidRequest(f"producer: {name} must be at least {least}{upper}, not {value}")
        if self.max_memory_bytes < BATCHES_IN_MEMORY * self.max_bytes:
            raise InvalidRequest(
                f"producer: max_memory_bytes >= {BATCHES_IN_MEMORY} * max_bytes must hold, "
                f"but {self.max_memory_bytes} < {BATCHES_IN_MEMORY * self.max_bytes}"
            )

    @classmethod
    def of(cls, bounds: Mapping[str, int]) -> Self:
        """Build from names and values. Raises InvalidRequest for a name that is none of the bounds."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in bounds if name not in known]
        if unknown:
            raise InvalidRequest(f"producer: {unknown[0]!r} is no bound; there are {', '.join(known)}")
        return cls(**bounds)


@dataclass(frozen=True, slots=True)
class SealedRows:
    """Rows that become one batch.

    Attributes:
        number: Ascending in the order of sealing.
        body: NDJSON.
        row_count: Rows.
    """

    number: int
    body: bytes
    row_count: int


@dataclass(frozen=True, slots=True)
class UnsentBatch:
    """A batch that was given up.

    Attributes:
        table: Name of the table.
        batch_id: Its id. It may be staged in spite of all: enqueue it again only under this id.
        body: Its rows as NDJSON, exactly as they were sent: ``client.enqueue(table, batch.body, batch_id=…)``.
        row_count: Rows.
        error: Why.
    """

    table: str
    batch_id: str
    body: bytes
    row_count: int
    error: Exception

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows."""
        return [orjson.loads(line) for line in self.body.splitlines() if line]


@dataclass(frozen=True, slots=True)
class ProducerCounters:
    """What a producer did so far.

    Attributes:
        sent_rows: Rows that ``send`` took.
        accepted_rows: Rows that are durable.
        accepted_batches: Batches of them.
        unsent_rows: Rows that were given up so far, also those taken away meanwhile.
        retries: Attempts that failed and were followed by a pause.
        held_bytes: NDJSON held now.
    """

    sent_rows: int = 0
    accepted_rows: int = 0
    accepted_batches: int = 0
    unsent_rows: int = 0
    retries: int = 0
    held_bytes: int = 0


class RowBuffer:
    """Rows that wait: one open batch that grows, and sealed ones, oldest first."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._open = bytearray()
        self._open_rows = 0
        self._due_ms: int | None = None
        self._sealed: deque[SealedRows] = deque()
        self.last_number = 0

    @property
    def due_ms(self) -> int | None:
        """Monotonic time at which the open batch is to be sealed; ``None`` while it has no row."""
        return self._due_ms

    @property
    def has_sealed(self) -> bool:
        """Whether a sealed batch waits."""
        return bool(self._sealed)

    @property
    def first_number(self) -> int:
        """Number of the oldest sealed batch; of the next one if none waits."""
        return self._sealed[0].number if self._sealed else self.last_number + 1

    def add(self, line: bytes, *, now_ms: int) -> bool:
        """Take one line of NDJSON. Returns whether a sender has something new to look at."""
        is_news = False
        if self._open and len(self._open) + len(line) > self._options.max_bytes:
            is_news = self.seal()
        if self._due_ms is None:
            self._due_ms = now_ms + self._options.max_age_ms
            is_news = True
        self._open += line
        self._open_rows += 1
        if self._open_rows >= self._options.max_rows or len(self._open) >= self._options.max_bytes:
            is_news = self.seal()
        return is_news

    def seal(self) -> bool:
        """Close the open batch. Returns whether it had a row."""
        if self._due_ms is None:
            return False
        self.last_number += 1
        self._sealed.append(SealedRows(self.last_number, bytes(self._open), self._open_rows))
        self._open, self._open_rows, self._due_ms = bytearray(), 0, None
        return True

    def seal_due(self, now_ms: int) -> None:
        """Close the open batch if it is old enough."""
        if self._due_ms is not None and now_ms >= self._due_ms:
            self.seal()

    def take(self) -> SealedRows | None:
        """Take away the oldest sealed batch."""
        return self._sealed.popleft() if self._sealed else None


_log = logging.getLogger(__name__)


class Producer:
    """Collects rows and sends them in batches; see :meth:`icedb_client.Client.producer`. Thread-safe.

    Rows are encoded by the caller's thread and sent by threads of the producer, which begin with the first row. Leaving
    the ``with`` block, also by an exception, sends what is buffered and waits for it. A producer does not survive a
    fork: each process makes its own. Callbacks must not call ``flush`` or ``close``.

    Args:
        transport: What carries batches.
        table: Name of the table.
        options: Bounds.
        on_accepted: Told of each accepted batch.
        on_failed: Told of each batch that was given up.
    """

    def __init__(
        self,
        transport: Transport,
        table: str,
        *,
        options: ProducerOptions,
        on_accepted: Callable[[EnqueuedBatch], None] | None = None,
        on_failed: Callable[[UnsentBatch], None] | None = None,
    ) -> None:
        self.table = table
        self.options = options
        self._transport = transport
        self._clock = transport.clock
        self._on_accepted = on_accepted
        self._on_failed = on_failed
        self._buffer = RowBuffer(options)
        self._under_way: set[int] = set()
        self._unsent: list[UnsentBatch] = []
        self._counts: Counter[str] = Counter()
        """By the names of :class:`ProducerCounters`."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        self._is_closing = self._is_closed = self._is_given_up = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except UnsentRows as unsent:
            if error is None:
                raise
            # The block's own error goes on; what it must know besides stands in its notes.
            error.add_note(str(unsent))
            _log.warning("%s", unsent)

    @property
    def counters(self) -> ProducerCounters:
        """What was done so far."""
        with self._lock:
            return ProducerCounters(**self._counts)

    @property
    def unsent(self) -> tuple[UnsentBatch, ...]:
        """Batches that were given up and not taken away yet; they count as memory."""
        with self._lock:
            return tuple(self._unsent)

    def take_unsent(self) -> tuple[UnsentBatch, ...]:
        """Return :attr:`unsent` and forget it: the caller looks after these rows from now on."""
        with self._lock:
            taken, self._unsent = tuple(self._unsent), []
            self._release(sum(len(batch.body) for batch in taken))
            return taken

    def send(self, row: Mapping[str, Any], *, block: bool = True) -> None:
        """Take one row. It is durable later: see ``flush``, ``close`` and ``on_accepted``.

        Args:
            row: Column to value.
            block: Whether to wait while the memory is full.

        Raises:
            InvalidRequest: Not a row that JSON can hold, larger than a batch, or the producer is closed.
            BufferFull: The memory is full, and ``block`` is false or nothing on its way could make room.
        """
        self._add([self._encode(row, 1)], block=block, taken_rows=0)

    def send_rows(self, rows: Iterable[Mapping[str, Any]], *, block: bool = True) -> int:
        """Take many rows and return how many: quicker than one by one.

        Raises:
            InvalidRequest: As for :meth:`send`; names the row. The rows before it are taken.
            BufferFull: As for :meth:`send`; its ``taken_rows`` are taken.
        """
        taken_rows = 0
        lines: list[bytes] = []
        try:
            for number, row in enumerate(rows, start=1):
                lines.append(self._encode(row, number))
                if len(lines) == _CHUNK_ROWS:
                    chunk, lines = lines, []
                    self._add(chunk, block=block, taken_rows=taken_rows)
                    taken_rows += len(chunk)
        finally:
            if lines:
                self._add(lines, block=block, taken_rows=taken_rows)
        return taken_rows + len(lines)

    def flush(self, *, timeout_ms: int | None = None) -> None:
        """Send what was taken so far and wait until each batch of it is accepted or given up.

        Raises:
            UnsentRows: Batches were given up, now or before, and not taken away.
            Unavailable: Some are still on their way after ``timeout_ms``.
        """
        self._check_process()
        with self._lock:
            self._buffer.seal()
            self._work.notify_all()
            last_number = self._buffer.last_number
            if not self._wait_settled(last_number, timeout_ms):
                raise Unavailable(f"table {self.table}: batches are still on their way after {timeout_ms} ms")
            self._raise_unsent()

    def close(self, *, timeout_ms: int | None = None) -> None:
        """Send what is buffered, wait for it, and end. A second call does nothing.

        Args:
            timeout_ms: How long to wait; ``options.retry_ms`` and half a minute by default. What is not
                accepted then is unsent.

        Raises:
            UnsentRows: Rows were not accepted; they stay in :attr:`unsent`.
        """
        if os.getpid() != self._pid:
            return  # a copy by fork: the rows belong to the parent, which sends them
        with self._lock:
            if self._is_closed:
                return
            self._is_closing = True
            self._buffer.seal()
            self._work.notify_all()
            self._room.notify_all()
            if not self._wait_settled(self._buffer.last_number, self._wait_limit_ms(timeout_ms)):
                self._give_up()
                self._wait_settled(self._buffer.last_number, None)
            self._is_closed = True
            _open_producers.discard(self)
            self._raise_unsent()

    def _encode(self, row: object, number: int) -> bytes:
        line = encode_row(row, number=number)
        if len(line) > self.options.max_bytes:
            raise InvalidRequest(
                f"row {number} has {len(line)} bytes as JSON, more than max_bytes {self.options.max_bytes} of a batch"
            )
        return line

    def _add(self, lines: list[bytes], *, block: bool, taken_rows: int) -> None:
        self._check_process()
        with self._lock:
            for taken, line in enumerate(lines, start=taken_rows):
                self._make_room(len(line), block=block, taken_rows=taken)
                if not self._threads:
                    self._start()
                if self._buffer.add(line, now_ms=self._clock.monotonic_ms()):
                    self._work.notify()
                self._counts["sent_rows"] += 1
                self._counts["held_bytes"] += len(line)

    def _make_room(self, size_bytes: int, *, block: bool, taken_rows: int) -> None:
        """Wait, with the lock, until a line fits."""
        while True:
            if self._is_closing:
                raise InvalidRequest(f"the producer for table {self.table} is closed; make another one")
            if self._counts["held_bytes"] + size_bytes <= self.options.max_memory_bytes:
                return
            if self._buffer.seal():
                self._work.notify()
            can_get_room = self._buffer.has_sealed or bool(self._under_way)
            if not block or not can_get_room:
                remedy = "send again later" if can_get_room else "take them away with take_unsent()"
                what = "rows on their way" if can_get_room else "unsent rows"
                raise BufferFull(
                    f"table {self.table}: {self._counts['held_bytes']} bytes of {what} fill max_memory_bytes "
                    f"{self.options.max_memory_bytes}; {remedy}",
                    taken_rows=taken_rows,
                )
            self._room.wait()

    def _start(self) -> None:
        _open_producers.add(self)
        for number in range(self.options.senders):
            # Daemons: a program that forgot to close must still end; the warning at exit says what it lost.
            thread = threading.Thread(target=self._run, name=f"icedb-producer-{self.table}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while True:
            with self._lock:
                rows = self._next()
                if rows is None:
                    return
                self._under_way.add(rows.number)
            try:
                self._deliver(rows)
            finally:
                with self._lock:
                    self._under_way.discard(rows.number)
                    self._room.notify_all()

    def _next(self) -> SealedRows | None:
        """Return the next batch, waiting with the lock; ``None`` at the end."""
        while True:
            now_ms = self._clock.monotonic_ms()
            self._buffer.seal_due(now_ms)
            rows = self._buffer.take()
            if rows is not None or self._is_closing:
                return rows
            due_ms = self._buffer.due_ms
            self._work.wait(None if due_ms is None else (due_ms - now_ms) / 1000)

    def _deliver(self, rows: SealedRows) -> None:
        delivery: Delivery | None = None
        try:
            body = compress_body(rows.body, "ndjson", row_count=rows.row_count)
            delivery = Delivery(
                self._transport,
                self.table,
                body,
                retry_ms=self.options.retry_ms,
                on_wait=self._before_pause,
                is_patient=True,  # its rows would be lost with the process that has them
            )
            accepted = delivery.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows are kept and the error is told
            self._fail(rows, None if delivery is None else delivery.batch_id, error)
            return
        with self._lock:
            self._counts.update(accepted_rows=rows.row_count, accepted_batches=1)
            self._release(len(rows.body))
        _tell(self._on_accepted, accepted)

    def _fail(self, rows: SealedRows, batch_id: str | None, error: Exception) -> None:
        batch = UnsentBatch(self.table, batch_id or new_batch_id(self._clock), rows.body, rows.row_count, error)
        with self._lock:
            self._unsent.append(batch)
            self._counts["unsent_rows"] += rows.row_count
        if not isinstance(error, IceDBError):
            _log.error("table %s: a batch was not sent", self.table, exc_info=error)
        _tell(self._on_failed, batch)

    def _before_pause(self, wait: Wait) -> None:
        with self._lock:
            if self._is_given_up:
                raise wait.error
            self._counts["retries"] += 1

    def _give_up(self) -> None:
        """End the retries, with the lock: sealed batches become unsent, those on their way after their attempt."""
        self._is_given_up = True
        while (rows := self._buffer.take()) is not None:
            error = Unavailable(f"table {self.table}: the producer was closed before this batch could be sent")
            self._unsent.append(UnsentBatch(self.table, new_batch_id(self._clock), rows.body, rows.row_count, error))
            self._counts["unsent_rows"] += rows.row_count

    def _wait_settled(self, last_number: int, timeout_ms: int | None) -> bool:
        """Wait, with the lock, until no batch up to a number is sealed or under way."""
        end_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while self._buffer.first_number <= last_number or any(number <= last_number for number in self._under_way):
            left_ms = None if end_ms is None else end_ms - self._clock.monotonic_ms()
            if left_ms is not None and left_ms <= 0:
                return False
            self._room.wait(None if left_ms is None else left_ms / 1000)
        return True

    def _wait_limit_ms(self, timeout_ms: int | None) -> int:
        return self.options.retry_ms + LAST_ATTEMPT_MS if timeout_ms is None else timeout_ms

    def _release(self, size_bytes: int) -> None:
        self._counts["held_bytes"] -= size_bytes
        self._room.notify_all()

    def _raise_unsent(self) -> None:
        if not self._unsent:
            return
        batches = tuple(self._unsent)
        raise UnsentRows(
            f"table {self.table}: {sum(batch.row_count for batch in batches)} rows in {len(batches)} batches were not "
            f"accepted ({batches[0].error}); they are in `unsent`: enqueue each body under its batch_id",
            batches,
        )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidRequest(
                f"the producer for table {self.table} was made by process {self._pid}, this is {os.getpid()}: "
                "after a fork each process makes its own"
            )

    def _describe_loss(self) -> str | None:
        if os.getpid() != self._pid or not self._counts["held_bytes"]:
            return None
        return (
            f"the producer for table {self.table} was never closed: {self._counts['held_bytes']} bytes of rows may be "
            "lost; use it in a `with` block, or call close()"
        )


def _tell(callback: Callable[[Any], None] | None, what: object) -> None:
    if callback is None:
        return
    try:
        callback(what)
    except Exception:  # noqa: BLE001 - it is the user's code, and must not end the thread
        _log.exception("a callback of a producer failed; the producer goes on")


def _warn_at_exit() -> None:
    for producer in list(_open_producers):
        loss = producer._describe_loss()  # noqa: SLF001 - the same module
        if loss is not None:
            _log.warning("%s", loss)


_open_producers: Final[weakref.WeakSet[Producer]] = weakref.WeakSet()
atexit.register(_warn_at_exit)
