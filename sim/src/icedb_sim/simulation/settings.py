"""What one simulated schedule is like: how many actors, which grace periods, how often what goes wrong.

Drawn from the seed, so that schedules differ in kind and not only in order: some are calm, some have one sort of
fault only, some have all of them.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
from dataclasses import dataclass

from icedb_log.clean.orphans import OrphanPolicy
from icedb_log.keys import TablePaths
from icedb_log.table.stored_config import decode_table_config, encode_table_config
from icedb_log.table.table_config import TableConfig

from icedb_sim.tables.small_table import ANY_SHARE

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
START_MS = 1_700_000_000_000

REQUEST_LIFE_MS = 10 * MINUTE_MS
"""How long a request may be in flight after its sender gave up, or died."""

MAX_STALL_MS = 40 * MINUTE_MS
"""How long an actor may sleep in the middle of anything."""

SEAL_AGE_MS = 4 * 60 * MINUTE_MS
"""Longer than a stall and a request together: what rule F4 asks for."""

MAX_CLOCK_STEPS = 2
"""How often a worker's clock jumps, at most."""

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
        stubborn: A key cannot be deleted at all, until the faults stop (this one: of a key, not of a call).
    """

    crash: float = 0.0
    stall: float = 0.0
    lost: float = 0.0
    unavailable: float = 0.0
    partial: float = 0.0
    stubborn: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One schedule. Times in milliseconds; counts are actors of each kind that run at once.

    Attributes:
        config: Grace periods and policies of the table.
        faults: How often what goes wrong.
        sleepy_kind: The only kind of actor that stalls, then more often; empty: all of them stall.
        flushers: Actors that flush.
        mergers: Actors that merge.
        janitors: Actors that vacuum and sweep.
        producers: Actors that enqueue.
        readers: Actors that read, now and in the past.
        lease_holders: Actors that lease a time.
        operators: Actors that change the table's policies.
        changers: Actors that delete rows, rewrite and remove partitions.
        steps: Store calls and sleeps, of all actors together.
        jump_rate: Probability that time jumps at a step.
        jump_ms: By how much at most.
        think_ms: How long an actor rests between two runs, at most.
        skew_ms: How far a worker's clock may be off.
        clock_step_ms: How far a worker's clock may jump, forwards or backwards, once or twice in its life.
        clock_drift: By which part a worker's clock may run faster or slower than the store's.
        resolution_ms: Of the store's clock: S3 tells whole seconds.
        burst: Probability that an actor goes on at the next step instead of giving way.
        page_keys: Keys in a page of a listing, whatever was asked for: more pages are not atomic (R1).
        patience_ms: How long runs wait for others who are at work (F6). Mostly not at all: then the most happens.
    """

    config: TableConfig
    faults: FaultRates
    sleepy_kind: str
    flushers: int
    mergers: int
    janitors: int
    producers: int
    readers: int
    lease_holders: int
    operators: int
    changers: int
    steps: int
    jump_rate: float
    jump_ms: int
    think_ms: int
    skew_ms: int
    resolution_ms: int
    burst: float
    page_keys: int
    clock_step_ms: int = 0
    clock_drift: float = 0.0
    patience_ms: int = 0

    @property
    def clock_error_ms(self) -> int:
        """How far a worker's clock may be off at most, with its jumps and its drift over some hours."""
        return self.skew_ms + MAX_CLOCK_STEPS * self.clock_step_ms + int(self.clock_drift * 4 * 60 * MINUTE_MS)


def draw_orphan_policy(seed: int) -> OrphanPolicy:
    """Return how a schedule's janitors sweep: some of them look at the share. Does not move the other draws."""
    return OrphanPolicy() if seed % 4 == 0 else ANY_SHARE


_CONFIGS: dict[tuple[int, int, int, int], TableConfig] = {}


def draw_settings(rng: random.Random) -> Settings:
    """Draw a schedule's settings."""
    log_grace_ms = rng.choice((30, 60)) * SECOND_MS
    data_grace_ms = log_grace_ms * rng.choice((1, 1, 2, 3))
    orphan_age_ms = rng.choice((1, 2, 5)) * MINUTE_MS
    return Settings(
        config=_config(log_grace_ms, data_grace_ms, orphan_age_ms, rng.choice((1, 1000))),
        faults=FaultRates(
            crash=_rate(rng, 0.01),
            stall=_rate(rng, 0.03),
            lost=_rate(rng, 0.08),
            unavailable=_rate(rng, 0.03),
            partial=_rate(rng, 0.3),
            stubborn=rng.choice((0.0, 0.0, 0.1, 0.4)),
        ),
        sleepy_kind=rng.choice(("", "", "", "flusher", "merger", "janitor", "reader", "changer")),
        flushers=rng.choice((1, 2, 2, 3)),
        mergers=rng.choice((1, 2, 2, 3)),
        janitors=rng.choice((1, 2, 2)),
        producers=rng.choice((1, 1, 2)),
        readers=rng.choice((0, 1, 1)),
        lease_holders=rng.choice((0, 0, 1)),
        operators=rng.choice((0, 1)),
        changers=rng.choice((0, 0, 1, 1, 2)),
        steps=rng.choice((200, 400, 1200)),
        jump_rate=rng.choice((0.0075, 0.015, 0.045)),
        jump_ms=rng.choice((1, 3)) * log_grace_ms,
        think_ms=rng.choice((1, 4, 15)) * SECOND_MS,
        skew_ms=rng.choice((0, 0, 20, 180)) * SECOND_MS,
        resolution_ms=rng.choice((1, SECOND_MS)),
        burst=rng.choice((0.0, 0.6, 0.9)),
        page_keys=rng.choice((2, 1000, 1000)),
    )


def _rate(rng: random.Random, most: float) -> float:
    return rng.choice((0.0, most / 4, most))


def _config(log_grace_ms: int, data_grace_ms: int, orphan_age_ms: int, max_partitions: int) -> TableConfig:
    key = (log_grace_ms, data_grace_ms, orphan_age_ms, max_partitions)
    if key not in _CONFIGS:
        config = TableConfig.create(
            name=PATHS.name,
            target_file_bytes=1024,
            merge_fan_in=2,
            evolution="widen",
            on_bad_rows="quarantine_rows",
            max_partitions_per_flush=max_partitions,
            log_grace_ms=log_grace_ms,
            data_grace_ms=data_grace_ms,
            orphan_age_ms=orphan_age_ms,
            seal_age_ms=SEAL_AGE_MS,
        )
        # As readers will have it: they need not compare two that are one.
        _CONFIGS[key] = decode_table_config(PATHS, encode_table_config(config))
    return _CONFIGS[key]
