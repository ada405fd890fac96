"""Actors that check the table with ``icedb fsck`` while others work, stall and crash: never a false error.

When the others are done they delete log files, as people and lifecycle rules do: fsck and the next vacuum have to say
which ones. Then they bring them back, as from the versions of a bucket.
"""

from typing import Final

from icedb_log.clean.vacuum import vacuum_table
from icedb_log.commit.fence import read_landed
from icedb_log.keys import log_name, parse_log_key
from icedb_log.log.fold import read_horizon_ms
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, SimClock, Violation

CHECKER: Final = "checker"
_MAX_LOST: Final = 2

_OF_THE_MODEL: Final = frozenset({"size-mismatch", "config-mismatch"})
"""Data files of the simulation lie in partitions that its configuration does not name, and have other sizes."""


class CheckScenario(Scenario):
    """So many actors check the table with ``icedb fsck``, and lose log files when the others are done."""

    name = "checkers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._lost_count = 0

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the checkers."""
        return (Part(CHECKER, count, check_for_ever),)

    def calm(self, sim: Simulation) -> None:
        """Delete log files of commits that landed, see that nothing else gets lost by it, and bring them back."""
        self._lost_count += lose_log_files(sim)

    def counters(self) -> dict[str, int]:
        """Return how many log files were deleted."""
        return {"lost_log_files": self._lost_count}


def check_for_ever(sim: Simulation, actor: Actor) -> None:
    """Check, again and again.

    Raises:
        Violation: An error is reported, and nothing is wrong: the model would have said so.
    """
    clock, rng = SimClock(sim.world), sim.world.rng
    while True:
        options = FsckOptions(fetch_threads=1, page_size=rng.choice((2, 1000)))
        try:
            report = fsck_table(TableStore(sim.store, PATHS), clock=clock, options=options)
        except ORDINARY as error:
            sim.world.note(type(error).__name__, actor.kind)
        else:
            errors = [f for f in report.findings if f.severity == "error" and f.code not in _OF_THE_MODEL]
            if errors:
                raise Violation(f"fsck reports {errors[0].code} of {errors[0].key}: {errors[0].message}")
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))


def lose_log_files(sim: Simulation) -> int:
    """Delete some log files behind everybody's back, let a janitor look, and put them there again.

    Raises:
        Violation: A loss is not found, or it counts as lost when it is back.
    """
    inner, clock = sim.store.inner, SimClock(sim.world)
    bodies = {key: inner.get(key).body for key in _choose(sim, clock)}
    if not bodies:
        return 0
    inner.delete(list(bodies))
    reader = sim.make_reader(clock)
    _require_found(sim, clock, bodies)
    found = set(vacuum_table(sim.open(clock, reader=reader), audit=sim.audit_watch.open()).lost)
    if found != {log_name(key) for key in bodies}:
        raise Violation(f"a vacuum calls {sorted(found)} lost, and {sorted(bodies)} are (F5)")
    for key, body in bodies.items():
        inner.put(key, body)
    _require_found(sim, clock, {})
    return len(bodies)


def _choose(sim: Simulation, clock: SimClock) -> list[str]:
    """Choose log files that nothing but a fence's history speaks of, but not the last that there is."""
    landed = set(read_landed(TableStore(sim.store, PATHS)))
    view = sim.make_reader(clock).read()
    horizon_ms = read_horizon_ms(view)
    dead = {tombstone.path for file in view.files for tombstone in file.log.log_tombstones}
    known = [
        file.key
        for file in view.files
        if log_name(file.key) in landed and file.key not in dead and parse_log_key(file.key).time_ms > horizon_ms
    ]
    rest = sum(not file.log.is_seal for file in view.files) - 1
    return sim.world.rng.sample(known, min(len(known), rest, _MAX_LOST)) if rest > 0 else []


def _require_found(sim: Simulation, clock: SimClock, bodies: dict[str, bytes]) -> None:
    report = fsck_table(TableStore(sim.store, PATHS), clock=clock, options=FsckOptions(fetch_threads=1))
    found = {each.key for each in report.findings if each.code == "commit-lost"}
    if found != bodies.keys():
        raise Violation(f"fsck calls {sorted(found)} lost, and {sorted(bodies)} are (F5)")
