"""Which troupes there are, and which of them a seed lets play.

A new one is a class in a module of its own, and one line here.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from typing import Final

from icedb_log.errors import InvalidRequest

from icedb_sim.simulation.cast import Cast, Troupe
from icedb_sim.simulation.checks import CheckTroupe
from icedb_sim.simulation.erasures import ErasureTroupe
from icedb_sim.simulation.leases import LeaseTroupe
from icedb_sim.simulation.outsiders import OutsiderTroupe
from icedb_sim.simulation.pins import PinTroupe
from icedb_sim.simulation.profiles import PROFILES, ClockTroupe, Profile, find_profiles
from icedb_sim.simulation.retention import RetentionTroupe
from icedb_sim.simulation.reuse import ReuseTroupe
from icedb_sim.simulation.serving import ServingTroupe
from icedb_sim.simulation.sweeps import SweepTroupe
from icedb_sim.simulation.trash import TrashTroupe
from icedb_sim.simulation.views import ViewTroupe

_ACTING: Final[tuple[type[Troupe], ...]] = (
    CheckTroupe,
    ClockTroupe,
    ErasureTroupe,
    LeaseTroupe,
    OutsiderTroupe,
    PinTroupe,
    RetentionTroupe,
    ReuseTroupe,
    ServingTroupe,
    SweepTroupe,
    TrashTroupe,
    ViewTroupe,
)

TROUPES: Final[dict[str, type[Troupe] | Profile]] = {**{troupe.name: troupe for troupe in _ACTING}, **PROFILES}

_MORE: Final = (0, 0, 0, 1, 1, 2)
"""How many troupes play: half of the schedules are plain."""

_PROFILE_COUNTS: Final = (0, 0, 0, 1)
"""A quarter of the schedules has a profile."""

_SIZES: Final = (1, 2)
_REUSE_RATE: Final = 0.1
"""In so many schedules somebody uses ids again for other content."""


def draw_cast(seed: int) -> Cast:
    """Return the cast of a schedule for which nobody asked for another one. Does not move the other draws."""
    rng = random.Random(seed << 32 | zlib.crc32(b"cast"))
    others = TROUPES.keys() - PROFILES.keys() - {ReuseTroupe.name}
    names = rng.sample(sorted(others), rng.choice(_MORE))
    alone = [name for name in names if TROUPES[name].plays_alone][:1]
    names = alone or names
    profiles = [name for name in find_profiles(names) if PROFILES[name].wants or not alone]
    names += rng.sample(profiles, min(len(profiles), rng.choice(_PROFILE_COUNTS)))
    sizes = {name: rng.choice(_SIZES) for name in names}
    # Drawn by themselves, and last: they came late, and move no other draw.
    if not alone and random.Random(seed << 32 | zlib.crc32(b"reusers")).random() < _REUSE_RATE:
        sizes[ReuseTroupe.name] = 1
    return Cast.of(sizes)


def find_troupes(cast: Cast) -> tuple[type[Troupe] | Profile, ...]:
    """Return the troupes of a cast.

    Raises:
        InvalidRequest: There is none of a name.
    """
    for name, _ in cast.sizes:
        if name not in TROUPES:
            raise InvalidRequest(f"there is no troupe {name!r} in the simulation; there are {', '.join(TROUPES)}")
    return tuple(TROUPES[name] for name, _ in cast.sizes)
