"""Moods: what a whole schedule is like, so that one sort of fault meets little else. Nobody comes with them.

A rule about who wakes up too late is seen when somebody sleeps at the right call and everybody else works on; crashes
and refusals only get in the way. So in a mood one thing goes wrong, and often. A rule switched off names the mood in
which it is missed (:class:`~icedb_log.testing.simulation_mutations.Mutation`), and a quarter of all schedules has one.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar, Final

from icedb_log.testing.simulation_cast import Part, Troupe
from icedb_log.testing.simulation_settings import MINUTE_MS, SECOND_MS, FaultRates, Settings

_STALLS: Final = (0.02, 0.05)
_JUMP_RATES: Final = (0.01, 0.03)
_SKEW_MS: Final = 180 * SECOND_MS


class Mood(Troupe):
    """Nobody, but a calm schedule with short grace periods. Any size is the same."""

    wants: ClassVar[str] = ""
    """Troupe without which this makes no sense; with it no other mood does as well."""

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Return the settings without any fault, and then as :meth:`colour` has them."""
        rng = random.Random(seed << 32 | zlib.crc32(cls.name.encode()))
        periods = {"data_grace_ms": settings.config.log_grace_ms, "orphan_age_ms": MINUTE_MS}
        calm = replace(
            settings,
            config=settings.config.model_copy(update=periods),
            faults=FaultRates(),
            sleepy_kind="",
            skew_ms=0,
            page_keys=1000,
            jump_rate=rng.choice(_JUMP_RATES),
        )
        return cls.colour(calm, rng)

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Return calm settings with what this mood is about."""
        raise NotImplementedError

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return nobody."""
        del count
        return ()


class _Sleepy(Mood):
    """Actors of one kind sleep, those of the others clean up behind them."""

    kind: ClassVar[str]

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let one kind sleep, and delete much."""
        return replace(calm, sleepy_kind=cls.kind, faults=FaultRates(stall=rng.choice(_STALLS)), janitors=2)


class SleepyFlushers(_Sleepy):
    """Flushes sleep."""

    name = "sleepyflushers"
    kind = "flusher"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let many flush, and policies change; or one, whom nobody fences off."""
        return replace(super().colour(calm, rng), flushers=rng.choice((1, 3)), operators=1, producers=2)


class SleepyMergers(_Sleepy):
    """Merges sleep."""

    name = "sleepymergers"
    kind = "merger"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let many merge; or one, whom nobody fences off."""
        mergers = rng.choice((1, 3))
        return replace(super().colour(calm, rng), mergers=mergers, changers=mergers // 3)


class SleepyJanitors(_Sleepy):
    """Janitors sleep, and somebody relies on them."""

    name = "sleepyjanitors"
    kind = "janitor"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let many clean, and leases be held."""
        return replace(super().colour(calm, rng), janitors=3, lease_holders=2, producers=2)


class SleepyReaders(_Sleepy):
    """Readers sleep in the middle of a read."""

    name = "sleepyreaders"
    kind = "reader"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let several read."""
        return replace(super().colour(calm, rng), readers=2)


class SleepyChangers(_Sleepy):
    """Those who delete rows sleep."""

    name = "sleepychangers"
    kind = "changer"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let several delete, while others merge."""
        return replace(super().colour(calm, rng), changers=2)


class SleepyOutsiders(_Sleepy):
    """Jobs that append files sleep, and nobody else takes the fence from them."""

    name = "sleepyoutsiders"
    kind = "appender"
    wants = "outsiders"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let nobody flush; let jobs die with their requests under way."""
        sleepy = super().colour(calm, rng)
        faults = replace(sleepy.faults, crash=rng.choice((0.0, 0.03)), lost=rng.choice((0.0, 0.05)))
        return replace(sleepy, faults=faults, flushers=0, producers=0)


class SleepyErasers(_Sleepy):
    """Erasures sleep."""

    name = "sleepyerasers"
    kind = "eraser"
    wants = "erasers"


class Pages(Mood):
    """Listings come in pages of two keys, and many read and write meanwhile (R1)."""

    name = "pages"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let pages be small, and nobody rest."""
        del rng
        return replace(calm, page_keys=2, readers=2, producers=2, think_ms=SECOND_MS)


class Skews(Mood):
    """Clocks are wrong by minutes, merges sleep, and leases are held: tombstones lie about their age (J1, J4)."""

    name = "skews"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let clocks be wrong."""
        faults = FaultRates(stall=rng.choice(_STALLS))
        return replace(calm, skew_ms=_SKEW_MS, faults=faults, sleepy_kind="merger", lease_holders=2, producers=2)


class Losses(Mood):
    """Processes die, answers get lost, deletes fail; nobody sleeps (W2, J2)."""

    name = "losses"

    @classmethod
    def colour(cls, calm: Settings, rng: random.Random) -> Settings:
        """Let requests fail."""
        stubborn = rng.choice((0.0, 0.2))
        return replace(
            calm, faults=FaultRates(crash=0.02, lost=0.1, unavailable=0.03, partial=0.3, stubborn=stubborn), janitors=2
        )


MOODS: Final[dict[str, type[Mood]]] = {
    mood.name: mood
    for mood in (
        SleepyFlushers,
        SleepyMergers,
        SleepyJanitors,
        SleepyReaders,
        SleepyChangers,
        SleepyOutsiders,
        SleepyErasers,
        Pages,
        Skews,
        Losses,
    )
}
"""By name, as casts have them."""


def find_moods(names: Collection[str]) -> list[str]:
    """Return the moods that suit some troupes, by name."""
    own = [name for name, mood in MOODS.items() if mood.wants in names]
    return own or [name for name, mood in MOODS.items() if not mood.wants]
