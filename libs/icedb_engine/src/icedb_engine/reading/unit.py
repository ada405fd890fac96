"""The batches of one unit: fetched side by side, decoded, checked, and ready as one sorted stream.

Batches are numbered by their place in the unit. At most a handful of staged objects is on its way at once, and reading
ends when the unit has enough: what is left is for another unit.

The checks that decide stop at the first thing that is wrong with a batch. Its producer wants to know all of it: so
batches that were refused whole (``on_bad_rows = quarantine_batch``) are looked at once more, each on its own, as if
their bad rows were to be set aside. Nothing is decided there, and what cannot be found out leaves the reason as it
was.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from icedb_log.errors import NotFound, Unavailable
from icedb_log.formats import FORMATS, describe_unread
from icedb_log.ingest.quarantine import payload_key
from icedb_log.jobs import BadRows, StagedBatch
from icedb_log.store.object_store import ObjectStore, limit_reads
from icedb_log.units import KIB, MIB

from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.errors import BatchRejected, BatchTooLarge
from icedb_engine.limits import TRANSFER_COUNT, FlushUnitLimits
from icedb_engine.reading.batches import Batch, check_row_count, decompress, read_lines
from icedb_engine.reading.check import UnitChecks
from icedb_engine.reading.frame import EventFrame
from icedb_engine.reading.read_json import read_json_document
from icedb_engine.reading.read_typed import read_arrow, read_csv_cells, read_parquet
from icedb_engine.unit_engine import UnitEngine, lend_engine
from icedb_engine.work import FlushUnit, UnitResult, count_prefix, estimate_bytes, pack

_READERS: Final[Mapping[str, Callable[[bytes, FlushUnitLimits], Batch]]] = {
    "ndjson": read_lines,
    "json": read_json_document,
    "csv": read_csv_cells,
    "parquet": read_parquet,
    "arrow": read_arrow,
}
FETCHED_BYTES: Final = 64 * MIB
"""Estimated decoded size of the batches that are on their way at once; a larger one comes alone."""
RUN_BATCHES: Final = 32
"""Tiny batches that one thread fetches one after the other: to hand each of them over takes longer than to read it."""
RUN_BYTES: Final = MIB
"""Estimated decoded size above which such a run ends."""
SMALL_FETCHES: Final = 16
"""Runs on their way at once, from a store that lets each request wait."""
MAX_EXPLAINED_BATCHES: Final = 100
"""Of one unit; the others keep the first reason that was found."""
MAX_EXPLAINED_BYTES: Final = 16 * MIB
"""Decoded size of a batch that is looked at again."""
SMALL_UNIT_BYTES: Final = 64 * KIB
"""Decoded size of batches up to which the engine is one that the process keeps: opening one takes longer than these."""
_MEMORY_SHARE: Final = 4
"""Of the unit's memory, beside what the unit itself holds."""
_SORTED_SHARE: Final = 3
"""Of the unit's memory, as of a merge's: rows that are sorted in memory are there twice."""


class _OtherSizeError(Exception):
    """A batch is not of the unit's size class."""


def read_batch(body: bytes, staging_format: str, limits: FlushUnitLimits) -> Batch:
    """Decode a staged object; rows that cannot even be read are set aside.

    Raises:
        BatchRejected: Not what its format says, or above a bound.
    """
    plain, _, compression = staging_format.partition(".")
    decoded = decompress(body, compression, limits, has_lines=FORMATS[plain].has_lines)
    if FORMATS[plain].is_text and (unread := describe_unread(decoded)):
        raise BatchRejected(f"the batch {unread}")
    batch = _READERS[plain](decoded, limits)
    if not FORMATS[plain].has_lines:
        check_row_count(batch.row_count + batch.bad.row_count, limits)
    return replace(batch, sha256=hashlib.sha256(decoded).hexdigest())


class _Bodies:
    """The bodies of a unit's batches. Of a group what the unit needs is fetched at once, and kept as long as it does.

    Args:
        store: Where they are staged.
        batches: Of the unit; each is taken once.
    """

    def __init__(self, store: ObjectStore, batches: Collection[StagedBatch]) -> None:
        self._store = store
        self._groups: dict[str, _GroupPart] = {}
        for batch in batches:
            if batch.offset_bytes is not None:
                part = self._groups.setdefault(batch.key, _GroupPart(batch.offset_bytes))
                part.left_count += 1
                part.start = min(part.start, batch.offset_bytes)
                part.end = max(part.end, batch.offset_bytes + batch.size_bytes)

    def take(self, batch: StagedBatch) -> bytes:
        """Return a body. Raises NotFound, Unavailable."""
        if batch.offset_bytes is None:
            return self._store.get(batch.key).body
        part = self._groups[batch.key]
        with part.lock:
            if not part.body:
                length = part.end - part.start
                part.body = self._store.get_range(batch.key, start=part.start, length=length).body
            begin = batch.offset_bytes - part.start
            body = part.body[begin : begin + batch.size_bytes]
            part.left_count -= 1
            if not part.left_count:
                part.body = b""
        return body


@dataclass(slots=True)
class _GroupPart:
    start: int
    end: int = 0
    left_count: int = 0
    body: bytes = b""
    lock: Lock = field(default_factory=Lock)


def _require_content(batch: StagedBatch, body: bytes, content: Batch) -> Batch:
    """Return a decoded batch if it is the one that its group names. Raises BatchRejected."""
    # A body of very many streams is named by its bytes as they came.
    if batch.sha256 and batch.sha256 not in (content.sha256, hashlib.sha256(body).hexdigest()):
        raise BatchRejected(f"{batch.key} names other content at this place: the object is damaged; send it again")
    return content


def _fetch_batch(bodies: _Bodies, batch: StagedBatch, unit: FlushUnit) -> Batch:
    """Fetch and decode a batch if it is of the unit's size class.

    Whether it is, is found in one way: no batch is of none, or of two.
    """
    limits, sizes = unit.limits, unit.sizes
    if batch.size_bytes > limits.batch_staged_bytes:
        raise BatchRejected(
            f"the staged object has {batch.size_bytes} bytes; the limit is {limits.batch_staged_bytes}: "
            "send smaller batches"
        )
    body = bodies.take(batch)
    if sizes is None:
        return _require_content(batch, body, read_batch(body, batch.format, limits))
    small = replace(
        limits,
        batch_decoded_bytes=min(limits.batch_decoded_bytes, sizes.decoded_bytes),
        batch_rows=min(limits.batch_rows, sizes.row_count),
    )
    try:
        content = read_batch(body, batch.format, small)
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
        return _require_content(batch, body, content)
    return _require_content(batch, body, read_batch(body, batch.format, limits))


@dataclass(frozen=True, slots=True)
class _FetchRun:
    """Batches that one thread fetches one after the other: tiny ones many at once, larger ones each alone."""

    numbers: tuple[int, ...]
    expected_bytes: int
    is_small: bool


def _is_plain_text(batch: StagedBatch) -> bool:
    return batch.format in FORMATS and FORMATS[batch.format].is_text


def _cut_runs(unit: FlushUnit, *, at_once: int) -> Iterator[_FetchRun]:
    """Cut the batches into runs, in order. What may decode to any size is alone: bounds are looked at between runs.

    Args:
        unit: The unit.
        at_once: Requests that the store answers side by side: no run is longer than it takes to occupy them all.
    """
    most = min(RUN_BYTES, unit.limits.unit_decoded_bytes)
    run_count = min(at_once, len({batch.key for batch in unit.batches}))  # a group is one request
    most_batches = min(RUN_BATCHES, math.ceil(len(unit.batches) / max(run_count, 1)))
    expected = [estimate_bytes(batch, unit.limits) for batch in unit.batches]
    sizes = [
        size if _is_plain_text(batch) else max(size, most + 1)
        for size, batch in zip(expected, unit.batches, strict=True)
    ]
    for numbers in pack(range(len(sizes)), sizes.__getitem__, max_bytes=most, max_count=most_batches):
        is_small = sizes[numbers[0]] <= most
        yield _FetchRun(numbers, sum(expected[number] for number in numbers), is_small)


def _fetch_run(bodies: _Bodies, run: _FetchRun, unit: FlushUnit) -> list[Batch | Exception]:
    """Return each batch of a run, or why it is none. Raises Unavailable."""
    found: list[Batch | Exception] = []
    for number in run.numbers:
        try:
            found.append(_fetch_batch(bodies, unit.batches[number], unit))
        except (NotFound, _OtherSizeError, BatchRejected) as error:
            found.append(error)
    return found


class UnitRows:
    """What a unit has read and checked. Made by :func:`open_unit`; lives as long as its context.

    Attributes:
        scratch: Folder of the unit, removed at the end.
        columns: Columns of the accepted rows, with types; empty if there are no rows.
        partitions: Encoded paths of their partitions, ascending.
        rejected: Reason of each batch that is rejected, by number.
        deferred: Batches for another commit.
    """

    def __init__(self, unit: FlushUnit, scratch: Path) -> None:
        self.scratch = scratch
        self.columns: Mapping[str, str] = {}
        self.partitions: tuple[str, ...] = ()
        self.rejected: dict[int, str] = {}
        self.deferred: set[int] = set()
        self._unit = unit
        self._row_counts: dict[int, int] = {}
        self._contents: dict[int, str] = {}
        self._missing: list[int] = []
        self._left: list[int] = []
        self._left_out: list[int] = []
        self._widening_requests: Mapping[str, str] = {}
        self._frame: EventFrame | None = None
        self._checks: UnitChecks | None = None

    def read(self, store: ObjectStore, stack: ExitStack) -> None:
        """Fetch and check the batches. Raises Unavailable."""
        rejects_whole = self._unit.config.on_bad_rows != "quarantine_rows"
        batches = self._fetch(store)
        refused: dict[int, Batch] = {}
        if rejects_whole:
            refused = {number: batch for number, batch in batches.items() if batch.bad.row_count}
        for number, batch in refused.items():
            self.rejected[number] = next(iter(batch.bad.faults.values())).reason
            del batches[number]
        self._check(batches, stack)
        if rejects_whole and self._checks is not None and self._frame is not None:
            refused |= {number: self._frame.batches[number] for number in self._checks.rejected}
        if refused and not self._widening_requests:
            self._explain(refused)

    def _fetch(self, store: ObjectStore) -> dict[int, Batch]:
        """Fetch and decode the batches in order, a few runs of them at once, until the unit has enough."""
        unit = self._unit
        bodies = _Bodies(store, unit.batches)
        batches: dict[int, Batch] = {}
        decoded_bytes = 0
        small_count = limit_reads(store, SMALL_FETCHES)
        waiting = deque(_cut_runs(unit, at_once=small_count))
        coming: deque[tuple[_FetchRun, Future[list[Batch | Exception]]]] = deque()
        thread_count = max(TRANSFER_COUNT, small_count)
        if len(waiting) == 1:  # one needs no pool
            run = waiting.popleft()
            self._take_run(run, _fetch_run(bodies, run, unit), batches)
            return batches
        with ThreadPoolExecutor(thread_count, thread_name_prefix="icedb-fetch") as pool:
            while (waiting or coming) and decoded_bytes < unit.limits.unit_decoded_bytes:
                while waiting:
                    expected_bytes = sum(run.expected_bytes for run, _ in coming) + waiting[0].expected_bytes
                    room = small_count if waiting[0].is_small else TRANSFER_COUNT
                    if coming and (expected_bytes > FETCHED_BYTES or len(coming) >= room):
                        break
                    run = waiting.popleft()
                    coming.append((run, pool.submit(_fetch_run, bodies, run, unit)))
                run, future = coming.popleft()
                decoded_bytes += self._take_run(run, future.result(), batches)
        self._left = [number for run in (*(run for run, _ in coming), *waiting) for number in run.numbers]
        return batches

    def _take_run(self, run: _FetchRun, results: Sequence[Batch | Exception], batches: dict[int, Batch]) -> int:
        """Note what became of each batch of a run; return how many bytes were decoded."""
        decoded_bytes = 0
        for number, found in zip(run.numbers, results, strict=True):
            if isinstance(found, Batch):
                batches[number], self._contents[number] = found, found.sha256
                decoded_bytes += found.decoded_bytes
            elif isinstance(found, NotFound):
                self._missing.append(number)
            elif isinstance(found, _OtherSizeError):
                self._left_out.append(number)
            else:
                self.rejected[number] = str(found)
        return decoded_bytes

    def _check(self, batches: dict[int, Batch], stack: ExitStack) -> None:
        unit = self._unit
        self._row_counts = {number: batch.row_count for number, batch in batches.items()}
        filled = {number: batch for number, batch in batches.items() if batch.row_count or batch.bad.row_count}
        batches.clear()
        if not filled:
            return
        held_bytes = sum(batch.decoded_bytes for batch in filled.values())
        is_small = held_bytes <= SMALL_UNIT_BYTES
        if is_small:
            engine = stack.enter_context(lend_engine(unit.paths.prefix))
        else:
            engine = UnitEngine(stack.enter_context(open_engine(unit.engine.beside(held_bytes), self.scratch)))
        self._frame = EventFrame(
            engine,
            filled,
            unit.config.times,
            unit.config.partition,
            sorted_bytes=unit.engine.memory_bytes // _SORTED_SHARE,
        )
        checks = self._checks = UnitChecks(unit, self._frame)
        checks.run(tuple(filled))
        filled.clear()
        if checks.widening_requests:
            self._widening_requests = checks.widening_requests
            self._checks, self._row_counts, self.rejected, self._missing = None, {}, {}, []
            self._left, self._left_out = list(range(len(unit.batches))), []
            return
        self._row_counts.update(checks.row_counts)
        for number in checks.left:
            del self._row_counts[number]
        self._left = sorted([*self._left, *checks.left])
        self.rejected.update(checks.rejected)
        self._take_over(checks)

    def _take_over(self, checks: UnitChecks) -> None:
        if checks.accepted:
            self.columns, self.partitions = checks.output_columns, checks.partition_paths

    def _explain(self, refused: Mapping[int, Batch]) -> None:
        """Complete the reasons of batches that are refused for one row by all that is wrong with them."""
        config = self._unit.config.model_copy(update={"on_bad_rows": "quarantine_rows"})
        types = {**self._unit.schema, **(self._checks.output_columns if self._checks else {})}
        unit = replace(self._unit, config=config, schema=types, engine=self._unit.engine.part(_MEMORY_SHARE))
        small = [number for number, batch in refused.items() if batch.decoded_bytes <= MAX_EXPLAINED_BYTES]
        try:
            for number in small[:MAX_EXPLAINED_BATCHES]:
                self.rejected[number] = self._explain_one(unit, refused[number]) or self.rejected[number]
        except Unavailable:
            pass  # too little room: the first reason is one as well

    def _explain_one(self, unit: FlushUnit, batch: Batch) -> str:
        """Return the reason of a batch, all its bad rows considered; empty if none of its rows is bad."""
        while True:
            with open_engine(unit.engine, self.scratch / "refused") as engine:
                frame = EventFrame(UnitEngine(engine), {0: batch}, unit.config.times, unit.config.partition)
                checks = UnitChecks(unit, frame)
                checks.run((0,), is_exact=True)
            if not checks.widening_requests:
                found = frame.batches[0]
                is_about_rows = found.bad.row_count and (0 in checks.accepted or not found.row_count)
                return found.bad.reason if is_about_rows else ""
            unit = replace(
                unit, schema={**unit.schema, **checks.widening_requests}
            )  # what a wider column takes is not bad

    def defer_beyond(self, max_partitions: int) -> None:
        """Keep the oldest batches that lie in so many partitions together, at least one; defer the others."""
        checks = self._checks
        if checks is None or len(self.partitions) <= max_partitions:
            return
        touched = checks.read_batch_partitions()
        accepted = checks.accepted
        kept = accepted[: count_prefix([touched[number] for number in accepted], max_partitions)]
        self.deferred = set(accepted) - set(kept)
        checks.keep(kept)
        self._take_over(checks)

    @property
    def filled(self) -> tuple[int, ...]:
        """Places of the accepted batches that have rows."""
        return tuple(self._checks.accepted) if self._checks is not None and self.columns else ()

    def stream_sorted(self, *, repeats: bool = False) -> Any:
        """Return the accepted rows as record batches, by partition and sort columns. Once, and only if there are any.

        The first column is the place of the row's partition in ``partitions``. If it ``repeats``, text of few values
        may come as dictionaries.
        """
        return self.stream_of(self.filled, sort=self._unit.config.sort, repeats=repeats)

    def stream_of(self, numbers: Sequence[int], *, sort: Collection[str] = (), repeats: bool = False) -> Any:
        """Return the rows of some accepted batches, as :meth:`stream_sorted`; as often as wanted."""
        assert self._frame is not None and self._checks is not None  # noqa: S101, PT018 - there are rows
        return self._frame.stream_sorted(
            tuple(numbers),
            columns=self.columns,
            sort=[column for column in sort if column in self.columns],
            partitions=self._checks.partitions,
            repeats=repeats,
        )

    def read_batch_partitions(self) -> dict[str, tuple[int, ...]]:
        """Return places in ``partitions`` of each accepted batch that has rows, by batch id."""
        if self._checks is None or not self._checks.accepted:
            return {}
        return {self._id(number): places for number, places in self._checks.read_batch_partitions().items()}

    def make_result(self, store: ObjectStore) -> UnitResult:
        """Upload the rows that were set aside of accepted batches (I5), and say what became of each batch.

        Raises:
            Unavailable: The store did not answer.
        """
        checks = self._checks
        bad_rows = []
        for number, bad in checks.bad_rows.items() if checks else ():
            staged, (payload, staging_format) = self._unit.batches[number], bad.encode()
            key = payload_key(self._unit.paths, staged.batch_id, payload, staging_format, what="rows")
            store.put(key, payload)
            bad_rows.append(BadRows(staged, key, bad.row_count, bad.reason, bad.group_faults()))
        accepted = [n for n in self._row_counts if n not in self.rejected and n not in self.deferred]
        return UnitResult(
            columns=self.columns,
            new_kinds={column: int(kinds) for column, kinds in checks.new_kinds.items()} if checks else {},
            accepted=self._ids(accepted),
            rejected={self._id(number): reason for number, reason in sorted(self.rejected.items())},
            missing=self._ids(self._missing),
            deferred=self._ids(sorted(self.deferred)),
            left=self._ids(self._left),
            left_out=self._ids(self._left_out),
            row_count=sum(self._row_counts[number] for number in accepted),
            misfit_count=checks.misfit_count if checks else 0,
            partitions=self.partitions,
            bad_rows=tuple(bad_rows),
            widening_requests=self._widening_requests,
            long_columns=checks.long_columns if checks else (),
            contents={self._id(number): self._contents[number] for number in accepted},
        )

    def _id(self, number: int) -> str:
        return self._unit.batches[number].batch_id

    def _ids(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(self._id, numbers))


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
