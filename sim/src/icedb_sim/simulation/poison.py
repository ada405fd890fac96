"""Producers in the simulation whose batches crash who reads them, and whether the others are committed (I5).

They are the scenario ``poisoners``. One kind of batch makes the reader raise what nobody foresaw, the other ends its
process. Everybody heeds claims then (F6), as processes of the product do: only so a dead owner is told from a slow one.
"""

from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

import orjson
from icedb_log.commit.fence import CLAIM_MS
from icedb_log.errors import Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.quarantine import is_reason

from icedb_sim.simulation.actors import Simulation, enqueue, try_run
from icedb_sim.simulation.data import CRASHING_BODY, KILLING_BODY, UNREADABLE, SimBatchWriter
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS, SECOND_MS, Settings
from icedb_sim.simulation.world import Actor, Crash, SimClock, Violation

POISONER: Final = "poisoner"
_PATIENCE_MS: Final = 30 * SECOND_MS
_MOST: Final = 3
_PROCESSES: Final = 200


class PoisonScenario(Scenario):
    """So many producers send a few batches that crash who reads them; none of them stays, or is committed.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "poisoners"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._model = surroundings.model
        self._counts = {"poisoned": 0, "isolated": 0, "suspected": 0}

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Let everybody heed claims."""
        del seed
        return replace(settings, patience_ms=_PATIENCE_MS)

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the producers."""
        return (Part(POISONER, count, self._poison_for_ever),)

    def on_put(self, key: str, body: bytes) -> None:
        """Count batches that were refused for what became of their readers."""
        if not key.startswith(PATHS.quarantine_prefix) or not is_reason(key):
            return
        said = orjson.loads(body)
        if "ended without a word" in said["reason"] or "nobody foresaw" in said["reason"]:
            batch = self._model.batches.get(said["batch_id"])
            is_poison = batch is not None and batch.body in UNREADABLE
            self._counts["isolated" if is_poison else "suspected"] += 1

    def calm(self, sim: Simulation) -> None:
        """Flush in one process after the other, until none is ended by what it reads."""
        clock = SimClock(sim.world)
        for number in range(_PROCESSES):
            table = sim.open(clock, owner=f"calm{number}", reader=sim.make_reader(clock))
            try:
                if not flush_table(table, SimBatchWriter(sim.store, clock)).has_more:
                    return
            except (Crash, Unavailable):
                sim.world.now_ms += CLAIM_MS + SECOND_MS
        raise Violation(f"{_PROCESSES} processes have read what is staged, and batches still wait (I5)")

    def counters(self) -> dict[str, int]:
        """Return how many batches could crash who reads them, how many were isolated, and how many others were."""
        return self._counts

    def _poison_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        for number in range(_MOST):
            sim.world.sleep(int(rng.random() * 20 * sim.world.settings.think_ms))
            body = (CRASHING_BODY, KILLING_BODY)[(number + sim.world.seed) % 2]
            batch = SimBatch(str(UUID(hex=clock.new_id())), body, frozenset())
            sim.model.batches[batch.batch_id] = batch
            self._counts["poisoned"] += 1
            while not batch.is_acknowledged:
                try_run(sim, actor, partial(enqueue, sim, batch))
