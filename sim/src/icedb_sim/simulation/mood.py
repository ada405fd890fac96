"""What a mood is: a troupe of nobody that makes a schedule calm, but for what it is about.

Which ones there are: :mod:`icedb_sim.simulation.moods`.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from icedb_sim.simulation.actors import Simulation
from icedb_sim.simulation.cast import Troupe
from icedb_sim.simulation.naps import Nap, put_to_bed
from icedb_sim.simulation.settings import MINUTE_MS, FaultRates, Settings

_STALLS: Final = (0.02, 0.05)
_JUMP_RATES: Final = (0.01, 0.03)


class Mood(Troupe):
    """Nobody, but a calm schedule with short grace periods, and what a subclass has of its own. Any size is the same.

    Where there are several values a schedule draws one.
    """

    wants: ClassVar[str] = ""
    """Troupe without which this makes no sense; with it no other mood does as well."""

    sleeps: ClassVar[str] = ""
    """Kind of actor that stalls, at any call."""

    has: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of the settings."""

    faults: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    """Rates of faults."""

    graces: ClassVar[tuple[int, ...]] = (1,)
    """How much longer data files stay than log files."""

    naps: ClassVar[tuple[Nap, ...]] = ()
    """Who sleeps where."""

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Return the settings without any fault but those of this mood."""
        rng = random.Random(seed << 32 | zlib.crc32(cls.name.encode()))
        data_grace_ms = settings.config.log_grace_ms * rng.choice(cls.graces)
        periods = {"data_grace_ms": data_grace_ms, "orphan_age_ms": MINUTE_MS}
        rates = _draw(rng, cls.faults)
        if cls.sleeps:
            rates["stall"] = rng.choice(_STALLS)
        calm = {"skew_ms": 0, "page_keys": 1000, "jump_rate": rng.choice(_JUMP_RATES)}
        return replace(
            settings,
            config=settings.config.model_copy(update=periods),
            faults=FaultRates(**rates),
            sleepy_kind=cls.sleeps,
            **(calm | _draw(rng, cls.has)),
        )

    def arrange(self, sim: Simulation) -> None:
        """Let them sleep."""
        put_to_bed(sim, self.naps)


def _draw(rng: random.Random, values: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: rng.choice(values[name]) for name in sorted(values)}
