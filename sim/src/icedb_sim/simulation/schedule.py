"""One schedule of the simulation, from its seed to the quiet after it."""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

from icedb_log.table.stored_config import create_table

from icedb_sim.fakes.faulty_store import FaultyStore
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.simulation.actors import BODIES, Simulation, next_name, spawn_actor
from icedb_sim.simulation.facts import AuditWatch, Counters
from icedb_sim.simulation.model import SimModel
from icedb_sim.simulation.quiesce import quiesce
from icedb_sim.simulation.scenario import Mix, Scenario, Surroundings
from icedb_sim.simulation.scenarios import draw_mix, find_scenarios
from icedb_sim.simulation.settings import PATHS, Settings, draw_settings
from icedb_sim.simulation.world import TRACE_TAIL, Actor, Script, Step, TraceLine, World

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
        create_table(inner, PATHS, settings.config)
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
