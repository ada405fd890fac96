"""What carries batches to a table: the interface below :class:`icedb_client.delivery.Delivery`, and its values.

Two implement it: :class:`icedb_client.staging.StagingGate` writes to the bucket, for those who have its keys;
:class:`icedb_client.http_transport.HttpTransport` sends to a front end, which needs no more than a token.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from icedb_log.clock import Clock
from icedb_log.ingest.idempotency import Binding
from icedb_log.ingest.quarantine import QuarantinedBatch
from icedb_log.units import SECOND_MS

from icedb_client.bodies import BatchBody

FIRST_POLL_MS: Final = 50
LONGEST_POLL_MS: Final = SECOND_MS
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnqueuedBatch:
    """An accepted batch: durable, to be committed or quarantined.

    Attributes:
        table: Name of the table.
        batch_id: Its id; enqueue it again with this id after a lost answer, and it is taken once.
        key: Key of the staged object; empty if an earlier call, or a front end, has staged it.
        row_count: Rows; ``None`` for a body that was passed through.
        raw_bytes: Size before compression.
        staged_bytes: Size as staged.
        is_woken: Whether the ingest worker was told; if not, its periodic sweep finds the batch.
        is_repeated: Whether an earlier call of the same key had accepted it: nothing was sent.
        last_row: Number of its last row in the file it came from; ``None`` if not counted.
        position: Bytes of the file read so far, as stored.
        warning: Why it may wait for long, in words for people: flushes of the table fail. Do not send it again. Empty:
            nothing is known.
    """

    table: str
    batch_id: str
    key: str
    row_count: int | None
    raw_bytes: int
    staged_bytes: int
    is_woken: bool
    is_repeated: bool = False
    last_row: int | None = None
    position: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A batch that its table may take, ready to be sent, as often as it takes.

    Attributes:
        table: Name of the table.
        body: What is sent.
        batch_id: Its id; empty while the front end has to choose it, because of ``key``.
        key: What the batch is accepted once for, if its sender asks for that.
        binding: What that key stands for, where this process binds it.
        retry_window_ms: How old an id may be when its batch is sent.
    """

    table: str
    body: BatchBody
    batch_id: str
    key: str | None
    retry_window_ms: int
    binding: Binding | None = None


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became of batches.

    Attributes:
        committed: Ids of batches whose rows every new snapshot has.
        quarantined: Batches that cannot be committed, with the reason.
        bad_rows: Of committed batches: the rows that could not be, with the reason.
        waiting: Ids of batches that are still staged.
        conflicts: Other contents that were accepted under ids of these batches: in quarantine, not in the table.
        halted: Why the table commits nothing, as its ingest worker said; then nobody waited any longer. Else empty.
        failing: Why flushes of the table fail, as its ingest worker said last; the wait went on. Else empty.
        unknown: Ids of which neither staging, the log nor quarantine knows: never accepted, or decided longer ago than
            log files are kept.
    """

    committed: tuple[str, ...]
    quarantined: tuple[QuarantinedBatch, ...]
    waiting: tuple[str, ...]
    bad_rows: tuple[QuarantinedBatch, ...] = ()
    unknown: tuple[str, ...] = ()
    conflicts: tuple[QuarantinedBatch, ...] = ()
    halted: str = ""
    failing: str = ""


class Transport(Protocol):
    """Carries batches. Thread-safe.

    Every method raises InvalidRequest (the call or a setting is wrong), NotFound (no such table), Unauthenticated and
    PermissionDenied (a front end wants other credentials) and Unavailable (no answer: call again).

    Attributes:
        clock: Time and ids; ids have the store's time.
    """

    clock: Clock

    def require_table(self, table: str) -> None:
        """Return if the table is there, whether or not it takes batches just now."""
        ...

    def begin(self, table: str, body: BatchBody, *, batch_id: str | None = None, key: str | None = None) -> Offer:
        """Return a batch to be sent, under its given id, the one that its key has, or a fresh one. Sends no row.

        Raises:
            Overloaded: The table takes no batches just now.
            TableHalted: It takes none until a person has looked.
        """
        ...

    def send(self, offer: Offer) -> EnqueuedBatch:
        """Make a batch durable. Idempotent for the same offer.

        Raises:
            Overloaded: It was refused, because there is no room just now: nothing was accepted by this call.
            TableHalted: It was refused until a person has looked.
            Unavailable: Not confirmed: it may be durable all the same.
        """
        ...

    def wait_committed(self, table: str, batch_ids: Sequence[str], *, timeout_ms: int) -> CommitReport:
        """Wait until no batch is staged any more; see :meth:`icedb_client.Client.wait_committed`."""
        ...


def make_enqueued(
    table: str,
    body: BatchBody,
    batch_id: str,
    *,
    is_woken: bool,
    key: str = "",
    is_repeated: bool = False,
    warning: str = "",
) -> EnqueuedBatch:
    """Return what became of a body; arguments as of :class:`EnqueuedBatch`."""
    return EnqueuedBatch(
        table=table,
        batch_id=batch_id,
        key=key,
        row_count=body.row_count,
        raw_bytes=body.raw_bytes,
        staged_bytes=0 if is_repeated else len(body.body),
        is_woken=is_woken,
        is_repeated=is_repeated,
        last_row=None if body.row_count is None else body.first_row + body.row_count - 1,
        position=body.position,
        warning=warning,
    )


def warn_once(warned: set[str], table: str, warning: str) -> None:
    """Log a warning of a table, once until it is over: there may be thousands of batches meanwhile.

    Args:
        warned: The tables whose warning was logged; changed here.
        table: Name of the table.
        warning: What its last answer said; empty: it is over.
    """
    if not warning:
        warned.discard(table)
    elif table not in warned:
        warned.add(table)
        _log.warning("%s", warning)
