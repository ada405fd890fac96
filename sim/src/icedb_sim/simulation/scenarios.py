"""Which scenarios there are, and which of them a seed draws.

A new one is a class in a module of its own, and one line here.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from typing import Final

from icedb_log.errors import InvalidRequest

from icedb_sim.simulation.checks import CheckScenario
from icedb_sim.simulation.embedded import EmbeddedScenario
from icedb_sim.simulation.erasures import ErasureScenario
from icedb_sim.simulation.grouping import GroupScenario
from icedb_sim.simulation.importing import ImportScenario
from icedb_sim.simulation.leases import LeaseScenario
from icedb_sim.simulation.outsiders import OutsiderScenario
from icedb_sim.simulation.poison import PoisonScenario, SizedPoisonScenario
from icedb_sim.simulation.profiles import PROFILES, ClockScenario, Profile, find_profiles
from icedb_sim.simulation.promotions import PromotionScenario
from icedb_sim.simulation.publications import PublicationScenario
from icedb_sim.simulation.retention import RetentionScenario
from icedb_sim.simulation.reuse import ReuseScenario
from icedb_sim.simulation.scenario import Mix, Scenario
from icedb_sim.simulation.serving import ServingScenario
from icedb_sim.simulation.sweeps import SweepScenario
from icedb_sim.simulation.tags import TagScenario
from icedb_sim.simulation.trash import TrashScenario
from icedb_sim.simulation.views import ViewScenario

_ACTING: Final[tuple[type[Scenario], ...]] = (
    CheckScenario,
    ClockScenario,
    EmbeddedScenario,
    ErasureScenario,
    GroupScenario,
    ImportScenario,
    LeaseScenario,
    OutsiderScenario,
    TagScenario,
    PoisonScenario,
    PromotionScenario,
    PublicationScenario,
    RetentionScenario,
    ReuseScenario,
    ServingScenario,
    SizedPoisonScenario,
    SweepScenario,
    TrashScenario,
    ViewScenario,
)

SCENARIOS: Final[dict[str, type[Scenario] | Profile]] = {
    **{scenario.name: scenario for scenario in _ACTING},
    **PROFILES,
}

_MORE: Final = (0, 0, 0, 1, 1, 2)
"""How many scenarios run: half of the schedules are plain."""

_PROFILE_COUNTS: Final = (0, 0, 0, 1)
"""A quarter of the schedules has a profile."""

_SIZES: Final = (1, 2)
_REUSE_RATE: Final = 0.1
"""In so many schedules somebody uses ids again for other content."""
_PUBLISH_RATE: Final = 0.1
"""In so many schedules the table is published."""
_POISON_RATE: Final = 0.15
"""In so many schedules batches crash who reads them, in a third of these of two sizes."""
_PROMOTE_RATE: Final = 0.2
"""In so many schedules paths are promoted; in none with writers who know nothing of that."""
_GROUP_RATE: Final = 0.2
"""In so many schedules front ends stage many batches as one object."""
_IMPORT_RATE: Final = 0.15
"""In so many of the schedules with nothing but a profile files are imported."""
_LATE: Final = {
    GroupScenario.name,
    ImportScenario.name,
    ReuseScenario.name,
    EmbeddedScenario.name,
    PublicationScenario.name,
    PoisonScenario.name,
    SizedPoisonScenario.name,
    PromotionScenario.name,
}
_EMBED_RATE: Final = 0.2
"""In so many schedules callers work in their own process, and everybody heeds claims (F6)."""


def draw_mix(seed: int) -> Mix:
    """Return the mix of a schedule for which nobody asked for another one. Does not move the other draws."""
    rng = random.Random(seed << 32 | zlib.crc32(b"cast"))
    others = SCENARIOS.keys() - PROFILES.keys() - _LATE
    names = rng.sample(sorted(others), rng.choice(_MORE))
    alone = [name for name in names if SCENARIOS[name].runs_alone][:1]
    names = alone or names
    profiles = [name for name in find_profiles(names) if PROFILES[name].wants or not alone]
    names += rng.sample(profiles, min(len(profiles), rng.choice(_PROFILE_COUNTS)))
    sizes = {name: rng.choice(_SIZES) for name in names}
    # Drawn by themselves, and last: they came late, and move no other draw.
    if not alone and random.Random(seed << 32 | zlib.crc32(b"reusers")).random() < _REUSE_RATE:
        sizes[ReuseScenario.name] = 1
    rng = random.Random(seed << 32 | zlib.crc32(b"embedders"))
    if not alone and rng.random() < _EMBED_RATE:
        if not sizes:
            sizes = dict.fromkeys(rng.sample(find_profiles([EmbeddedScenario.name]), rng.choice((0, 1))), 1)
        sizes[EmbeddedScenario.name] = rng.choice(_SIZES)
    rng = random.Random(seed << 32 | zlib.crc32(b"publishers"))
    if not alone and rng.random() < _PUBLISH_RATE:
        if not sizes:
            sizes = dict.fromkeys(rng.sample(find_profiles([PublicationScenario.name]), rng.choice((0, 1))), 1)
        sizes[PublicationScenario.name] = 1
    dice = random.Random(seed << 32 | zlib.crc32(b"poisoners")).random()
    if not alone and dice < _POISON_RATE:
        sizes[(PoisonScenario if dice < _POISON_RATE * 2 / 3 else SizedPoisonScenario).name] = 1
    if not alone and random.Random(seed << 32 | zlib.crc32(b"groupers")).random() < _GROUP_RATE:
        sizes[GroupScenario.name] = 1
    is_free = not alone and OutsiderScenario.name not in sizes
    rng = random.Random(seed << 32 | zlib.crc32(b"promoters"))
    if is_free and rng.random() < _PROMOTE_RATE:
        if not sizes:
            sizes = dict.fromkeys(rng.sample(find_profiles([PromotionScenario.name]), rng.choice((0, 1))), 1)
        sizes[PromotionScenario.name] = 1
    rng = random.Random(seed << 32 | zlib.crc32(b"importers"))
    is_free = sizes.keys() <= PROFILES.keys()  # the other scenarios know of no rows without a batch
    return Mix.of(
        sizes | ({ImportScenario.name: rng.choice(_SIZES)} if is_free and rng.random() < _IMPORT_RATE else {})
    )


def find_scenarios(mix: Mix) -> tuple[type[Scenario] | Profile, ...]:
    """Return the scenarios of a mix.

    Raises:
        InvalidRequest: There is none of a name.
    """
    for name, _ in mix.sizes:
        if name not in SCENARIOS:
            raise InvalidRequest(f"there is no scenario {name!r} in the simulation; there are {', '.join(SCENARIOS)}")
    return tuple(SCENARIOS[name] for name, _ in mix.sizes)
