"""One schedule of the simulation, from its seed to the quiet after it."""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

from icedb_log.clean.orphans import sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.ingest.flush import flush_table
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table

from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.simulation.actors import BODIES, Simulation, next_name, spawn_actor
from icedb_sim.simulation.data import SimBatchWriter, SimGroupMerger
from icedb_sim.simulation.facts import AuditWatch, Counters
from icedb_sim.simulation.faulty_store import FaultyStore
from icedb_sim.simulation.model import SimModel
from icedb_sim.simulation.scenario import Mix, Scenario, Surroundings
from icedb_sim.simulation.scenarios import draw_mix, find_scenarios
from icedb_sim.simulation.settings import PATHS, SEAL_AGE_MS, Settings, draw_settings
from icedb_sim.simulation.world import TRACE_TAIL, Actor, Script, SimClock, Step, TraceLine, Violation, World
from icedb_sim.tables.small_table import ANY_SHARE

_ROUNDS: Final = 5
_NOTES: Final = ("/_icedb_probe/clock", "/_icedb/fence/ingest.json", "/_icedb/fence/merge.json")
"""What runs write for themselves, whatever they find."""
_MAX_RUNS: Final = 200


def quiesce(sim: Simulation) -> None:
    """Bring a table to rest and check what is left.

    Raises:
        Violation: Something got lost, or garbage stays for ever.
    """
    sim.store.stop_faults()
    sim.world.land_all()
    for calm in sim.at_calm:
        calm(sim)
    if sim.model.is_blind:
        return  # its table is purged: the scenario has looked at what is left of it
    clock = SimClock(sim.world)
    reader = sim.make_reader(clock)
    mark = sim.model.begin_read()
    view = reader.read()
    sim.model.check_read(mark, view, fold(view))
    audit = sim.audit_watch.open()

    def vacuum() -> object:
        return vacuum_table(sim.open(clock, reader=reader), audit=audit)

    def sweep() -> object:
        return sweep_orphans(sim.open(clock, reader=reader), policy=ANY_SHARE, audit=audit)

    runs = (vacuum, sweep)
    worker = sim.make_reader(clock)
    before: frozenset[ObjectInfo] | None = None
    for _ in range(_ROUNDS):
        _work_off(sim, clock, worker)
        for run in runs:
            # A worker with a fast clock may have put a tombstone's time into the future.
            sim.world.now_ms += SEAL_AGE_MS + 2 * sim.world.settings.clock_error_ms
            run()
        after = _content(sim)
        if after == before:
            break  # nothing is too young any more: another round would do nothing either
        before = after
    mark = sim.model.begin_read()
    view = reader.read()
    snapshot = fold(view)
    sim.model.check_read(mark, view, snapshot)
    _check_rest(sim, named={marker.path for file in view.files for marker in file.log.markers})
    live = {marker.path for marker in snapshot.live}
    if live != sim.model.live_truth():
        raise Violation(
            f"at rest {sorted(live ^ sim.model.live_truth())[:1]} is live in one of log and truth only (S1)"
        )
    if snapshot.tombstoned_ms or snapshot.log_tombstoned_ms or any(file.log.is_seal for file in view.files):
        raise Violation(f"at rest the log still has tombstones or seals: {snapshot} (J2, J3)")


def _content(sim: Simulation) -> frozenset[ObjectInfo]:
    return frozenset(info for info in list_all(sim.store.inner, "").objects if not info.key.endswith(_NOTES))


def _work_off(sim: Simulation, clock: SimClock, reader: LogReader) -> None:
    writer, merger = SimBatchWriter(sim.store, clock), SimGroupMerger(sim.store, clock)
    for _ in range(_MAX_RUNS):
        flushed = flush_table(sim.open(clock, owner="rest", reader=reader), writer)
        if not (flushed.has_more or flushed.committed_key or flushed.rejected or flushed.duplicate_count):
            break
    else:
        raise Violation("flushes never come to rest (I2)")
    for _ in range(_MAX_RUNS):
        merged = merge_table(sim.open(clock, owner="rest", reader=reader), merger)
        if merged.committed_key is None:
            break
    else:
        raise Violation("merges never come to rest (M1)")
    for work_off in sim.at_rest:
        work_off(sim)


def _check_rest(sim: Simulation, *, named: set[str]) -> None:
    model, inner = sim.model, sim.store.inner
    for batch in model.batches.values():
        if batch.is_acknowledged and batch.batch_id not in model.committed and not batch.is_quarantined:
            raise Violation(f"batch {batch.batch_id} was accepted and is nowhere (I1)")
    staged = inner.list_page(PATHS.staging_prefix).objects
    if staged:
        raise Violation(f"{staged[0].key} never leaves staging (I2)")
    unnamed = [info.key for info in inner.list_page(PATHS.data_prefix).objects if info.key not in named]
    if unnamed:
        raise Violation(f"{unnamed[0]} stays for ever, though no log file names it (J5)")


_COUNTERS: Final = tuple(field.name for field in fields(Counters))


@dataclass(frozen=True)  # without slots: the script is made when somebody asks for it
class Run:
    """What one schedule did, however it ended.

    Attributes:
        seed: It can be run again with this,
        mix: and with this.
        settings: Drawn from the seed.
        decided: What the scheduler decided: waiting times and names of actors, as in :class:`Step`.
        faults: The faults that happened, in order, and what sort each one was.
        trace: The last things that happened, or all of them.
        trace_hash: Equal for equal schedules.
        counters: How often what happened.
    """

    seed: int
    mix: Mix
    settings: Settings
    decided: Sequence[tuple[int, str]]
    faults: dict[str, str]
    trace: tuple[TraceLine, ...]
    trace_hash: int
    counters: dict[str, int]

    @cached_property
    def script(self) -> Script:
        """What was decided: it can be run again with parts left out."""
        return Script(tuple(map(Step._make, self.decided)), frozenset(self.faults))


class ScheduleFailed(AssertionError):
    """A schedule broke a rule. The message has the seed, the reason and the end of the trace.

    Args:
        run: What it did.
        error: What was wrong.
    """

    def __init__(self, run: Run, error: Exception) -> None:
        self.run = run
        self.error = error
        lines = [
            f"seed {run.seed}, mix {run.mix}, step {len(run.decided)}: {type(error).__name__}: {error}",
            str(run.settings),
            *map(format_line, run.trace),
        ]
        super().__init__("\n".join(lines))


def run_schedule(
    seed: int, mix: Mix | None = None, *, script: Script | None = None, trace_tail: int | None = TRACE_TAIL
) -> Run:
    """Run one schedule to its end and to the quiet after it.

    Args:
        seed: Names the schedule.
        mix: The scenarios; ``None``: drawn from the seed.
        script: The record of a run with the same seed and mix, or a part of it, to be followed.
        trace_tail: How many lines of the trace to keep; ``None``: all of them.

    Raises:
        ScheduleFailed: A rule broke.
    """
    mix = draw_mix(seed) if mix is None else mix
    settings = draw_settings(random.Random(seed))
    for scenario_type in find_scenarios(mix):
        settings = scenario_type.change_settings(settings, seed)
    world = World(seed, settings=settings, script=script, trace_tail=trace_tail)
    schedule = _Schedule(world, mix)
    try:
        schedule.run()
    except Exception as error:
        raise ScheduleFailed(schedule.describe(), error) from error
    finally:
        world.kill_all()
    return schedule.describe()


class _Schedule:
    """The parts of one schedule, put together."""

    def __init__(self, world: World, mix: Mix) -> None:
        self._world = world
        self._mix = mix
        settings = world.settings

        resolution_ms = settings.resolution_ms

        def store_now_ms() -> int:
            now_ms = world.now_ms
            return now_ms - now_ms % resolution_ms

        inner = MemoryObjectStore(store_now_ms)
        create_table(TableStore(inner, PATHS), settings.config)
        model = SimModel(settings, store_now_ms=store_now_ms, exists=inner.holds)
        surroundings = Surroundings(settings, model, store_now_ms, inner.holds)
        self._scenarios: list[Scenario] = [scenario(surroundings) for scenario in find_scenarios(mix)]
        audit_watch = AuditWatch(named=model.named)
        store = FaultyStore(inner, world=world, observers=(audit_watch, *self._scenarios, model))
        self._sim = Simulation(world, store, model, audit_watch, bodies=dict(BODIES))
        self._sim.drops_tables = any(scenario.drops_tables for scenario in self._scenarios)
        self._sim.at_calm += [scenario.calm for scenario in self._scenarios]
        self._sim.at_rest += [scenario.rest for scenario in self._scenarios]
        world.on_crash = self._replace

    def run(self) -> None:
        """Run everything. Raises whatever was wrong."""
        counts = _count_actors(self._world.settings)
        for scenario, (_, size) in zip(self._scenarios, self._mix.sizes, strict=True):
            for part in scenario.parts(size):
                self._sim.bodies[part.kind] = part.body
                counts[part.kind] = part.size
        for scenario in self._scenarios:
            scenario.arrange(self._sim)
        for kind, count in counts.items():
            for number in range(1, count + 1):
                spawn_actor(self._sim, kind, f"{kind}{number}")
        self._world.run()
        quiesce(self._sim)
        for scenario in self._scenarios:
            scenario.check(self._sim)

    def describe(self) -> Run:
        """Return what happened so far."""
        world = self._world
        counters = {name: getattr(self._sim.model.counters, name) for name in _COUNTERS}
        for scenario in self._scenarios:
            counters.update(scenario.counters())
        return Run(
            world.seed,
            self._mix,
            world.settings,
            world.decided,
            world.faults,
            tuple(map(TraceLine._make, world.trace)),
            world.trace_hash,
            counters,
        )

    def _replace(self, actor: Actor) -> None:
        self._sim.model.counters.crashes += 1
        spawn_actor(self._sim, actor.kind, next_name(actor.name))


def _count_actors(settings: Settings) -> dict[str, int]:
    return {
        "producer": settings.producers,
        "flusher": settings.flushers,
        "merger": settings.mergers,
        "janitor": settings.janitors,
        "reader": settings.readers,
        "lease": settings.lease_holders,
        "operator": settings.operators,
        "changer": settings.changers,
    }


def format_line(line: TraceLine) -> str:
    """Return a line of a trace for people."""
    return f"  {line.time_ms % 100_000_000 / 1000:10.3f} {line.actor:12} {line.what:16} {line.key}"
