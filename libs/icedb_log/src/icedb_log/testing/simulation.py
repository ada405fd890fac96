"""The deterministic simulation of the log protocol: real library code, simulated time, store and faults.

``run_schedule(seed)`` runs one schedule and raises :class:`~icedb_log.testing.simulation_world.Violation` (or what
the library raised) if a rule broke. ``python -m icedb_log.testing.simulation --seconds 600`` runs as many as fit.
"""

import argparse
import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import sys
from collections import Counter
from dataclasses import asdict, dataclass

from icedb_log.clock import SystemClock
from icedb_log.table_config import create_table
from icedb_log.testing.faulty_store import FaultyStore, holds
from icedb_log.testing.memory_store import MemoryObjectStore
from icedb_log.testing.simulation_actors import Simulation, spawn_actor
from icedb_log.testing.simulation_model import SimModel
from icedb_log.testing.simulation_quiesce import quiesce
from icedb_log.testing.simulation_settings import PATHS, draw_settings
from icedb_log.testing.simulation_world import Actor, TraceLine, World


class ScheduleFailed(AssertionError):
    """A schedule broke a rule. The message has the seed, the reason and the end of the trace."""


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """What one schedule did.

    Attributes:
        seed: It can be run again with this.
        trace_hash: Equal for equal schedules.
        counters: How often what happened.
    """

    seed: int
    trace_hash: int
    counters: dict[str, int]


def run_schedule(seed: int) -> ScheduleResult:
    """Run one schedule to its end and to the quiet after it.

    Raises:
        ScheduleFailed: A rule broke.
    """
    rng = random.Random(seed)
    settings = draw_settings(rng)
    world = World(seed, settings=settings, rng=rng)

    def store_now_ms() -> int:
        return world.now_ms // settings.resolution_ms * settings.resolution_ms

    inner = MemoryObjectStore(store_now_ms)
    model = SimModel(settings, store_now_ms=store_now_ms, exists=lambda key: holds(inner, key))
    store = FaultyStore(inner, world=world, observer=model)
    create_table(inner, PATHS, settings.config)
    sim = Simulation(world, store, model)

    def replace(actor: Actor) -> None:
        model.counters.crashes += 1
        spawn_actor(sim, actor.kind)

    world.on_crash = replace
    for kind, count in (
        ("producer", settings.producers),
        ("flusher", settings.flushers),
        ("merger", settings.mergers),
        ("janitor", settings.janitors),
        ("reader", settings.readers),
        ("lease", settings.lease_holders),
    ):
        for _ in range(count):
            spawn_actor(sim, kind)
    try:
        world.run()
        quiesce(sim)
    except Exception as error:
        raise ScheduleFailed(_explain(seed, error, world)) from error
    finally:
        world.kill_all()
    return ScheduleResult(seed, world.trace_hash, asdict(model.counters))


def _explain(seed: int, error: Exception, world: World) -> str:
    tail = "\n".join(_format_line(line) for line in world.trace)
    return f"seed {seed}, step {world.step_count}: {type(error).__name__}: {error}\n{world.settings}\n{tail}"


def _format_line(line: TraceLine) -> str:
    return f"  {line.time_ms % 100_000_000 / 1000:10.3f} {line.actor:12} {line.what:16} {line.key}"


def main(arguments: list[str] | None = None) -> int:
    """Run schedules from the command line; exit code 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m icedb_log.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0..1000000000", help="first..last seed, both included")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("..")
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    totals: Counter[str] = Counter()
    count = failed = 0
    for seed in range(int(first), int(last or first) + 1):
        if clock.monotonic_ms() - started_ms > options.seconds * 1000:
            break
        count += 1
        try:
            totals.update(run_schedule(seed).counters)
        except ScheduleFailed as error:
            failed += 1
            sys.stdout.write(f"{error}\n" if failed == 1 else f"{str(error).splitlines()[0]}\n")
            if not options.keep_going:
                break
    elapsed_s = (clock.monotonic_ms() - started_ms) / 1000
    sys.stdout.write(f"{count} schedules in {elapsed_s:.1f} s, {failed} failed; {dict(totals)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
