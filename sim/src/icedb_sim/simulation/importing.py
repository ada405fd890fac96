"""Imports in the simulation: files that others have written become data files of the table, each once (N1 to N4).

They are the scenario ``importers``. Importers share their sources, files outside of the table that are copied and files
that somebody has put below ``_data``, and import any of them at any time, also those that are live for long. One that
dies leaves a record, or copies. A source counts as a batch: it is live by the commit that first names a data file of
it. Of what nobody can tell any more a person knows the truth, who is asked when the others are done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.imports.import_records import Assumption, find_import_state, read_records
from icedb_log.imports.imports import ImportOptions, ImportResult, import_files
from icedb_log.jobs import (
    CopyOutput,
    ImportMode,
    InspectedFile,
    InspectJob,
    InspectOutput,
    PlacedFile,
    RefusedFile,
    SourceFile,
)
from icedb_log.keys import TablePaths
from icedb_log.log.fold import named_paths
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import Simulation, try_run
from icedb_sim.simulation.data import ROW_BITS
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.model import SimModel
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, SimClock, Violation
from icedb_sim.tables.row_imports import describe_source

IMPORTER: Final = "importer"
_FOLDER: Final = "in/"
_MAX_ROWS: Final = 4
_AT_ONCE: Final = 3
_NEW_RATE: Final = 0.4
_IN_PLACE_RATE: Final = 0.3


@dataclass(frozen=True, slots=True)
class _Source:
    key: str
    name: str
    """Under which the oracle knows its rows."""
    partition: str
    column: str
    mode: ImportMode


class ImportScenario(Scenario):
    """So many actors import files, one more for each size: each file is live once, or was refused.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "importers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._model = surroundings.model
        self._sources: dict[str, _Source] = {}
        self._refused: set[str] = set()
        self._counts = {"imported_files": 0, "imported_before": 0}

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the importers."""
        return (Part(IMPORTER, count + 1, self._import_for_ever),)

    def rest(self, sim: Simulation) -> None:
        """Import what is left; a person says what became of imports of which nobody can tell."""
        clock = SimClock(sim.world)
        left = [source for source in self._sources.values() if source.mode == "copy"]
        truths = self._find_truths(sim, clock)
        if len(truths) > 1:
            self._refused |= {sim.store.inner.uri(source.key) for source in left}
            return  # one word is said of all of them, and would be wrong of some
        result = self._run(sim, clock, "person", left, assumed=min(truths, default=None))
        self._refused |= {refused.url for refused in result.refused}

    def check(self, sim: Simulation) -> None:
        """Check that all sources are live that were not refused."""
        for source in self._sources.values():
            is_refused = sim.store.inner.uri(source.key) in self._refused
            if source.mode == "copy" and source.name not in self._model.committed and not is_refused:
                raise Violation(f"{source.key} was imported and refused by nobody (N2)")

    def counters(self) -> dict[str, int]:
        """Return how many files became live by imports, as these say, and how many had been live before."""
        return self._counts

    def _find_truths(self, sim: Simulation, clock: SimClock) -> set[Assumption]:
        """Return what became of the imports of which nobody can tell."""
        named = named_paths(sim.make_reader(clock).read().files)
        pending = (each for each in read_records(TableStore(sim.store, PATHS)) if each.state == "pending")
        unknown = [each for each in pending if find_import_state(sim.store, each, named=named) is None]
        landed = {any(source.path in self._model.named for source in record.sources) for record in unknown}
        return {"landed" if each else "lost" for each in landed}

    def _import_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        while True:
            if not self._sources or rng.random() < _NEW_RATE:
                try_run(sim, actor, partial(self._put_source, sim, clock))
            else:
                try_run(sim, actor, partial(self._import_some, sim, actor, clock))

    def _put_source(self, sim: Simulation, clock: SimClock) -> None:
        """Write a file: a row in it is of one partition."""
        rng = sim.world.rng
        number = sim.batch_count
        sim.batch_count += 1
        rows = [(number << ROW_BITS) + n for n in range(rng.randint(1, _MAX_ROWS))]
        partition = rng.choice(("p=a", "p=b"))
        mode: ImportMode = "in_place" if rng.random() < _IN_PLACE_RATE else "copy"
        key = f"{_FOLDER}{number}.parquet"
        if mode == "in_place":
            key = PATHS.data_key(partition=partition, file_id=clock.new_id())
        source = _Source(key, f"import {number}", partition, f"c{number % 12}", mode)
        self._model.batches[source.name] = SimBatch(source.name, b"", frozenset(rows))
        if mode == "in_place":
            self._model.imported[key] = source.name
        sim.store.put(key, orjson.dumps(rows))
        self._sources[key] = source

    def _import_some(self, sim: Simulation, actor: Actor, clock: SimClock) -> None:
        rng = sim.world.rng
        first = rng.choice(list(self._sources.values()))
        same = [source for source in self._sources.values() if source.mode == first.mode]
        chosen = {source.key: source for source in (first, *rng.choices(same[-_AT_ONCE:], k=rng.randint(0, 2)))}
        try:
            self._run(sim, clock, actor.name, chosen.values())
        except InvalidRequest:
            return  # nobody can tell any more what became of an earlier one

    def _run(
        self,
        sim: Simulation,
        clock: SimClock,
        owner: str,
        sources: Iterable[_Source],
        *,
        assumed: Assumption | None = None,
    ) -> ImportResult:
        described: list[SourceFile] = []
        for source in sources:
            try:
                described.append(describe_source(sim.store, source.key))
            except NotFound:
                continue  # a sweep has deleted it
        mode = self._sources[described[0].key].mode if described else "copy"
        table = sim.open(clock, owner=owner, reader=sim.make_reader(clock))
        importer = _SimImporter(sim.store, clock, self._sources, self._model)
        result = import_files(table, importer, described, options=ImportOptions(mode=mode, assumed=assumed))
        self._counts["imported_files"] += result.file_count
        self._counts["imported_before"] += result.imported_before_count
        return result


@dataclass(frozen=True, slots=True)
class _SimImporter:
    """Copies files that list row numbers, and tells the oracle whose rows a copy has."""

    store: ObjectStore
    clock: SimClock
    sources: dict[str, _Source]
    model: SimModel

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Run an inspection."""
        files: list[InspectedFile] = []
        refused: list[RefusedFile] = []
        for each in job.sources:
            source = self.sources[each.key]
            try:
                rows = orjson.loads(self.store.get(each.key).body)
            except NotFound:
                refused.append(RefusedFile(each.url, "it is gone"))
                continue
            files.append(
                InspectedFile(each, {source.column: "BIGINT"}, source.partition, len(rows), {}, is_sorted=False)
            )
        return InspectOutput(tuple(files), tuple(refused))

    def copy_files(self, paths: TablePaths, files: Sequence[InspectedFile]) -> CopyOutput:
        """Copy files under fresh names."""
        placed: list[PlacedFile] = []
        for file in files:
            body = self.store.get(file.source.key).body
            key = paths.data_key(partition=file.partition, file_id=self.clock.new_id())
            self.model.imported[key] = self.sources[file.source.key].name
            self.store.put(key, body)
            placed.append(PlacedFile(file, key, len(body)))
        return CopyOutput(tuple(placed), ())
