"""The reading half of a flush on Spark: parse units, in rounds, until they agree about the types of new columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.jobs import BadRows, FlushJob, FlushOutput, RejectedBatch, StagedBatch
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.reading.types import Kind, infer_type
from icedb_engine.reading.widening import WideningProof, Wish, settle_types
from icedb_engine.spark.spark_blobs import SparkBlobs
from icedb_engine.units.flush_types import FlushUnit, FlushUnitResult
from icedb_engine.units.work_units import FLUSH_RESULTS, encode

MAX_PARALLEL_ROUNDS: Final = 3
"""After so many rounds in which units disagreed about new columns, the rest runs one unit after the other."""

Batches = tuple[StagedBatch, ...]


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """A unit that has answered.

    Attributes:
        number: Its number among the units of the flush.
        batches: Its batches.
        result: Its answer.
    """

    number: int
    batches: Batches
    result: FlushUnitResult


class UnitReader:
    """Runs the parse units of one flush.

    Args:
        job: The flush.
        config: What the rows must fit: the table's configuration, or that of what its ``insert_query`` reads.
        known: Columns whose type is fixed.
        limits: Bounds of batches and tasks.
        proof: Tells whether a column may become wider.

    Attributes:
        types: Types of all columns so far: the known ones, and new ones as the units settled them.
        proof: As given.
    """

    def __init__(
        self, job: FlushJob, config: TableConfig, known: dict[str, str], limits: JobLimits, *, proof: WideningProof
    ) -> None:
        self.types = dict(known)
        self._refused: dict[str, str] = {}
        self.proof = proof
        self._job = job
        self._config = config
        self._limits = limits

    def read(self, units: Sequence[Batches], blobs: SparkBlobs) -> list[ReadUnit]:
        """Run units until all of them agree about the types of new columns; return the answers that count.

        Raises:
            Unavailable: The store or Spark did not answer.
        """
        pending = list(units)
        read: list[ReadUnit] = []
        round_count = 0
        while pending:
            round_count += 1
            # One unit at a time cannot disagree with another: so this ends, whatever the batches hold.
            running = pending if round_count <= MAX_PARALLEL_ROUNDS else pending[:1]
            agreed, again = self._read_round(running, blobs)
            read += agreed
            pending = again + pending[len(running) :]
            pending = self._revise(read, pending)
        return read

    def parse(self, units: Sequence[Batches], blobs: SparkBlobs) -> list[ReadUnit]:
        """Run units once."""
        first = blobs.unit_count
        bodies = blobs.parse(self.encode_units(units))
        return [
            ReadUnit(number, unit, FLUSH_RESULTS.validate_json(body))
            for number, (unit, body) in enumerate(zip(units, bodies, strict=True), first)
        ]

    def encode_units(self, units: Sequence[Batches]) -> list[str]:
        """Return units of work as text."""
        job, engine = self._job, share_threads(self._limits.engine, len(units))
        return [
            encode(
                FlushUnit(
                    paths=job.paths,
                    config=self._config,
                    schema=self.types,
                    batches=unit,
                    commit_id=job.commit_id,
                    time_ms=job.time_ms,
                    limits=self._limits.batch,
                    engine=engine,
                    refused_widenings=self._refused,
                    sizes=job.sizes,
                )
            )
            for unit in units
        ]

    def settle_wishes(self, answers: Sequence[FlushUnitResult]) -> set[str]:
        """Decide about the columns that units want to be wider; return those that are wider from now on.

        Args:
            answers: What all units said so far, those of the oldest batches first.

        Raises:
            Unavailable: The store did not answer.
        """
        granted = set()
        long_columns: set[str] = set()
        for answer in answers:
            for name, wide in answer.wishes.items():
                wish = Wish(name, self.types[name], wide)
                if name in self._refused or wish.narrow == wide:
                    continue
                problem = (
                    "older batches of this flush have integers beyond 2^53"
                    if name in long_columns
                    else self.proof.find_problem(wish)
                )
                if problem:
                    self._refused[name] = problem
                else:
                    self.types[name] = wide
                    granted.add(name)
            long_columns.update(answer.long_columns)
        return granted

    def _revise(self, read: list[ReadUnit], pending: list[Batches]) -> list[Batches]:
        """Decide about wishes; take those units out of ``read`` that have to run again, and return what has to run."""
        places = {batch.batch_id: place for place, batch in enumerate(self._job.batches)}
        read.sort(key=lambda unit: places[unit.batches[0].batch_id])
        granted = self.settle_wishes([unit.result for unit in read])
        again = [unit.batches for unit in read if not granted.isdisjoint(unit.result.columns)]
        read[:] = [unit for unit in read if granted.isdisjoint(unit.result.columns) and not unit.result.wishes]
        return sorted([*pending, *again], key=lambda batches: places[batches[0].batch_id])

    def _read_round(self, units: Sequence[Batches], blobs: SparkBlobs) -> tuple[list[ReadUnit], list[Batches]]:
        """Run units, settle the types of new columns; return who agrees, and what has to run again, or still."""
        read = self.parse(units, blobs)
        self.types = settle_types(self.types, [unit.result.new_kinds for unit in read])
        agreed: list[ReadUnit] = []
        again: list[Batches] = []
        for unit in read:
            new_kinds = unit.result.new_kinds
            if any(self.types.get(name) != infer_type(Kind(kinds)) for name, kinds in new_kinds.items()):
                again.append(unit.batches)
                continue
            agreed.append(unit)
            left = tuple(batch for batch in unit.batches if batch.batch_id in set(unit.result.left))
            if left:
                again.append(left)
        return agreed, again


def bring_together(
    job: FlushJob,
    results: Sequence[FlushUnitResult],
    *,
    files: Sequence[FileMarker],
    schema: Mapping[str, str],
    row_count: int,
    deferred: Collection[str],
    refused: Mapping[str, str] | None = None,
    inexact: Collection[str] = (),
) -> FlushOutput:
    """Return what became of a flush's batches, by what its parse units say.

    Args:
        job: The flush.
        results: What its parse units say.
        files: The data files that were made.
        schema: Types of all columns.
        row_count: Rows in the files.
        deferred: Ids of batches that wait for the next flush.
        refused: Ids of further batches that cannot be taken, with the reason.
        inexact: Columns that cannot become wider, by the footers of data files.
    """
    reasons = {rejected.batch.batch_id: rejected.reason for result in results for rejected in result.rejected}
    reasons.update(refused or {})
    accepted = {batch_id for result in results for batch_id in result.accepted}
    missing = {batch_id for result in results for batch_id in result.missing}
    left_out = {batch_id for result in results for batch_id in result.left_out}
    contents = {
        batch_id: known for result in results for batch_id, known in result.contents.items() if batch_id in accepted
    }
    return FlushOutput(
        files=tuple(files),
        schema=schema,
        accepted=tuple(batch for batch in job.batches if batch.batch_id in accepted),
        rejected=tuple(
            RejectedBatch(batch, reasons[batch.batch_id]) for batch in job.batches if batch.batch_id in reasons
        ),
        missing=tuple(batch for batch in job.batches if batch.batch_id in missing),
        row_count=row_count,
        deferred=tuple(batch for batch in job.batches if batch.batch_id in deferred),
        bad_rows=_find_bad_rows(job.batches, accepted, results),
        inexact=tuple(sorted(inexact)),
        left_out=tuple(batch for batch in job.batches if batch.batch_id in left_out),
        contents=contents,
    )


def _find_bad_rows(
    batches: Batches, accepted: Collection[str], results: Sequence[FlushUnitResult]
) -> tuple[BadRows, ...]:
    """Return the rows that units left out of batches that the flush accepts."""
    found = {bad.batch.batch_id: bad for result in results for bad in result.bad_rows}
    return tuple(found[batch.batch_id] for batch in batches if batch.batch_id in accepted and batch.batch_id in found)
