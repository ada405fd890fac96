"""Callers in the simulation that work on the table in their own process, beside workers, and heed each other (F6).

They are the scenario ``embedders``: they append (stage, and flush until it is committed) and merge. Everybody heeds
claims then, those who always play, too. Now and then one leaves a claim behind that says an hour. Where nothing else
goes wrong (profile ``fairappends``) nobody may wait for a fence for long.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from icedb_log.commit.fence import CLAIM_MS, acquire_fence
from icedb_log.commit.table import Acquired
from icedb_log.errors import CommitConflict, Fenced
from icedb_log.ingest.flush import flush_table
from icedb_log.keys import ROLES
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table

from icedb_sim.simulation.actors import Simulation, enqueue, make_batch, try_run
from icedb_sim.simulation.data import SimBatchWriter, SimGroupMerger
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS, SECOND_MS, FaultRates, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation

EMBEDDER: Final = "embedder"
_PATIENCE_MS: Final = (3 * SECOND_MS, 3 * SECOND_MS, 30 * SECOND_MS)
_FORGED_MS: Final = 3600 * SECOND_MS
_TRIES: Final = 12


class EmbeddedScenario(Scenario):
    """So many callers append and merge by themselves, one more for each size.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "embedders"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._counts = {"appends": 0, "takeovers": 0, "waits": 0}

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Let everybody heed claims."""
        return replace(settings, patience_ms=_PATIENCE_MS[seed % len(_PATIENCE_MS)])

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the callers."""
        return (Part(EMBEDDER, count + 1, self._work_for_ever),)

    def arrange(self, sim: Simulation) -> None:
        """Look at each fence that is acquired."""
        sim.on_fence = self._note
        self._numbers = sim

    def calm(self, sim: Simulation) -> None:
        """Check that nobody has waited for long for a fence, where nothing but that can keep him."""
        world = sim.world
        if world.settings.faults != FaultRates() or world.settings.jump_rate:
            return
        limit_ms = 2 * (world.settings.patience_ms + CLAIM_MS)
        for name, begun_ms in sim.begun_ms.items():
            if world.now_ms - begun_ms > limit_ms:
                raise Violation(f"{name} has waited for a fence for {world.now_ms - begun_ms} ms: it starves (F6)")

    def counters(self) -> dict[str, int]:
        """Return how many appends ended, how many fences were taken from others, and how often somebody waited."""
        return self._counts

    def _note(self, acquired: Acquired) -> None:
        self._counts["takeovers"] += acquired.previous_holder != "free"
        self._counts["waits"] += acquired.waited_ms > 0

    def _work_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        reader = sim.make_reader(clock)
        while True:
            dice = rng.random()
            if dice < 0.1:
                try_run(sim, actor, partial(_leave_claim, sim, actor, clock))
            elif dice < 0.3:
                table = partial(sim.open, clock, owner=actor.name, reader=reader)
                try_run(sim, actor, lambda: merge_table(table(), SimGroupMerger(sim.store, clock)))  # noqa: B023
            else:
                try_run(sim, actor, partial(self._append, sim, actor, clock, reader))

    def _append(self, sim: Simulation, actor: Actor, clock: SimClock, reader: LogReader) -> None:
        """Stage a batch, and flush until it is decided."""
        batch = make_batch(self._numbers, clock)  # of all who share the numbers, however an actor sees the store
        enqueue(sim, batch)
        key = PATHS.staging_key(batch_id=batch.batch_id, staging_format="ndjson")
        for _ in range(_TRIES):
            try:
                flush_table(sim.open(clock, owner=actor.name, reader=reader), SimBatchWriter(sim.store, clock))
            except (Fenced, CommitConflict):
                continue  # certainly refused
            if not sim.store.inner.holds(key):
                if batch.batch_id not in sim.model.committed and not batch.is_quarantined:
                    raise Violation(f"an append of batch {batch.batch_id} has ended, and it is not committed (I2)")
                self._counts["appends"] += 1
                return


def _leave_claim(sim: Simulation, actor: Actor, clock: SimClock) -> None:
    """Take a fence, say that it is claimed for an hour, and forget about it."""
    role = sim.world.rng.choice(ROLES)
    if role == "merge" and not sim.model.committed:
        return  # nobody takes it before there is something to merge, which is how fsck knows a lost log (S1)
    fence = acquire_fence(sim.open(clock, owner=f"{actor.name} gone"), role)
    fence._advance(commit=None, claim_ms=_FORGED_MS)  # noqa: SLF001 - what no owner writes
