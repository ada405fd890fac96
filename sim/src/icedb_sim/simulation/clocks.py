"""Clocks of hosts that jump and drift, in the simulation: everybody's, in the schedules in which this plays.

A host whose time is set by NTP jumps by seconds or minutes, forwards or backwards, in the middle of a run; one that
smears a leap second, or has a bad crystal, runs faster or slower than the store. Nothing may be deleted early for
either, no order of names may change (S1), and nothing may come to a standstill.
"""

from dataclasses import replace
from typing import Final

from icedb_sim.simulation.cast import Part, Troupe
from icedb_sim.simulation.settings import SECOND_MS, Settings

_STEPS_MS: Final = (0, 5 * SECOND_MS, 60 * SECOND_MS, 150 * SECOND_MS)
_DRIFT: Final = 0.005


class ClockTroupe(Troupe):
    """Nobody; but the clocks of all others go wrong. Any size is the same."""

    name = "clocks"

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Let clocks jump by so much, and half of the time drift, too."""
        return replace(
            settings, clock_step_ms=_STEPS_MS[seed % 4], clock_drift=_DRIFT * (seed // 4 % 2 or not seed % 4)
        )

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return nobody."""
        del count
        return ()
