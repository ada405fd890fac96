"""Producers in the simulation whose batches crash who reads them, and whether the others are committed (I5).

They are the scenario ``poisoners``. One kind of batch makes the reader raise what nobody foresaw, the other ends its
process. Everybody heeds claims then (F6), as processes of the product do: only so a dead owner is told from a slow one.
In the scenario ``sizers`` such batches have two sizes, and each worker takes one of them (I6).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final
from uuid import UUID

import orjson
from icedb_log.commit.fence import CLAIM_MS
from icedb_log.errors import Unavailable
from icedb_log.ingest.flush import FlushLimits, flush_table
from icedb_log.ingest.quarantine import is_reason
from icedb_log.ingest.staging import list_staged

from icedb_sim.simulation.actors import Simulation, enqueue, try_run
from icedb_sim.simulation.data import CRASHING_BODY, KILLING_BODY, PADDING, UNREADABLE, SimBatchWriter
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.repeats import BY_SIZE, flush_by_size_for_ever
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
    bodies: ClassVar[Sequence[bytes]] = (CRASHING_BODY, KILLING_BODY)
    limits: ClassVar[Sequence[FlushLimits]] = (FlushLimits(),)
    """What the flushes of a round take, that have to come to rest."""

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
        process_count = _PROCESSES + len(list_staged(sim.open(clock, owner="calm")).batches)  # a large one is alone
        for number in range(process_count):
            is_idle = True
            for place, limits in enumerate(self.limits):
                is_idle &= not self._flush_once(sim, clock, f"calm{number}-{place}", limits)
            if is_idle:
                return
        raise Violation(f"{process_count} processes have read what is staged, and batches still wait (I5)")

    def _flush_once(self, sim: Simulation, clock: SimClock, owner: str, limits: FlushLimits) -> bool:
        """Flush in a process of its own; return whether something may be left."""
        table = sim.open(clock, owner=owner, reader=sim.make_reader(clock))
        try:
            return flush_table(table, SimBatchWriter(sim.store, clock), limits=limits).has_more
        except (Crash, Unavailable):
            sim.world.now_ms += CLAIM_MS + SECOND_MS
            return True

    def counters(self) -> dict[str, int]:
        """Return how many batches could crash who reads them, how many were isolated, and how many others were."""
        return self._counts

    def _poison_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        for number in range(_MOST):
            sim.world.sleep(int(rng.random() * 20 * sim.world.settings.think_ms))
            body = self.bodies[(number + sim.world.seed) % len(self.bodies)]
            batch = SimBatch(str(UUID(hex=clock.new_id())), body, frozenset())
            sim.model.batches[batch.batch_id] = batch
            self._counts["poisoned"] += 1
            while not batch.is_acknowledged:
                try_run(sim, actor, partial(enqueue, sim, batch))


class SizedPoisonScenario(PoisonScenario):
    """The same with batches of two sizes, and workers of which each takes one: none makes the other forget (I6)."""

    name = "sizers"
    bodies = (KILLING_BODY + PADDING, KILLING_BODY, CRASHING_BODY + PADDING, CRASHING_BODY)
    limits = tuple(FlushLimits(sizes=sizes) for sizes in BY_SIZE)

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Let everybody heed claims, and have workers of both sizes."""
        return replace(super().change_settings(settings, seed), flushers=max(2, settings.flushers))

    def arrange(self, sim: Simulation) -> None:
        """Let each worker take one size."""
        sim.bodies["flusher"] = _flush_one_size_for_ever


def _flush_one_size_for_ever(sim: Simulation, actor: Actor) -> None:
    place = int(actor.name.partition(".")[0].removeprefix(actor.kind))
    flush_by_size_for_ever(sim, actor, sizes=BY_SIZE[place % 2 :][:1])
