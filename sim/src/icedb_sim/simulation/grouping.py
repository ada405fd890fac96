"""Front ends in the simulation that stage many batches as one object, beside producers who stage them alone (I1, I2).

They are the scenario ``groupers``. They share their batches: a retry after an error, or without any reason, goes to any
of them, in other company. Some have only a key: each retry has another id (I7). Flushes of the small and the large
size, and of few batches at once, decide groups in part. Now and then a worker has read no index yet, as a process that
has just begun.
"""

from functools import partial
from typing import Final

from icedb_log.batch_ids import make_keyed_id
from icedb_log.content import hash_content
from icedb_log.ingest.flush import FlushLimits, flush_table
from icedb_log.ingest.groups import OfferedBatch, forget_groups
from icedb_log.ingest.staging import stage_group
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import Simulation, make_batch, try_run
from icedb_sim.simulation.data import SimBatchWriter
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.repeats import BY_SIZE
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, SimClock

GROUPER: Final = "grouper"
_PICKER: Final = "picker"
_MOST: Final = 4
_RECENT: Final = 8
_KEY_RATE: Final = 0.3


class GroupScenario(Scenario):
    """So many front ends, one more for each size, and two workers that decide groups in part.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "groupers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        forget_groups()
        self._sent: list[SimBatch] = []
        self._keys: dict[str, tuple[str, int]] = {}
        """Of batches with a key, by the id of the first try: the key, and when that was, by the store's clock."""
        self._counts = {"groups": 0, "grouped": 0, "groups_gone": 0, "keyed": 0}

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return front ends and workers."""
        return (Part(GROUPER, count + 1, self._group_for_ever), Part(_PICKER, 2, self._pick_for_ever))

    def on_delete(self, key: str) -> None:
        """Count groups that go."""
        self._counts["groups_gone"] += key in self.surroundings.model.groups

    def counters(self) -> dict[str, int]:
        """Return how many groups were acknowledged, and batches in them, how many have gone, and tries with a key."""
        return self._counts

    def _group_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock = SimClock(sim.world, actor.skew_ms)
        while True:
            try_run(sim, actor, partial(self._stage, sim, self._collect(sim, clock)))

    def _collect(self, sim: Simulation, clock: SimClock) -> dict[str, SimBatch]:
        """Return some batches by id: new ones, and some that were sent before, by whichever front end."""
        rng = sim.world.rng
        found: dict[str, SimBatch] = {}
        for _ in range(rng.randint(1, _MOST)):
            unsure = [batch for batch in self._sent if not batch.is_acknowledged]
            dice = rng.random()
            if unsure and dice < 0.3:
                batch = rng.choice(unsure)
            elif self._sent and dice < 0.4:
                batch = rng.choice(self._sent[-_RECENT:])
            else:
                batch = make_batch(sim, clock)
                if rng.random() < _KEY_RATE:
                    self._give_key(sim, batch)
                self._sent.append(batch)
            if batch_id := self._id_now(sim, batch):
                found[batch_id] = batch
        return found

    def _give_key(self, sim: Simulation, batch: SimBatch) -> None:
        """Let its producer have only a key: ids are made of it, by the store's time, which front ends keep to."""
        key, now_ms = sim.model.batches.pop(batch.batch_id).batch_id, self.surroundings.store_now_ms()
        batch.batch_id = make_keyed_id(key, now_ms)
        self._keys[batch.batch_id] = key, now_ms

    def _id_now(self, sim: Simulation, batch: SimBatch) -> str:
        """Return the id under which a batch is sent now; empty: its key may be forgotten, and nobody sends it again."""
        if batch.batch_id not in self._keys:
            return batch.batch_id
        (key, since_ms), now_ms = self._keys[batch.batch_id], self.surroundings.store_now_ms()
        config = sim.world.settings.config
        if now_ms > since_ms + config.log_grace_ms - 2 * config.id_skew_ms:
            return ""
        batch_id = make_keyed_id(key, now_ms)
        sim.model.batches[batch_id] = batch
        self._counts["keyed"] += 1
        return batch_id

    def _stage(self, sim: Simulation, batches: dict[str, SimBatch]) -> None:
        if not batches:
            return
        offered = [
            OfferedBatch(batch_id, "ndjson", each.body, hash_content(each.body, "ndjson"))
            for batch_id, each in batches.items()
        ]
        stage_group(TableStore(sim.store, PATHS), offered)
        for batch in batches.values():
            batch.is_acknowledged = True
        self._counts["groups"] += 1
        self._counts["grouped"] += len(batches)

    def _pick_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Flush one batch at once, or those of one size."""
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        reader, writer = sim.make_reader(clock), SimBatchWriter(sim.store, clock)
        choices = (FlushLimits(max_batches=1), *(FlushLimits(sizes=sizes) for sizes in BY_SIZE))

        def run(limits: FlushLimits) -> object:
            return flush_table(sim.open(clock, owner=actor.name, reader=reader), writer, limits=limits)

        while True:
            if rng.random() < 0.3:
                forget_groups()
            try_run(sim, actor, partial(run, rng.choice(choices)))
