"""What one simulated schedule is like: how many actors, which grace periods, how often what goes wrong.

Drawn from the seed, so that schedules differ in kind and not only in order: some are calm, some have one sort of
fault only, some have all of them.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
from dataclasses import dataclass

from icedb_log.keys import TablePaths
from icedb_log.table_config import TableConfig

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
START_MS = 1_700_000_000_000

REQUEST_LIFE_MS = 10 * MINUTE_MS
"""How long a request may be in flight after its sender gave up, or died."""

MAX_STALL_MS = 40 * MINUTE_MS
"""How long an actor may sleep in the middle of anything."""

SEAL_AGE_MS = 4 * 60 * MINUTE_MS
"""Longer than a stall and a request together: what rule F4 asks for."""

PATHS = TablePaths("events", "lake/events")


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often what happens, as probabilities of one store call.

    Attributes:
        crash: The actor dies, before the call, after it, or with the request in flight.
        stall: The actor sleeps for seconds to :data:`MAX_STALL_MS`, before or after the call.
        lost: A write's answer is lost: it landed, it did not, or it lands later.
        unavailable: The store does not answer, and did nothing.
        partial: A batch delete fails for some keys, or for all although some went.
    """

    crash: float = 0.0
    stall: float = 0.0
    lost: float = 0.0
    unavailable: float = 0.0
    partial: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One schedule. Times in milliseconds; counts are actors of each kind that run at once."""

    config: TableConfig
    faults: FaultRates
    flushers: int
    mergers: int
    janitors: int
    producers: int
    readers: int
    lease_holders: int
    steps: int
    jump_rate: float
    jump_ms: int
    think_ms: int
    skew_ms: int
    resolution_ms: int


_CONFIGS: dict[tuple[int, int, int], TableConfig] = {}


def draw_settings(rng: random.Random) -> Settings:
    """Draw a schedule's settings."""
    log_grace_ms = rng.choice((30, 60)) * SECOND_MS
    data_grace_ms = log_grace_ms * rng.choice((1, 1, 2, 3))
    orphan_age_ms = rng.choice((2, 4, 10)) * MINUTE_MS
    return Settings(
        config=_config(log_grace_ms, data_grace_ms, orphan_age_ms),
        faults=FaultRates(
            crash=_rate(rng, 0.01),
            stall=_rate(rng, 0.02),
            lost=_rate(rng, 0.08),
            unavailable=_rate(rng, 0.03),
            partial=_rate(rng, 0.3),
        ),
        flushers=rng.choice((1, 2, 2, 3)),
        mergers=rng.choice((1, 2, 2, 3)),
        janitors=rng.choice((1, 2, 2)),
        producers=rng.choice((1, 2)),
        readers=rng.choice((1, 2)),
        lease_holders=rng.choice((0, 1, 1)),
        steps=rng.choice((300, 600, 900)),
        jump_rate=rng.choice((0.01, 0.02, 0.04)),
        jump_ms=rng.choice((1, 2)) * log_grace_ms,
        think_ms=rng.choice((1, 4, 15)) * SECOND_MS,
        skew_ms=rng.choice((0, 0, 20, 180)) * SECOND_MS,
        resolution_ms=rng.choice((1, SECOND_MS)),
    )


def _rate(rng: random.Random, most: float) -> float:
    return rng.choice((0.0, most / 4, most))


def _config(log_grace_ms: int, data_grace_ms: int, orphan_age_ms: int) -> TableConfig:
    key = (log_grace_ms, data_grace_ms, orphan_age_ms)
    if key not in _CONFIGS:
        _CONFIGS[key] = TableConfig.create(
            name=PATHS.name,
            target_file_bytes=1024,
            merge_fan_in=2,
            log_grace_ms=log_grace_ms,
            data_grace_ms=data_grace_ms,
            orphan_age_ms=orphan_age_ms,
            seal_age_ms=SEAL_AGE_MS,
        )
    return _CONFIGS[key]
