"""Retention in the simulation: who writes into hours that are over, who lets them go, and whether only those go.

The table is laid out by hours. Some of them are over when the schedule begins, one ends its time in the middle of it;
rows of all of them keep coming. Rows that are in no hour (``p=a``) must never go by age.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Final
from uuid import UUID

import orjson
from icedb_log.changes.retention import MAX_CLOCK_DIFFERENCE_MS, MAX_SHARE, retain_table
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.codec import decode_log_file
from icedb_log.log.reader import LogReader
from icedb_log.model import FileMarker
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import decode_table_config
from icedb_log.table.table_config import PartitionField
from icedb_log.units import HOUR_MS

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.changes import Intent, IntentClock
from icedb_sim.simulation.data import ROW_BITS, encode_batch
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import MINUTE_MS, PATHS, START_MS, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation

DATED: Final = "dated"
RETAINER: Final = "retainer"

_FIRST_HOUR_MS: Final = START_MS // HOUR_MS * HOUR_MS
_MIXES: Final = ((-3, -2, -2, 0, 2), (-3, -2), (-3, -3, -2, 0))
"""Where rows come, by hours from the one in which the schedule begins: of one that is over for long to the future."""
_MAX_ROWS: Final = 4
_FORCE_RATE: Final = 0.2
_OFF_RATE: Final = 0.1
_OFF_MS: Final = 2 * HOUR_MS


@dataclass(frozen=True, slots=True)
class RetentionIntent(Intent):
    """What a retention run is going to ask for.

    Attributes:
        is_forced: Whether a person allows more than half of the table.
        is_off: Whether its host's clock is wrong by hours: nothing may go.
        is_at_rest: Whether the schedule is over.
    """

    is_forced: bool = False
    is_off: bool = False
    is_at_rest: bool = False


class RetentionScenario(Scenario):
    """Producers of old rows, and those who let hours go. Size: so many of the latter, and two producers."""

    name = "retainers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._files: dict[str, FileMarker] = {}
        self._policies = [surroundings.settings.config.retention_ms]
        self._epoch = 0
        self._expired_count = 0

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Lay the table out by hours; one of them ends its time a few minutes after the beginning."""
        # The hour before the one that ended last goes when so much of this one is over.
        lead_ms = START_MS - _FIRST_HOUR_MS + (seed % 7) * MINUTE_MS
        field = PartitionField(name="p", transform="hour", column="t")
        change = {"partition": (field,), "declared": {"t": "TIMESTAMP"}, "retention_ms": HOUR_MS + lead_ms}
        config = settings.config.model_copy(update=change)
        return replace(settings, config=config, producers=1)

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the actors."""
        return (Part(DATED, 2, _produce_for_ever), Part(RETAINER, count, self._retain_for_ever))

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of a change of the policy, of who has the fence, and check what a retention run takes away."""
        if key == PATHS.config_key:
            self._policies.append(decode_table_config(PATHS, body).retention_ms)
        elif key == PATHS.fence_key("merge"):
            epoch = orjson.loads(body)["epoch"]
            if epoch != self._epoch:
                # F2: what its new owner decides by is read after this; earlier policies are none of its business.
                self._epoch, self._policies = epoch, self._policies[-1:]
        elif key.startswith(PATHS.log_prefix):
            log = decode_log_file(key, body)
            intent = self.surroundings.model.removed.intents.get(log.commit_id or "")
            if isinstance(intent, RetentionIntent):
                gone = [marker.path for marker in log.markers if marker.tombstoned_ms is not None]
                self._check_run(key, intent, set(gone) & self.surroundings.model.live_truth())
            self._files.update({marker.path: marker for marker in log.markers if marker.tombstoned_ms is None})

    def rest(self, sim: Simulation) -> None:
        """Let go what is over, with a person's word."""
        clock = IntentClock(
            sim.world, 0, intent=replace(_intent(is_forced=True), is_at_rest=True), intents=sim.model.removed.intents
        )
        retain_table(sim.open(clock, owner="rest"), force=True)

    def check(self, sim: Simulation) -> None:
        """Check that nothing is left whose time has come."""
        now_ms = self.surroundings.store_now_ms()
        for path in sorted(self.surroundings.model.live_truth()):
            end_ms = parse_hour_end_ms(PATHS.partition_of(path))
            if end_ms is not None and end_ms + (self._policies[-1] or 0) < now_ms - HOUR_MS:
                raise Violation(f"at rest {path} is live, though its time ended at {end_ms} (M5)")
        del sim

    def counters(self) -> dict[str, int]:
        """Return how many data files have gone by age."""
        return {"expired_files": self._expired_count}

    def _check_run(self, key: str, intent: RetentionIntent, gone: Collection[str]) -> None:
        """Check what a retention run has taken away.

        Raises:
            Violation: Something of it was too young, came too late, or was too much to go unasked.
        """
        self._expired_count += len(gone) * (not intent.is_at_rest)
        if gone and intent.is_off:
            raise Violation(f"{key}: by a host whose clock is wrong by hours {min(gone)} has gone (M5)")
        now_ms = self.surroundings.store_now_ms()
        # By any policy that counted since the fence was taken.
        retention_ms = min(policy or 0 for policy in self._policies)
        grace_ms = self.surroundings.settings.config.data_grace_ms
        ends: set[int] = set()
        for path in sorted(gone):
            end_ms = parse_hour_end_ms(PATHS.partition_of(path))
            if end_ms is None or end_ms + retention_ms >= now_ms:
                raise Violation(f"{key}: {path} has gone, whose time had not come at {now_ms} (M5)")
            ends.add(end_ms)
            created_ms = self._files[path].created_ms
            settled_ms = created_ms + min(grace_ms, retention_ms)
            if now_ms < settled_ms and created_ms <= now_ms + MAX_CLOCK_DIFFERENCE_MS:
                raise Violation(f"{key}: {path} has gone, which was made {now_ms - created_ms} ms ago (M5)")
        size_bytes = sum(self._files[path].size_bytes for path in gone)
        total_bytes = sum(self._files[path].size_bytes for path in self.surroundings.model.live_truth())
        if len(ends) > 1 and size_bytes > MAX_SHARE * total_bytes and not intent.is_forced:
            raise Violation(f"{key}: {size_bytes} of {total_bytes} bytes have gone, and nobody allowed it (M5)")

    def _retain_for_ever(self, sim: Simulation, actor: Actor) -> None:
        reader = sim.make_reader(SimClock(sim.world, actor.skew_ms))
        while True:
            try:
                self._retain(sim, actor, reader)
            except InvalidRequest:
                sim.world.note("refused", actor.kind)  # a person's word is missing, or it took too long (W3)
            except ORDINARY as error:
                sim.world.note(type(error).__name__, actor.kind)
            sim.world.sleep(int(sim.world.rng.random() * 4 * sim.world.settings.think_ms))

    def _retain(self, sim: Simulation, actor: Actor, reader: LogReader) -> None:
        rng, config = sim.world.rng, sim.world.settings.config
        if rng.random() < 0.2:
            changed_ms = (config.retention_ms or 0) + rng.choice((0, 0, -10, 20)) * MINUTE_MS
            clock = SimClock(sim.world, actor.skew_ms)
            alter_table_config(TableStore(sim.store, PATHS), {"retention_ms": max(changed_ms, HOUR_MS)}, clock=clock)
            return
        is_off = rng.random() < _OFF_RATE
        intent = _intent(is_forced=rng.random() < _FORCE_RATE, is_off=is_off)
        skew_ms = actor.skew_ms + rng.choice((-_OFF_MS, _OFF_MS)) * is_off
        clock = IntentClock(sim.world, skew_ms, intent=intent, intents=sim.model.removed.intents)
        table = sim.open(clock, owner=actor.name, reader=reader)
        retain_table(table, force=intent.is_forced, dry_run=rng.random() < 0.1)


@cache
def parse_hour_end_ms(partition: str) -> int | None:
    """Return when the hour of a partition ends; ``None`` if it is none."""
    try:
        start = datetime.strptime(partition, "p=%Y-%m-%d-%H").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) * 1000 + HOUR_MS


def hour_partition(time_ms: int) -> str:
    """Return the partition of the rows of a time."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("p=%Y-%m-%d-%H")


def _intent(*, is_forced: bool, is_off: bool = False) -> RetentionIntent:
    return RetentionIntent(
        "let hours go whose time has come",
        lambda where, _: parse_hour_end_ms(where) is not None,
        frozenset(),  # what came lately may stay: nobody asks for certain rows to go
        is_forced=is_forced,
        is_off=is_off,
    )


def _produce_for_ever(sim: Simulation, actor: Actor) -> None:
    """Enqueue batches with rows of many hours, most of them old."""
    clock, rng = SimClock(sim.world), sim.world.rng
    hours = _MIXES[sim.world.seed % len(_MIXES)]
    while True:
        batch = _new_batch(sim, clock, hours)
        try:
            stage_batch(TableStore(sim.store, PATHS), body=batch.body, staging_format="ndjson", batch_id=batch.batch_id)
            batch.is_acknowledged = True
        except (*ORDINARY, NotFound) as error:
            sim.world.note(type(error).__name__, actor.kind)
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))


def _new_batch(sim: Simulation, clock: SimClock, hours: Sequence[int]) -> SimBatch:
    rng = sim.world.rng
    number = sim.batch_count
    sim.batch_count += 1
    rows = [(number << ROW_BITS) + n for n in range(rng.randint(1, _MAX_ROWS))]
    parts: dict[str, list[int]] = {}
    for row in rows:
        hour_ms = _FIRST_HOUR_MS + rng.choice(hours) * HOUR_MS
        parts.setdefault("p=a" if rng.random() < 0.2 else hour_partition(hour_ms), []).append(row)
    body = encode_batch(parts, column=f"c{number % 12}", sql_type="BIGINT", bad_count=0)
    batch = SimBatch(str(UUID(hex=clock.new_id())), body, frozenset(rows))
    sim.model.batches[batch.batch_id] = batch
    return batch
