"""The deterministic simulation of the log protocol: real library code, simulated time, store and faults.

``run_schedule(seed)`` runs one schedule and raises :class:`~icedb_log.testing.simulation_world.Violation` (or what
the library raised) if a rule broke. ``python -m icedb_log.testing.simulation --seconds 600`` runs as many as fit.
"""

import argparse
import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from icedb_log.clock import SystemClock
from icedb_log.tables.table_config import create_table
from icedb_log.testing.faulty_store import FaultyStore, holds
from icedb_log.testing.memory_store import MemoryObjectStore
from icedb_log.testing.simulation_actors import Simulation, spawn_actor
from icedb_log.testing.simulation_audit import AuditWatch
from icedb_log.testing.simulation_checks import CHECKER, check_for_ever
from icedb_log.testing.simulation_erasures import (
    ERASER,
    NOTER,
    ErasureWatch,
    erase_for_ever,
    finish_erasures,
    note_for_ever,
)
from icedb_log.testing.simulation_leases import LESSEE, lease_for_ever, with_lessees
from icedb_log.testing.simulation_model import SimModel
from icedb_log.testing.simulation_mutations import Mutation, mutated
from icedb_log.testing.simulation_outsiders import (
    APPENDER,
    FOLLOWER,
    FollowWatch,
    append_for_ever,
    finish_following,
    follow_for_ever,
)
from icedb_log.testing.simulation_pins import PINNER, PinWatch, end_pins, pin_for_ever, with_pinners
from icedb_log.testing.simulation_quiesce import quiesce
from icedb_log.testing.simulation_rules import RULES
from icedb_log.testing.simulation_rules_erase import ERASE_RULES
from icedb_log.testing.simulation_rules_lease import LEASE_RULES
from icedb_log.testing.simulation_rules_outsider import OUTSIDER_RULES
from icedb_log.testing.simulation_rules_pin import PIN_RULES
from icedb_log.testing.simulation_rules_view import VIEW_RULES
from icedb_log.testing.simulation_settings import PATHS, draw_settings
from icedb_log.testing.simulation_views import FEEDER, ViewWatch, check_view, feed_for_ever, work_off_view
from icedb_log.testing.simulation_world import Actor, TraceLine, World

MAX_MUTATED_SCHEDULES: Final = 3000
"""How long to look for a schedule that notices a rule switched off."""


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


def run_schedule(
    seed: int,
    *,
    erasers: int = 0,
    feeders: int = 0,
    pinners: int = 0,
    checkers: int = 0,
    lessees: int = 0,
    outsiders: int = 0,
) -> ScheduleResult:
    """Run one schedule to its end and to the quiet after it.

    Args:
        seed: Names the schedule.
        erasers: So many actors more ask for erasures and carry them on, with a janitor that notes what it deletes.
        feeders: So many actors more create a view of the table, feed it, merge it and clean it.
        pinners: So many actors more pin times and rely on them, and the table keeps versions in most schedules.
        checkers: So many actors more check the table with ``icedb fsck``.
        lessees: So many actors more take leases as readers do, and rely on them.
        outsiders: So many actors more append files of their own, and one follows the table.

    Raises:
        ScheduleFailed: A rule broke.
    """
    rng = random.Random(seed)
    settings = draw_settings(rng) if not pinners else with_pinners(draw_settings(rng), seed)
    settings = with_lessees(settings, seed) if lessees else settings
    world = World(seed, settings=settings, rng=rng)

    def store_now_ms() -> int:
        return world.now_ms // settings.resolution_ms * settings.resolution_ms

    inner = MemoryObjectStore(store_now_ms)
    model = SimModel(settings, store_now_ms=store_now_ms, exists=lambda key: holds(inner, key))
    watch = ErasureWatch(model, store_now_ms=store_now_ms, exists=lambda key: holds(inner, key))
    follow_watch = FollowWatch(watch)
    view_watch = ViewWatch(follow_watch)
    pin_watch = PinWatch(view_watch, settings=settings, store_now_ms=store_now_ms, exists=lambda key: holds(inner, key))
    audit_watch = AuditWatch(pin_watch, named=model.named)
    store = FaultyStore(inner, world=world, observer=audit_watch)
    create_table(inner, PATHS, settings.config)
    sim = Simulation(
        world,
        store,
        model,
        audit_watch,
        more_bodies={
            ERASER: erase_for_ever,
            NOTER: note_for_ever,
            FEEDER: feed_for_ever,
            PINNER: pin_for_ever,
            CHECKER: check_for_ever,
            APPENDER: append_for_ever,
            FOLLOWER: partial(follow_for_ever, watch=follow_watch),
            LESSEE: lease_for_ever,
        },
    )
    sim.at_rest += [partial(work_off_view, sim)] * bool(feeders) + [partial(end_pins, sim)] * bool(pinners)
    sim.at_rest += [partial(finish_following, sim, follow_watch)] * bool(outsiders)

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
        ("operator", settings.operators),
        ("changer", settings.changers),
        (ERASER, erasers),
        (NOTER, min(erasers, 1)),
        (FEEDER, feeders),
        (PINNER, pinners),
        (CHECKER, checkers),
        (LESSEE, lessees),
        (APPENDER, outsiders),
        (FOLLOWER, min(outsiders, 1)),
    ):
        for _ in range(count):
            spawn_actor(sim, kind)
    try:
        world.run()
        quiesce(sim)
        if erasers:
            finish_erasures(sim)
        if feeders:
            check_view(sim, view_watch)
    except Exception as error:
        raise ScheduleFailed(_explain(seed, error, world)) from error
    finally:
        world.kill_all()
    erased = {"erasures": watch.complete_count} if erasers else {}
    fed = {"fed_rows": len(view_watch.fed)} if feeders else {}
    pinned = {"pins": pin_watch.pin_count} if pinners else {}
    followed = {"delivered_rows": follow_watch.delivered_count, "lost_positions": follow_watch.lost_count}
    followed = followed if outsiders else {}
    return ScheduleResult(seed, world.trace_hash, {**asdict(model.counters), **erased, **fed, **pinned, **followed})


def _explain(seed: int, error: Exception, world: World) -> str:
    tail = "\n".join(_format_line(line) for line in world.trace)
    return f"seed {seed}, step {world.step_count}: {type(error).__name__}: {error}\n{world.settings}\n{tail}"


def _format_line(line: TraceLine) -> str:
    return f"  {line.time_ms % 100_000_000 / 1000:10.3f} {line.actor:12} {line.what:16} {line.key}"


def run_seeds(
    seeds: Iterable[int],
    *,
    seconds: float,
    keep_going: bool = False,
    erasers: int = 0,
    feeders: int = 0,
    pinners: int = 0,
    checkers: int = 0,
    lessees: int = 0,
    outsiders: int = 0,
) -> int:
    """Run schedules until the seeds or the time are used up; print failures and totals; return how many failed."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    totals: Counter[str] = Counter()
    count = failed = 0
    for seed in seeds:
        if clock.monotonic_ms() - started_ms > seconds * 1000:
            break
        count += 1
        try:
            result = run_schedule(
                seed,
                erasers=erasers,
                feeders=feeders,
                pinners=pinners,
                checkers=checkers,
                lessees=lessees,
                outsiders=outsiders,
            )
            totals.update(result.counters)
        except ScheduleFailed as error:
            failed += 1
            sys.stdout.write(f"{error}\n" if failed == 1 else f"{str(error).splitlines()[0]}\n")
            if not keep_going:
                break
    elapsed_s = (clock.monotonic_ms() - started_ms) / 1000
    sys.stdout.write(f"{count} schedules in {elapsed_s:.1f} s, {failed} failed; {dict(totals)}\n")
    return failed


def find_failure(
    mutation: Mutation,
    seeds: Iterable[int],
    *,
    with_invariants: bool = False,
    erasers: int = 0,
    feeders: int = 0,
    pinners: int = 0,
    lessees: int = 0,
    outsiders: int = 0,
) -> ScheduleFailed | None:
    """Run schedules with a rule switched off and return the first failure; ``None`` if nobody noticed."""
    with mutated(mutation, with_invariants=with_invariants):
        for seed in seeds:
            try:
                run_schedule(
                    seed, erasers=erasers, feeders=feeders, pinners=pinners, lessees=lessees, outsiders=outsiders
                )
            except ScheduleFailed as error:
                return error
    return None


def check_mutations(rules: Iterable[Mutation], seeds: Sequence[int]) -> int:
    """Switch rules off in turn and print what the simulation noticed; return how many results were unexpected."""
    unexpected = 0
    for mutation in rules:
        erasers, feeders = 2 * mutation.rule.startswith("E"), 2 * mutation.rule.startswith("V")
        pinners, lessees = 2 * (mutation in PIN_RULES), 2 * (mutation in LEASE_RULES)
        failure = find_failure(
            mutation,
            seeds,
            erasers=erasers,
            feeders=feeders,
            pinners=pinners,
            lessees=lessees,
            outsiders=2 * (mutation in OUTSIDER_RULES),
        )
        is_expected = (failure is None) == mutation.is_harmless
        unexpected += not is_expected
        seen = "not noticed" if failure is None else f"{str(failure).splitlines()[0][:150]}"
        mark = "ok " if is_expected else "BAD"
        sys.stdout.write(f"{mark} {mutation.rule:3} {mutation.name}: {seen}\n")
        sys.stdout.flush()
    return unexpected


def main(arguments: list[str] | None = None) -> int:
    """Run schedules, or the mutation check, from the command line; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m icedb_log.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0..1000000000", help="first..last seed, both included")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument(
        "--mutations",
        metavar="RULES",
        help="switch rules off in turn instead: 'all', or ids such as J1,R3; at most 3,000 schedules each",
    )
    parser.add_argument("--erasers", type=int, default=0, help="how many actors ask for erasures")
    parser.add_argument("--feeders", type=int, default=0, help="how many actors feed a view")
    parser.add_argument("--pinners", type=int, default=0, help="how many actors pin times")
    parser.add_argument("--lessees", type=int, default=0, help="how many actors take leases")
    parser.add_argument("--outsiders", type=int, default=0, help="how many actors append files; one follows the table")
    parser.add_argument("--checkers", type=int, default=0, help="how many actors check the table with fsck")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    if options.mutations:
        wanted = options.mutations.split(",")
        rules = (*RULES, *ERASE_RULES, *VIEW_RULES, *PIN_RULES, *LEASE_RULES, *OUTSIDER_RULES)
        chosen = [rule for rule in rules if options.mutations == "all" or rule.rule in wanted]
        return 1 if check_mutations(chosen, seeds[:MAX_MUTATED_SCHEDULES]) else 0
    failed = run_seeds(
        seeds,
        seconds=options.seconds,
        keep_going=options.keep_going,
        erasers=options.erasers,
        feeders=options.feeders,
        pinners=options.pinners,
        checkers=options.checkers,
        lessees=options.lessees,
        outsiders=options.outsiders,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
