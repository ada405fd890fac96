"""The rest of the janitor in the simulation: quarantine by age, beside retries, and an audit with faults of its own.

The audit of these janitors lies in the store, with all its faults: what was not announced may not go (J10). Hours pass
in their schedules, so that entries of quarantine get old while operators retry them (J11).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from icedb_log.clean.deletion import AuditLog, sweep_audit
from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.clean.orphans import OrphanPolicy, sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.ingest.quarantine import batch_id_of, is_reason
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.units import HOUR_MS

from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.facts import AuditWatch
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import MINUTE_MS, PATHS, START_MS, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation
from icedb_sim.tables.small_table import ANY_SHARE

SWEEPER: Final = "sweeper"
_JUMP_RATE: Final = 0.008
_STALL_RATE: Final = 0.02


class SweepScenario(Scenario):
    """Janitors that do all that there is to do. Size: so many of them, and one."""

    name = "sweepers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._inner: MemoryObjectStore | None = None
        self._audit_watch: AuditWatch | None = None
        self._since_ms: dict[str, int] = {}
        self._old_entries = 0
        self._audits = 0

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Let hours pass, somebody retry, what is in quarantine go after an hour, and no other janitor be there."""
        del seed
        change = {"quarantine_retention_ms": HOUR_MS, "audit_retention_ms": HOUR_MS}
        return replace(
            settings,
            config=settings.config.model_copy(update=change),
            jump_rate=_JUMP_RATE,
            jump_ms=40 * MINUTE_MS,
            faults=replace(settings.faults, stall=max(settings.faults.stall, _STALL_RATE)),
            janitors=0,
            operators=2,
        )

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the actors."""
        return (Part(SWEEPER, 1 + count, self._sweep_for_ever),)

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of what an audit announces, when it is there, and of when a batch was refused."""
        if key.startswith(PATHS.quarantine_prefix) and is_reason(key):
            self._since_ms.setdefault(batch_id_of(key), self.surroundings.store_now_ms())
        if key.startswith(PATHS.audit_prefix) and self._audit_watch is not None:
            self._audits += 1
            self._audit_watch.put(key, body)

    def on_delete(self, key: str) -> None:
        """Check that a batch in quarantine that nobody has retried goes by its age."""
        if self._inner is None or not key.startswith(PATHS.quarantine_prefix) or ".batch-" not in key:
            return
        model = self.surroundings.model
        batch = model.batches[batch_id_of(key)]
        if batch.retry_id:
            return  # the oracle looks whether it is staged
        since_ms = min(self._inner.head(key).modified_ms, self._since_ms.get(batch.batch_id, START_MS << 1))
        age_ms = self.surroundings.store_now_ms() - since_ms
        if age_ms < HOUR_MS:
            raise Violation(f"{key} goes after {age_ms} ms in quarantine (J11)")
        self._old_entries += 1

    def counters(self) -> dict[str, int]:
        """Return how many entries went by their age, and how many parts of audits were written."""
        return {"old_entries": self._old_entries, "audits": self._audits}

    def rest(self, sim: Simulation) -> None:
        """Go on sweeping: a batch that is staged waits for a drop that was cut off (I8)."""
        clock = SimClock(sim.world)
        _sweep(sim, clock, sim.make_reader(clock), sim.audit_watch.open())

    def _sweep_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        reader = sim.make_reader(clock)
        self._inner, self._audit_watch = sim.store.inner, sim.audit_watch
        audit = AuditLog(TableStore(sim.store, PATHS), clock=clock, owner=actor.name)

        def vacuum() -> object:
            return vacuum_table(sim.open(clock, reader=reader), audit=audit)

        forget = partial(sweep_audit, TableStore(sim.store, PATHS), retention_ms=HOUR_MS, clock=clock)
        runs: tuple[Callable[[], object], ...] = (vacuum, partial(_sweep, sim, clock, reader, audit), forget)
        while True:
            try:
                rng.choices(runs, weights=(2, 3, 1))[0]()
            except ORDINARY as error:
                sim.world.note(type(error).__name__, actor.kind)
            sim.world.sleep(int(rng.random() * 2 * sim.world.settings.think_ms))


def _sweep(sim: Simulation, clock: SimClock, reader: LogReader, audit: AuditLog) -> None:
    """Sweep orphans, and what that finds besides, as the service does."""
    policy = sim.world.rng.choice((OrphanPolicy(), ANY_SHARE))
    table = sim.open(clock, reader=reader)
    swept = sweep_orphans(table.renewed(), policy=policy, audit=audit)
    sweep_leftovers(table, swept.walk, audit=audit)
