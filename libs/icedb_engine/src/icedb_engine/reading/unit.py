"""The batches of one unit: fetched side by side, decoded, checked, and ready as one sorted stream.

Batches are numbered by their place in the unit. At most a handful of staged objects is on its way at once, and reading
ends when the unit has enough: what is left is for another unit.

The checks that decide stop at the first thing that is wrong with a batch. Its producer wants to know all of it: so
batches that were refused whole (``on_bad_rows = quarantine_batch``) are looked at once more, each on its own, as if
their bad rows were to be set aside. Nothing is decided there, and what cannot be found out leaves the reason as it
was.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from icedb_log.errors import NotFound, Unavailable
from icedb_log.ingest.quarantine import bad_rows_key
from icedb_log.jobs import BadRows, RejectedBatch, SizeClass, StagedBatch
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import MIB

from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import EngineLimits, FlushUnitLimits, leave_memory
from icedb_engine.reading.batches import (
    BatchContent,
    check_row_count,
    decompress,
    read_batch_lines,
    split_format,
)
from icedb_engine.reading.check import UnitChecks
from icedb_engine.reading.frame import EventFrame
from icedb_engine.reading.read_json import read_json_document
from icedb_engine.reading.read_typed import read_arrow, read_csv_cells, read_parquet
from icedb_engine.units.flush_types import (
    Blob,
    FlushUnit,
    FlushUnitResult,
    count_prefix,
    estimate_bytes,
)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A staged object, decoded.

    Attributes:
        content: Its rows.
        sha256: Of the decoded body, in hex: what tells it from other content (I8).
    """

    content: BatchContent
    sha256: str


def read_batch(body: bytes, staging_format: str, limits: FlushUnitLimits, *, splits_rows: bool = False) -> DecodedBatch:
    """Decode a staged object.

    Args:
        body: The staged bytes.
        staging_format: One of :data:`icedb_log.keys.STAGING_FORMATS`.
        limits: The bounds of a batch.
        splits_rows: Bad lines are set aside instead of rejecting the batch (``on_bad_rows = quarantine_rows``).

    Raises:
        BatchRejected: Not what its format says, or above a bound.
    """
    plain, codec = split_format(staging_format)
    decoded = decompress(body, codec, limits, has_lines=plain == "ndjson")
    content = _read_content(decoded, plain, limits, splits_rows=splits_rows)
    return DecodedBatch(content, hashlib.sha256(decoded).hexdigest())


def _read_content(decoded: bytes, plain: str, limits: FlushUnitLimits, *, splits_rows: bool) -> BatchContent:
    if plain == "parquet":
        return read_parquet(decoded, limits)
    if plain == "arrow":
        return read_arrow(decoded, limits)
    if plain == "ndjson":
        return read_batch_lines(decoded, limits, splits_rows=splits_rows)
    read = read_json_document if plain == "json" else read_csv_cells
    content = read(decoded, limits, splits_rows=splits_rows)
    check_row_count(content.row_count + content.bad.row_count, limits)
    return content


MAX_EXPLAINED_BATCHES: Final = 100
"""Of one unit; the others keep the first reason that was found."""
MAX_EXPLAINED_BYTES: Final = 16 * MIB
"""Decoded size of a batch that is looked at again."""
_MEMORY_SHARE: Final = 4
"""Of the unit's memory, beside what the unit itself holds."""


def explain_refused(
    unit: FlushUnit, batches: Mapping[int, BatchContent], types: Mapping[str, str], scratch: Path
) -> dict[int, str]:
    """Return the reason of refused batches, all their bad rows considered; those of which no row is bad are left out.

    Args:
        unit: That refused them.
        batches: What they hold, by number.
        types: Of all columns, as they are after the unit.
        scratch: A folder.
    """
    small = [number for number, content in batches.items() if content.decoded_bytes <= MAX_EXPLAINED_BYTES]
    reasons: dict[int, str] = {}
    limits = replace(unit.engine, memory_bytes=unit.engine.memory_bytes // _MEMORY_SHARE)
    try:
        for number in small[:MAX_EXPLAINED_BATCHES]:
            reason = _explain_one(unit, batches[number], types, limits=limits, scratch=scratch)
            if reason:
                reasons[number] = reason
    except Unavailable:
        pass  # too little room: the first reason is one as well
    return reasons


def _explain_one(
    unit: FlushUnit, content: BatchContent, types: Mapping[str, str], *, limits: EngineLimits, scratch: Path
) -> str:
    config = unit.config.model_copy(update={"on_bad_rows": "quarantine_rows"})
    while True:
        with open_engine(limits, scratch) as engine:
            frame = EventFrame(engine, {0: content}, unit.config.times)
            refused = unit.refused_widenings
            checks = UnitChecks(config, unit.paths, types, unit.limits, frame, refused_widenings=refused)
            checks.run((0,), is_exact=True)
        if checks.wishes:
            types = {**types, **checks.wishes}  # what a wider column takes is not bad in itself
            continue
        bad = frame.batches[0].bad
        is_about_rows = bad.row_count and (0 in checks.accepted or not frame.batches[0].row_count)
        return bad.reason if is_about_rows else ""


FETCHED_BYTES: Final = 64 * MIB
"""Estimated decoded size of the batches that are on their way at once; a larger one comes alone."""


class UnitRows:
    """What a unit has read and checked. Made by :func:`open_unit`; lives as long as its context.

    Attributes:
        scratch: Folder of the unit, removed at the end.
        columns: Columns of the accepted rows, with types; empty if there are no rows.
        partitions: Encoded paths of their partitions, ascending.
    """

    def __init__(self, unit: FlushUnit, scratch: Path) -> None:
        self.scratch = scratch
        self.columns: Mapping[str, str] = {}
        self.partitions: tuple[str, ...] = ()
        self._unit = unit
        self._row_counts: dict[int, int] = {}
        self._contents: dict[int, str] = {}
        self._rejected: dict[int, str] = {}
        self._missing: list[int] = []
        self._left: list[int] = []
        self._left_out: list[int] = []
        self._deferred: set[int] = set()
        self._bad_rows: tuple[BadRows, ...] = ()
        self._wishes: Mapping[str, str] = {}
        self._frame: EventFrame | None = None
        self._checks: UnitChecks | None = None

    def read(self, store: ObjectStore, stack: ExitStack) -> None:
        """Fetch and check the batches. Raises Unavailable."""
        unit = self._unit
        batches = self._fetch(store)
        refused: dict[int, BatchContent] = {}
        if unit.config.on_bad_rows != "quarantine_rows":
            refused = {number: batch for number, batch in batches.items() if batch.bad.row_count}
        for number, batch in refused.items():
            self._rejected[number] = next(iter(batch.bad.faults.values())).reason
            del batches[number]
        self._check(batches, stack)
        if self._checks is not None and unit.config.on_bad_rows != "quarantine_rows" and self._frame is not None:
            refused |= {number: self._frame.batches[number] for number in self._checks.rejected}
        self._explain(refused)

    def _explain(self, refused: Mapping[int, BatchContent]) -> None:
        """Complete the reasons of batches that are refused for one row."""
        if self._wishes or not refused:
            return
        types = {**self._unit.schema, **(self._checks.output_columns if self._checks else {})}
        reasons = explain_refused(self._unit, refused, types, self.scratch / "refused")
        for number, content in refused.items():
            reason = reasons.get(number, self._rejected[number])
            is_torn = content.bad.row_count
            self._rejected[number] = f"{self._describe(number)}: {reason}" if is_torn else reason

    def _check(self, batches: dict[int, BatchContent], stack: ExitStack) -> None:
        unit = self._unit
        self._row_counts = {number: batch.row_count for number, batch in batches.items()}
        filled = {number: batch for number, batch in batches.items() if batch.row_count or batch.bad.row_count}
        batches.clear()
        if not filled:
            return
        held_bytes = sum(batch.decoded_bytes for batch in filled.values())
        engine = stack.enter_context(open_engine(leave_memory(unit.engine, held_bytes), self.scratch))
        self._frame = EventFrame(engine, filled, unit.config.times)
        self._checks = UnitChecks(
            unit.config,
            unit.paths,
            unit.schema,
            unit.limits,
            self._frame,
            refused_widenings=unit.refused_widenings,
        )
        self._checks.run(tuple(filled))
        filled.clear()
        if self._checks.wishes:
            self._wishes = self._checks.wishes
            self._checks, self._row_counts, self._rejected, self._missing = None, {}, {}, []
            self._left, self._left_out = list(range(len(unit.batches))), []
            return
        self._row_counts.update(self._checks.row_counts)
        for number in self._checks.left:
            del self._row_counts[number]
        self._left = sorted([*self._left, *self._checks.left])
        self._rejected.update(self._checks.rejected)
        self._take_over()

    def defer_beyond(self, max_partitions: int) -> None:
        """Keep the oldest batches that lie in so many partitions together, at least one; defer the others."""
        if self._checks is None or len(self.partitions) <= max_partitions:
            return
        touched = self._checks.read_batch_partitions()
        accepted = self._checks.accepted
        kept = accepted[: count_prefix([touched[number] for number in accepted], max_partitions)]
        self._deferred = set(accepted) - set(kept)
        self._checks.keep(kept)
        self._take_over()

    def upload_bad_rows(self, store: ObjectStore) -> None:
        """Upload the rows that were set aside of accepted batches (I5). Idempotent.

        Raises:
            Unavailable: The store did not answer.
        """
        if self._checks is None:
            return
        found = []
        for number, bad in self._checks.bad_rows.items():
            batch, payload = self._unit.batches[number], bad.compress()
            key = bad_rows_key(self._unit.paths, batch.batch_id, payload)
            store.put(key, payload)
            found.append(BadRows(batch, key, bad.row_count, bad.reason, bad.group_faults()))
        self._bad_rows = tuple(found)

    def stream_sorted(self) -> Any:
        """Return the accepted rows as record batches, by partition and sort columns. Once, and only if there are any.

        The first column is the place of the row's partition in ``partitions``.
        """
        assert self._frame is not None and self._checks is not None  # noqa: S101, PT018 - there are rows
        sort = [column for column in self._unit.config.sort if column in self.columns]
        return self._frame.stream_sorted(
            self._checks.accepted, columns=self.columns, sort=sort, partitions=self._checks.partitions
        )

    @property
    def filled(self) -> tuple[int, ...]:
        """Places of the accepted batches that have rows."""
        return tuple(self._checks.accepted) if self._checks is not None and self.columns else ()

    def stream_of(self, numbers: Sequence[int]) -> Any:
        """Return the rows of some of those, as :meth:`stream_sorted`; as often as wanted."""
        assert self._frame is not None and self._checks is not None  # noqa: S101, PT018 - there are rows
        return self._frame.stream_sorted(
            tuple(numbers), columns=self.columns, sort=(), partitions=self._checks.partitions
        )

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Reject batches that were accepted so far."""
        self._rejected.update(reasons)

    def defer(self, numbers: Iterable[int]) -> None:
        """Leave batches to another commit."""
        self._deferred.update(numbers)

    def read_batch_partitions(self) -> dict[str, tuple[int, ...]]:
        """Return places in ``partitions`` of each accepted batch that has rows, by batch id."""
        if self._checks is None or not self._checks.accepted:
            return {}
        batches = self._unit.batches
        return {batches[number].batch_id: places for number, places in self._checks.read_batch_partitions().items()}

    def make_result(
        self,
        *,
        files: tuple[FileMarker, ...] = (),
        blobs: tuple[Blob, ...] = (),
        batch_partitions: Mapping[str, tuple[int, ...]] | None = None,
    ) -> FlushUnitResult:
        """Say what became of each batch."""
        accepted = [n for n in self._row_counts if n not in self._rejected and n not in self._deferred]
        new_kinds = self._checks.new_kinds if self._checks else {}
        return FlushUnitResult(
            columns=tuple(self.columns),
            new_kinds={column: int(kinds) for column, kinds in new_kinds.items()},
            accepted=self._ids(accepted),
            rejected=tuple(
                RejectedBatch(self._unit.batches[number], reason) for number, reason in sorted(self._rejected.items())
            ),
            missing=self._ids(self._missing),
            deferred=self._ids(sorted(self._deferred)),
            left=self._ids(self._left),
            row_count=sum(self._row_counts[number] for number in accepted),
            partitions=self.partitions,
            files=files,
            blobs=blobs,
            batch_partitions=batch_partitions or {},
            bad_rows=self._bad_rows,
            wishes=self._wishes,
            long_columns=self._checks.long_columns if self._checks else (),
            left_out=self._ids(self._left_out),
            contents={self._unit.batches[number].batch_id: self._contents[number] for number in accepted},
        )

    def _take_over(self) -> None:
        if self._checks is not None and self._checks.accepted:
            self.columns, self.partitions = self._checks.output_columns, self._checks.partition_paths

    def _describe(self, number: int) -> str:
        return f"batch {self._unit.batches[number].batch_id}"

    def _ids(self, numbers: list[int]) -> tuple[str, ...]:
        return tuple(self._unit.batches[number].batch_id for number in numbers)

    def _fetch(self, store: ObjectStore) -> dict[int, BatchContent]:
        """Fetch and decode the batches in order, a few at once, large ones alone, until the unit has enough."""
        limits = self._unit.limits
        batches: dict[int, BatchContent] = {}
        decoded_bytes = 0
        waiting = deque(enumerate(self._unit.batches))
        coming: deque[tuple[int, Future[DecodedBatch]]] = deque()
        with ThreadPoolExecutor(self._unit.engine.transfer_count, thread_name_prefix="icedb-fetch") as pool:
            while waiting or coming:
                while waiting and len(coming) < self._unit.engine.transfer_count:
                    expected = [
                        estimate_bytes(self._unit.batches[number], limits) for number, _ in (*coming, waiting[0])
                    ]
                    if coming and sum(expected) > FETCHED_BYTES:
                        break
                    number, batch = waiting.popleft()
                    coming.append((number, pool.submit(_read_batch, store, batch, self._unit)))
                number, future = coming.popleft()
                try:
                    decoded = future.result()
                    batches[number], self._contents[number] = decoded.content, decoded.sha256
                    decoded_bytes += batches[number].decoded_bytes
                except NotFound:
                    self._missing.append(number)
                except _OtherSizeError:
                    self._left_out.append(number)
                except BatchRejected as error:
                    self._rejected[number] = f"{self._describe(number)}: {error}"
                if decoded_bytes >= limits.unit_decoded_bytes:
                    break
        self._left = [number for number, _ in (*coming, *waiting)]
        return batches


@contextmanager
def open_unit(unit: FlushUnit, store: ObjectStore) -> Iterator[UnitRows]:
    """Fetch and check the batches of a unit.

    Raises:
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    with ExitStack() as stack:
        rows = UnitRows(unit, stack.enter_context(open_scratch(unit.engine)))
        rows.read(store, stack)
        yield rows


class _OtherSizeError(Exception):
    """A batch is not of the unit's size class."""


def _read_batch(store: ObjectStore, batch: StagedBatch, unit: FlushUnit) -> DecodedBatch:
    limits = unit.limits
    if batch.size_bytes > limits.batch_staged_bytes:
        raise BatchRejected(
            f"the staged object has {batch.size_bytes} bytes; the limit is {limits.batch_staged_bytes}: "
            "send smaller batches"
        )
    read = partial(
        read_batch,
        store.get(batch.key).body,
        batch.format,
        splits_rows=True,
    )
    return read(limits) if unit.sizes is None else _read_sized(read, limits, unit.sizes)


def _read_sized(
    read: Callable[[FlushUnitLimits], DecodedBatch], limits: FlushUnitLimits, sizes: SizeClass
) -> DecodedBatch:
    """Read a batch if it is of a size class. Whether it is, is found in one way: no batch is of none, or of two."""
    small = replace(
        limits,
        batch_decoded_bytes=min(limits.batch_decoded_bytes, sizes.decoded_bytes),
        batch_rows=min(limits.batch_rows, sizes.row_count),
    )
    try:
        content = read(small)
    except BatchTooLarge:
        if sizes.takes == "small" and small != limits:
            raise _OtherSizeError from None
    except BatchRejected:
        if sizes.takes == "large":
            raise _OtherSizeError from None
        raise
    else:
        if sizes.takes == "large":
            raise _OtherSizeError
        return content
    return read(limits)
