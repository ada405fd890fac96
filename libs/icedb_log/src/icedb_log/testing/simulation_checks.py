"""Actors that check the table with ``icedb fsck`` while others work, stall and crash: never a false error."""

from typing import Final

from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.testing.simulation_actors import ORDINARY, Simulation
from icedb_log.testing.simulation_cast import Part, Troupe
from icedb_log.testing.simulation_settings import PATHS
from icedb_log.testing.simulation_world import Actor, SimClock, Violation

CHECKER: Final = "checker"

_OF_THE_MODEL: Final = frozenset({"size-mismatch", "config-mismatch"})
"""Data files of the simulation lie in partitions that its configuration does not name, and have other sizes."""


class CheckTroupe(Troupe):
    """So many actors check the table with ``icedb fsck``."""

    name = "checkers"

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the checkers."""
        return (Part(CHECKER, count, check_for_ever),)


def check_for_ever(sim: Simulation, actor: Actor) -> None:
    """Check, again and again.

    Raises:
        Violation: An error is reported, and nothing is wrong: the model would have said so.
    """
    clock, rng = SimClock(sim.world), sim.world.rng
    while True:
        options = FsckOptions(fetch_threads=1, page_size=rng.choice((2, 1000)))
        try:
            report = fsck_table(sim.store, PATHS, clock=clock, options=options)
        except ORDINARY as error:
            sim.world.note(type(error).__name__, actor.kind)
        else:
            errors = [f for f in report.findings if f.severity == "error" and f.code not in _OF_THE_MODEL]
            if errors:
                raise Violation(f"fsck reports {errors[0].code} of {errors[0].key}: {errors[0].message}")
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))
