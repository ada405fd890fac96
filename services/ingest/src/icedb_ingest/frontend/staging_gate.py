"""The staging gate: the one way by which a batch of any endpoint becomes durable, and the status of a batch.

Blocking; every endpoint calls it from a thread, unless the gate says that nothing of it waits. Order: the table exists,
it takes batches, the body can be what it says, the id can still be taken and does not stand for other content, as far
as this process knows (I8); then the key is bound (I7), the batch staged, alone or in a group (I1), and only after that
its flush is woken.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Literal

from cachetools import LRUCache
from icedb_log.batch_ids import BatchIds, make_keyed_id, name_of, parse_batch_id_ms
from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.content import hash_content
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, Unavailable
from icedb_log.formats import StagingFormat, find_format
from icedb_log.ingest.group_writer import GroupWriter
from icedb_log.ingest.groups import OfferedBatch
from icedb_log.ingest.idempotency import Binding, bind_key, mark_staged
from icedb_log.ingest.quarantine import find_reason, list_conflicts
from icedb_log.ingest.staging import Acceptance, find_staged
from icedb_log.phases import Phase, Recorder, current_recorder, phase, recording
from icedb_log.serving.batch_commits import Decided, find_decision
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_log.units import KIB, MIB
from icedb_service.logs import get_logger
from icedb_service.readers import LogReaders
from icedb_service.tracing import tracing

from icedb_ingest.frontend.errors import BatchTooLarge, KeyExpired, KeyReused
from icedb_ingest.frontend.formats import check_body

MISSING_AGE_MS: Final = 1000
"""A missing table is looked for again soon: it may be about to be created."""
QUICK_BYTES: Final = 16 * KIB
"""A body that is hashed in no time: 10 to 30 µs."""
MAX_REMEMBERED_IDS: Final = 100_000
"""Ids whose contents a process remembers, those that came last (I8): some 30 MB."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A batch as a producer sends it.

    Attributes:
        table: Name of the table.
        body: Its rows.
        format: What the body is.
        batch_id: The producer's id; ``None``: a fresh one.
        key: The producer's own key. By the table's ``key_memory`` it is bound to an id first
            (:mod:`icedb_log.ingest.idempotency`), or becomes part of one (:mod:`icedb_log.batch_ids`).
        is_keyed_by_content: Whether the hash of its decoded body is its key: for senders that repeat the same bytes and
            can name none.
        is_only_copy: Whether nobody could send it again: then it is staged even if it is too late to tell it from a
            duplicate, and the flush puts it into quarantine rather than anybody losing it. Its key is always bound: it
            may come again hours later.
        is_odd: Whether it is staged for the flush to refuse it: so it need not begin as its format does.
        endpoint: Where it came, for its trace.
        traceparent: The sender's trace, as W3C's header names it.
    """

    table: str
    body: bytes
    format: StagingFormat
    batch_id: str | None = None
    key: str | None = None
    is_keyed_by_content: bool = False
    is_only_copy: bool = False
    is_odd: bool = False
    endpoint: str = ""
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that is durable.

    Attributes:
        table: Name of the table.
        batch_id: Its id.
        size_bytes: As staged.
        binding: Of its key, if it came with one and this call staged it: to be marked with ``remember``.
        trace_id: Of its trace, for the log; empty: there is none.
        warning: Why it may wait for long, in words for its sender; empty: nothing is known.
        is_repeated: Whether it was staged under its key before: this call staged nothing.
    """

    table: str
    batch_id: str
    size_bytes: int
    binding: Binding | None = None
    trace_id: str = ""
    warning: str = ""
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """How large a batch may be when it is decoded. What an endpoint cannot tell, a flush finds.

    Attributes:
        decoded_bytes: After decompression; for Parquet and Arrow, which compress inside, as sent.
        row_count: Rows, where each line is one.
    """

    decoded_bytes: int = 256 * MIB
    row_count: int = 10_000_000

    def counter(self, staging_format: str) -> Callable[[bytes], None]:
        """Return what takes the pieces of a decoded body, and raises BatchTooLarge when they are too many."""
        has_lines = find_format(staging_format).has_lines
        size_bytes = line_count = 0

        def count(piece: bytes) -> None:
            nonlocal size_bytes, line_count
            size_bytes += len(piece)
            line_count += piece.count(b"\n") if has_lines else 0
            if size_bytes > self.decoded_bytes:
                raise BatchTooLarge(
                    f"the batch has more than {self.decoded_bytes} bytes after decompression: cut it into several "
                    "batches (ICEDB_BATCH_MAX_DECODED_MB)"
                )
            if line_count > self.row_count:
                raise BatchTooLarge(
                    f"the batch has more than {self.row_count} rows: cut it into several batches (ICEDB_BATCH_MAX_ROWS)"
                )

        return count


class StagingGate:
    """Accepts batches. Thread-safe.

    Args:
        acceptance: Knows which tables take batches.
        clock: Times and ids.
        on_staged: Called with the table's name after each batch; must return at once.
        groups: Stages batches; none: each alone, at once.
        bounds: How large a batch may be when it is decoded.
    """

    def __init__(
        self,
        acceptance: Acceptance,
        *,
        clock: Clock,
        on_staged: Callable[[str], None],
        groups: GroupWriter | None = None,
        bounds: BatchBounds | None = None,
    ) -> None:
        self.acceptance: Final = acceptance
        self._clock = clock
        self._on_staged = on_staged
        self._groups = groups or GroupWriter(clock=clock, linger_ms=0, puts=1)
        self._bounds = bounds or BatchBounds()
        self._contents: LRUCache[tuple[str, str], str] = LRUCache(MAX_REMEMBERED_IDS)
        self._lock = threading.Lock()

    def accept(self, offer: Offer) -> Accepted:
        """Make a batch durable. Idempotent for the same id or key, and the same content.

        Raises:
            InvalidRequest: Something about the batch is wrong; also KeyReused, KeyExpired and BatchTooLarge.
            NotFound: No such table.
            Overloaded: The table takes no batches just now.
            TableHalted: It takes none until a person has looked.
            Unavailable: The store did not answer; offer it again with the same id or key.
        """
        return self.begin(offer).result()

    def begin(self, offer: Offer) -> Future[Accepted]:
        """Do all that comes before the PUT, as :meth:`accept` does and with its errors; the future has the rest.

        This thread does the PUT, too, if no other batch is waited for.
        """
        with nullcontext() if tracing() is None else recording(self._clock):
            started_ms = self._clock.now_ms()
            with phase("check the table"):
                config = self.acceptance.check(offer.table)
            return self._begin(offer, config, started_ms=started_ms, here=True)

    def begin_quickly(self, offer: Offer) -> Future[Accepted] | None:
        """Do as :meth:`begin` if nothing that comes before the PUT waits, or takes long; another thread does the PUT.

        Returns:
            ``None``: it is worth a thread; nothing was done.
        """
        if len(offer.body) > QUICK_BYTES or "." in offer.format or tracing() is not None:
            return None  # it is hashed, decoded, or its phases are recorded by thread
        config = self.acceptance.check_known(offer.table)
        # WARN: not checked once more: by then the store might have to be asked, and an event loop would wait for it.
        has_key = offer.key is not None or offer.is_keyed_by_content
        if config is None or (has_key and self._is_bound(offer, config)):
            return None
        return self._begin(offer, config, started_ms=self._clock.now_ms(), here=False)

    @staticmethod
    def _is_bound(offer: Offer, config: TableConfig) -> bool:
        """Whether a key is bound to an id by a record, not part of one (I7)."""
        return config.key_memory != "retry" or offer.is_only_copy

    def close(self) -> None:
        """Stage what waits in groups. Nothing is accepted after that."""
        self._groups.close()

    def _begin(self, offer: Offer, config: TableConfig, *, started_ms: int, here: bool) -> Future[Accepted]:
        table = self.acceptance.warehouse.table(offer.table)
        if not offer.is_odd:
            check_body(offer.body, offer.format)
        if offer.key is None and offer.batch_id is not None:
            self._check_age(offer.batch_id, config)
        with phase("check the body", bytes=len(offer.body)):
            # The body is decoded once, a piece at a time.
            content_sha256 = hash_content(offer.body, offer.format, check=self._bounds.counter(offer.format))

        def bind(key: str, batch_id: str) -> Binding:
            with _telling_reuse(), phase("bind the key"):
                return bind_key(table, key=key, batch_id=batch_id, content_sha256=content_sha256)

        key, batch_id = f"sha256:{content_sha256}" if offer.is_keyed_by_content else offer.key, offer.batch_id
        if key is not None and not self._is_bound(offer, config):
            batch_id = make_keyed_id(key, self._clock.now_ms())  # I7
            key = None  # it is in the id
        if batch_id is not None:
            # I8: what no front end remembers is compared by the flush, and waits in quarantine if it is other content.
            self._require_same_content(table, batch_id, content_sha256)
        batch_id = batch_id or new_batch_id(self._clock)
        batch = OfferedBatch(batch_id, offer.format, offer.body, content_sha256)
        if key is None:
            return self._stage(table, offer, batch, started_ms=started_ms, here=here)
        # A young id of the producer's own is the batch's id, too; an old one could no longer be checked (I3).
        binding = bind(key, new_batch_id(self._clock) if self._is_late(batch_id, config) else batch_id)
        if binding.is_staged:
            return _done(Accepted(offer.table, binding.batch_id, len(offer.body), is_repeated=True))
        age_ms = self._age_ms(binding.batch_id)
        if age_ms >= config.retry_window_ms and not binding.is_new and not offer.is_only_copy:  # I3
            raise KeyExpired(
                f"table {offer.table}: the key {key[:80]!r} was first used {age_ms} ms ago for "
                f"batch {binding.batch_id}, and nobody confirmed that it was staged. It can no longer be told from a "
                "duplicate: look up the status of that batch; if it never arrived, send it under a fresh key"
            )
        batch = replace(batch, batch_id=binding.batch_id)
        return self._stage(table, offer, batch, started_ms=started_ms, here=here, binding=binding)

    def remember(self, binding: Binding) -> None:
        """Remember that the batch of a key is staged. Best effort: without it a late retry is refused, not doubled."""
        try:
            mark_staged(self.acceptance.warehouse.store, binding)
        except (Unavailable, CommitOutcomeUnknown) as error:
            get_logger().warning("key_not_marked", error=str(error), mitigation="a retry in time is taken once")

    def _require_same_content(self, table: TableStore, batch_id: str, content_sha256: str) -> None:
        """Remember what an id, or its key, stands for. Raises KeyReused: it stands for something else."""
        with self._lock:
            known = self._contents.setdefault((table.paths.prefix, name_of(batch_id)), content_sha256)
        if known != content_sha256:
            raise KeyReused(
                f"table {table.name}: batch {batch_id} was sent before with other content; an id belongs to one batch "
                "for ever: send the same bytes, or use a fresh id"
            )

    def _stage(
        self,
        table: TableStore,
        offer: Offer,
        batch: OfferedBatch,
        *,
        started_ms: int,
        here: bool,
        binding: Binding | None = None,
    ) -> Future[Accepted]:
        recorder = current_recorder()
        offered_ms = self._clock.now_ms()
        with _telling_reuse():
            staged = self._groups.submit(table, batch, here=here)
        accepted: Future[Accepted] = Future()
        accepted.set_running_or_notify_cancel()

        def tell(staged: Future[str]) -> None:
            try:
                with _telling_reuse():  # id and format were checked: it is staged with other content
                    staged.result()
                if recorder is not None:  # with the wait for others of its group; its thread records no more by now
                    recorder.adopt([Phase("put the batch", 0, -1, offered_ms, self._clock.now_ms())])
                trace_id = self._trace(offer, batch.batch_id, recorder, started_ms=started_ms)
                self._on_staged(table.name)
                warning = self.acceptance.pressure.find_failure(table.paths)
                size_bytes = len(offer.body)
                accepted.set_result(
                    Accepted(offer.table, batch.batch_id, size_bytes, binding, trace_id=trace_id, warning=warning)
                )
            except BaseException as error:  # noqa: BLE001 - waiting callers get it, whatever it is
                accepted.set_exception(error)

        staged.add_done_callback(tell)
        return accepted

    def _trace(self, offer: Offer, batch_id: str, recorder: Recorder | None, *, started_ms: int) -> str:
        """Begin the batch's trace, or go on with the sender's; return its id."""
        traces = tracing()
        if traces is None or recorder is None:
            return ""
        figures = {"icedb.table": offer.table, "icedb.bytes": len(offer.body), "icedb.endpoint": offer.endpoint}
        return traces.accepted(
            batch_id, recorder, started_ms=started_ms, traceparent=offer.traceparent, attributes=figures
        )

    def _check_age(self, batch_id: str, config: TableConfig) -> None:
        """Refuse an id that the flush would refuse for certain (I3), even if clocks differ by the allowed skew."""
        age_ms = self._age_ms(batch_id)
        if age_ms >= config.log_grace_ms:
            raise KeyExpired(
                f"batch id {batch_id} was made {age_ms} ms ago; a retry is possible within {config.retry_window_ms} "
                "ms. If the batch was never accepted, send it under a fresh id"
            )
        if -age_ms > 2 * config.id_skew_ms:
            raise InvalidRequest(
                f"batch id {batch_id} was made {-age_ms} ms in the future: set the producer's clock, "
                "and take a fresh id"
            )

    def _is_late(self, batch_id: str, config: TableConfig) -> bool:
        age_ms = self._age_ms(batch_id)
        return age_ms >= config.retry_window_ms // 2 or -age_ms > config.id_skew_ms // 2

    def _age_ms(self, batch_id: str) -> int:
        return self._clock.now_ms() - parse_uuid7_ms(batch_id)


def _done(accepted: Accepted) -> Future[Accepted]:
    future: Future[Accepted] = Future()
    future.set_result(accepted)
    return future


@contextmanager
def _telling_reuse() -> Iterator[None]:
    """Turn what the library refuses of an id or key into the kind that endpoints tell apart."""
    try:
        yield
    except InvalidRequest as error:
        raise KeyReused(str(error)) from error


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """Where a batch is.

    Attributes:
        state: ``staged``: durable, waits for a flush; else what was decided.
        reason: Why it, or some of its rows, were refused.
        quarantined_rows: Rows that wait in quarantine while the others are live.
        retried_as: Id of the batch that a retry from quarantine has made of it.
        conflicts: Other contents that were accepted under its id, and wait in quarantine (I8); ``None``: none.
    """

    state: Literal["staged"] | Decided
    reason: str | None = None
    quarantined_rows: int | None = None
    retried_as: str | None = None
    conflicts: int | None = None


class BatchStatuses:
    """Looks batches up. Thread-safe."""

    def __init__(self, *, clock: Clock) -> None:
        self._readers = LogReaders(clock)

    def look_up(self, table: TableStore, batch_id: str) -> BatchStatus:
        """Return where a batch is. Costs up to three listings, two GETs, and what is new of groups and of the log.

        Raises:
            InvalidRequest: No batch has such an id.
            NotFound: No batch of this id is known any more, or none ever was.
            Unavailable: The store did not answer.
            HaltError: The log cannot be read.
        """
        parse_batch_id_ms(batch_id)
        # The order is the batch's own: it leaves staging after the log names it, so a log read later does (I2, I5).
        if find_staged(table, (batch_id,)):
            return BatchStatus("staged")
        asked = BatchIds((batch_id,))
        logs = [file.log for file in self._readers.of_table(table).heads.read().files]
        committed = [named for log in logs for named in asked.find_in(log.batch_ids).values()]
        refused = [named for log in logs for named in asked.find_in(log.refused_ids).values()]
        decided_as = next(iter((*committed, *refused)), batch_id)  # I7: it may be the id of another try
        reason = find_reason(table, decided_as)
        entry = None if reason is None else reason.entry
        conflicts = len(list_conflicts(table, decided_as)) or None
        state = find_decision(entry, is_committed=bool(committed), is_refused=bool(refused))
        if state is not None and entry is not None:
            return BatchStatus(state, entry.reason, entry.row_count, entry.retry_id, conflicts)
        if state is not None:
            why = "it was refused, and is on its way to quarantine or was dropped there"
            return BatchStatus(state, why if state == "quarantined" else None, conflicts=conflicts)
        raise NotFound(
            f"table {table.name}: no batch {batch_id} is staged, in quarantine or in the log. It was never accepted, "
            "or it was committed longer ago than log files are kept"
        )
