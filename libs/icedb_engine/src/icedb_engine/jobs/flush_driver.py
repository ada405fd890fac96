"""Flush jobs. The driver cuts a job into units, has them run, and brings their results together.

A small flush is one unit, which reads the batches and writes the files. A big one takes two jobs, where there is a
place for rows between them: parse units read the batches and hand sorted blobs on; the driver settles the types of new
columns, decides which batches the commit takes, and deals the partitions out; write units make the files, one for each
partition unless it is larger than a file should be. With an ``insert_query`` each unit reads batches, runs the query
over them, and writes. The driver only settles what units have in common, and never sees a row.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from icedb_log.jobs import FlushJob, FlushOutput, RejectedBatch, StagedBatch
from icedb_log.model import FileMarker
from icedb_log.phases import adopt

from icedb_engine.jobs.runner import Driver, FlushBlobs, UnitRunner
from icedb_engine.limits import JobLimits
from icedb_engine.reading.types import Kind, infer_type
from icedb_engine.reading.widening import WideningProof, settle_types, unite_known
from icedb_engine.units.blobs import plan_writes
from icedb_engine.work import FlushUnit, UnitResult, WriteUnit, count_prefix, split_batches
from icedb_engine.writing.part_files import SPLIT_FACTOR, require_parity

MAX_PARALLEL_ROUNDS: Final = 3
"""After so many rounds in which units disagreed about new columns, the rest runs one unit after the other."""

Batches = tuple[StagedBatch, ...]
_log = structlog.get_logger(__name__)


class FlushDriver(Driver):
    """Runs flush jobs: a :class:`icedb_log.jobs.BatchWriter`."""

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """See :class:`icedb_log.jobs.BatchWriter`."""
        started_ms = self._clock.monotonic_ms()
        kind = _FlushRun if job.config.insert_query is None else _QueryRun
        run = kind(job, self._runner.checking(job.check_alive), self._limits)
        output = run.run()
        _log.info(
            "batches written",
            table=job.paths.name,
            batches=len(job.batches),
            units=run.unit_count,
            rejected=len(output.rejected),
            deferred=len(output.deferred),
            rows=output.row_count,
            files=len(output.files),
            duration_ms=self._clock.monotonic_ms() - started_ms,
        )
        return output


@dataclass(frozen=True, slots=True)
class _Answered:
    """A unit that has answered: its number among the units of the flush, its batches, and its result."""

    number: int
    batches: Batches
    result: UnitResult


class _Run:
    """One call of :meth:`FlushDriver.write_batches`.

    Attributes:
        unit_count: Units that were run.
    """

    def __init__(self, job: FlushJob, runner: UnitRunner, limits: JobLimits) -> None:
        self.unit_count = 0
        self._job = job
        self._runner = runner
        self._limits = limits
        self._known = unite_known(job)
        self._types = dict(self._known)
        self._deferred: set[str] = set()


class _FlushRun(_Run):
    """Batches of a table without queries."""

    def __init__(self, job: FlushJob, runner: UnitRunner, limits: JobLimits) -> None:
        super().__init__(job, runner, limits)
        self._proof = WideningProof(job, runner.open_store)
        self._refused: dict[str, str] = {}
        self._units: list[_Answered] = []

    def run(self) -> FlushOutput:
        parts = split_batches(self._job.batches, self._limits)
        blobs = self._runner.open_blobs() if len(parts) > 1 else None
        if blobs is None:
            return self._run_direct(self._job.batches)
        with blobs:
            self._read(parts, blobs)
            self._defer_beyond(self._job.config.max_partitions_per_flush, blobs)
            files = blobs.write(self._plan_writes())
            self.unit_count = blobs.unit_count
        return self._collect(files)

    def _run_direct(self, batches: Batches) -> FlushOutput:
        (result,) = self._runner.run("flush", self._make_units([batches]))
        while result.widening_requests:
            self._apply_widening_requests([result])
            (result,) = self._runner.run("flush", self._make_units([batches]))
        self.unit_count = 1
        self._types = settle_types(self._types, [result.new_kinds])
        self._units = [_Answered(0, batches, result)]
        # What the unit had no room for waits for the next commit, and so does what has too many partitions.
        self._deferred = {*result.deferred, *result.left}
        return self._collect()

    def _make_units(self, parts: Sequence[Batches]) -> list[FlushUnit]:
        return [
            FlushUnit.of(
                self._job,
                self._limits.engine,
                schema=self._types,
                batches=part,
                limits=self._limits.batch,
                refused_widenings=self._refused,
                sizes=self._job.sizes,
            )
            for part in parts
        ]

    def _read(self, parts: Sequence[Batches], blobs: FlushBlobs) -> None:
        """Run parse units until all of them agree about the types of new columns; keep the answers that count."""
        pending = list(parts)
        round_count = 0
        while pending:
            round_count += 1
            # One unit at a time cannot disagree with another: so this ends, whatever the batches hold.
            running = pending if round_count <= MAX_PARALLEL_ROUNDS else pending[:1]
            pending = self._revise(self._read_round(running, blobs) + pending[len(running) :])

    def _read_round(self, parts: Sequence[Batches], blobs: FlushBlobs) -> list[Batches]:
        """Run units, settle the types of new columns; keep units that agree, and return the batches to run again."""
        answered = self._parse(parts, blobs)
        self._types = settle_types(self._types, [unit.result.new_kinds for unit in answered])
        again: list[Batches] = []
        for unit in answered:
            new_kinds = unit.result.new_kinds
            if any(self._types.get(name) != infer_type(Kind(kinds)) for name, kinds in new_kinds.items()):
                again.append(unit.batches)
                continue
            self._units.append(unit)
            left = tuple(batch for batch in unit.batches if batch.batch_id in set(unit.result.left))
            again += [left] if left else []
        return again

    def _parse(self, parts: Sequence[Batches], blobs: FlushBlobs) -> list[_Answered]:
        first = blobs.unit_count
        results = blobs.parse(self._make_units(parts))
        return [_Answered(number, *pair) for number, pair in enumerate(zip(parts, results, strict=True), first)]

    def _revise(self, pending: list[Batches]) -> list[Batches]:
        """Decide about widening requests; drop results of units that have to run again, and return their batches."""
        places = {batch.batch_id: place for place, batch in enumerate(self._job.batches)}
        self._units.sort(key=lambda unit: places[unit.batches[0].batch_id])
        granted = self._apply_widening_requests([unit.result for unit in self._units])
        again = [unit.batches for unit in self._units if not granted.isdisjoint(unit.result.columns)]
        self._units = [
            unit
            for unit in self._units
            if granted.isdisjoint(unit.result.columns) and not unit.result.widening_requests
        ]
        return sorted([*pending, *again], key=lambda batches: places[batches[0].batch_id])

    def _apply_widening_requests(self, answers: Sequence[UnitResult]) -> set[str]:
        """Grant or refuse the wider types that units asked for; return the columns that are wider from now on.

        Args:
            answers: Results of all units so far, those of the oldest batches first.
        """
        granted = set()
        long_columns: set[str] = set()
        for answer in answers:
            for name, wide in answer.widening_requests.items():
                if name in self._refused or self._types[name] == wide:
                    continue
                problem: str | None = "older batches of this flush have integers beyond 2^53"
                if name not in long_columns:
                    problem = self._proof.find_problem(name, self._types[name])
                if problem:
                    self._refused[name] = problem
                else:
                    self._types[name] = wide
                    granted.add(name)
            long_columns.update(answer.long_columns)
        return granted

    def _find_columns(self) -> dict[str, str]:
        """Return the columns of the accepted rows, with types: the schema's first, then the new ones."""
        found = {name for unit in self._units for name in unit.result.columns}
        return {name: sql_type for name, sql_type in self._types.items() if name in found}

    def _defer_beyond(self, max_partitions: int, blobs: FlushBlobs) -> None:
        """Take the oldest batches that lie in so many partitions together, at least one; defer the others."""
        touched = {
            batch_id: {unit.result.partitions[place] for place in places}
            for unit in self._units
            for batch_id, places in unit.result.batch_partitions.items()
        }
        ordered = [batch.batch_id for batch in self._job.batches if batch.batch_id in touched]
        kept = set(ordered[: count_prefix([touched[batch_id] for batch_id in ordered], max_partitions)])
        self._deferred = set(ordered) - kept
        if not self._deferred:
            return
        cut = [unit for unit in self._units if not self._deferred.isdisjoint(unit.result.accepted)]
        self._units = [unit for unit in self._units if self._deferred.isdisjoint(unit.result.accepted)]
        for unit in cut:
            if kept.isdisjoint(unit.result.accepted):
                self._units.append(_without_rows(unit, self._deferred))
            else:
                # Its blobs mix rows of both kinds of batches: it reads the kept ones again. There is one such unit.
                out = self._deferred.union(unit.result.left)
                rest = tuple(batch for batch in unit.batches if batch.batch_id not in out)
                self._units += self._parse([rest], blobs)

    def _plan_writes(self) -> list[WriteUnit]:
        plans = plan_writes(
            [(unit.number, unit.result) for unit in self._units],
            task_bytes=self._limits.write_task_bytes,
            piece_bytes=SPLIT_FACTOR * self._job.config.target_file_bytes,
        )
        engine, columns = self._limits.engine, self._find_columns()
        return [
            WriteUnit.of(self._job, engine, schema=columns, partitions=plan.partitions, blobs=plan.blobs)
            for plan in plans
        ]

    def _collect(self, files: tuple[FileMarker, ...] = ()) -> FlushOutput:
        results = [unit.result for unit in self._units]
        schema = {**self._known, **self._find_columns()}
        output = unite_results(self._job, results, schema=schema, deferred=self._deferred, files=files)
        return replace(output, inexact=tuple(sorted(self._proof.inexact)))


def _without_rows(unit: _Answered, deferred: set[str]) -> _Answered:
    """Return a unit all of whose rows are deferred; what it says about batches without rows stays."""
    result = replace(
        unit.result,
        columns={},
        new_kinds={},
        accepted=tuple(batch_id for batch_id in unit.result.accepted if batch_id not in deferred),
        row_count=0,
        misfit_count=0,
        partitions=(),
        blobs=(),
        batch_partitions={},
    )
    return replace(unit, result=result)


class _QueryRun(_Run):
    """Batches of a table with an ``insert_query``."""

    def __init__(self, job: FlushJob, runner: UnitRunner, limits: JobLimits) -> None:
        super().__init__(job, runner, limits)
        self._made: list[UnitResult] = []

    def run(self) -> FlushOutput:
        job, limits = self._job, self._limits
        batch = replace(limits.batch, unit_target_bytes=max(1, limits.direct_bytes // 2))
        waiting = list(split_batches(job.batches, replace(limits, batch=batch))) or [()]  # of a job without batches
        while waiting:
            self.unit_count += len(waiting)
            units = [
                FlushUnit.of(job, limits.engine, schema=self._types, batches=part, limits=limits.batch, sizes=job.sizes)
                for part in waiting
            ]
            waiting = self._take(waiting, self._runner.run("insert", units))
        found = {name for made in self._made for name in made.columns}
        schema = {**self._known, **{name: kind for name, kind in self._types.items() if name in found}}
        left = {batch_id for made in self._made for batch_id in (*made.deferred, *made.left)}
        return unite_results(job, self._made, schema=schema, deferred=self._deferred | left)

    def _take(self, parts: Sequence[Batches], results: Sequence[UnitResult]) -> list[Batches]:
        """Take what fits together, oldest first; return units that have to run again, by types that are settled now."""
        again: list[Batches] = []
        partitions = {partition for made in self._made for partition in made.partitions}
        for batches, made in zip(parts, results, strict=True):
            if any(self._types.get(name, kind) != kind for name, kind in made.columns.items()):
                again.append(batches)
                continue
            union = partitions.union(made.partitions)
            if partitions and len(union) > self._job.config.max_partitions_per_flush:
                self._deferred.update(batch.batch_id for batch in batches)
                continue
            partitions = union
            # A batch that the query has refused since may have settled the types for which others are rejected: they
            # are read once more without that one, for it never holds up others.
            waiting = made.rejected.keys() - made.refused if made.refused else set()
            left = tuple(batch for batch in batches if batch.batch_id in waiting)
            again += [left] if left else []
            rejected = {batch_id: reason for batch_id, reason in made.rejected.items() if batch_id not in waiting}
            self._made.append(replace(made, rejected=rejected))
            self._types.update(made.columns)
        return again


def unite_results(
    job: FlushJob,
    results: Sequence[UnitResult],
    *,
    schema: Mapping[str, str],
    deferred: Collection[str],
    files: tuple[FileMarker, ...] = (),
) -> FlushOutput:
    """Return what became of a flush's batches, by what its units say.

    Args:
        job: The flush.
        results: What its units say.
        schema: Types of all columns.
        deferred: Ids of batches that wait for the next flush.
        files: Data files that were made of what the units handed on, besides those that they made.

    Raises:
        InvariantViolated: The files have not as many rows as the units say.
    """
    for result in results:
        adopt(result.phases)
    files = (*files, *(marker for result in results for marker in result.files))
    row_count = sum(result.row_count for result in results)
    require_parity(job.paths, read_count=row_count, files=files)

    def pick(ids: Collection[str]) -> Batches:
        return tuple(batch for batch in job.batches if batch.batch_id in ids)

    reasons = {batch_id: reason for result in results for batch_id, reason in result.rejected.items()}
    accepted = {batch_id for result in results for batch_id in result.accepted}
    bad_rows = {bad.batch.batch_id: bad for result in results for bad in result.bad_rows}
    contents = {batch_id: known for result in results for batch_id, known in result.contents.items()}
    return FlushOutput(
        files=files,
        schema=schema,
        accepted=pick(accepted),
        rejected=tuple(RejectedBatch(batch, reasons[batch.batch_id]) for batch in pick(reasons)),
        missing=pick({batch_id for result in results for batch_id in result.missing}),
        row_count=row_count,
        misfit_count=sum(result.misfit_count for result in results),
        deferred=pick(deferred),
        bad_rows=tuple(bad_rows[batch.batch_id] for batch in pick(accepted & bad_rows.keys())),
        left_out=pick({batch_id for result in results for batch_id in result.left_out}),
        contents={batch_id: known for batch_id, known in contents.items() if batch_id in accepted},
    )
