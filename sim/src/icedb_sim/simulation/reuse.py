"""Producers in the simulation that use an id again for other content, and whether any of it vanishes (I8).

They are the scenario ``reusers``. They stage in the store itself, as a client does, past every door, and always in
another format: what is staged under one key never changes. That one key may change while a worker sleeps before its
delete is a known gap (docs/gaps.md).
"""

from functools import partial
from typing import Final

from icedb_log.batch_ids import name_of
from icedb_log.content import hash_content
from icedb_log.ingest.quarantine import conflict_name, payload_key, reason_key
from icedb_log.ingest.staging import stage_batch
from icedb_log.keys import parse_staged_key
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import Simulation, try_run
from icedb_sim.simulation.data import ROW_BITS, encode_batch
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, Violation

REUSER: Final = "reuser"
FORMAT: Final = "json"
_RECENT: Final = 6


class ReuseScenario(Scenario):
    """So many actors stage other content under ids that are committed: all of it becomes an entry before it goes.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "reusers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._others = surroundings.model.others
        self._batches = surroundings.model.batches
        self._exists = surroundings.exists
        self._kept: set[str] = set()

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the reusers."""
        return (Part(REUSER, count, reuse_for_ever),)

    def on_delete(self, key: str) -> None:
        """Check that other content is an entry, with a reason, when its copy goes."""
        if not key.startswith(PATHS.staging_prefix) or not key.endswith(f".{FORMAT}"):
            return
        name = parse_staged_key(key)
        body = self._others.get(name.batch_id)
        if body is None:
            return
        # I7: under the id by which the log has decided it: of its key, and perhaps of another try.
        ids = [each for each in self._batches if name_of(each) == name_of(name.batch_id)] or [name.batch_id]
        entries = [conflict_name(each, hash_content(body, FORMAT)) for each in ids]
        entries.append(name.batch_id)  # if its id had been forgotten: it was too late, and refused (I3)
        payloads = {each: payload_key(PATHS, each, body, FORMAT, what="batch") for each in entries}
        if not any(self._exists(payload) and self._exists(reason_key(PATHS, e)) for e, payload in payloads.items()):
            raise Violation(f"{key} goes, is other content than what was committed, and is nowhere else (I8)")
        self._kept.add(name.batch_id)

    def check(self, sim: Simulation) -> None:
        """Check that all other content that was accepted has become an entry."""
        lost = sim.model.others_accepted - self._kept
        if lost:
            raise Violation(f"other content was accepted under {min(lost)}, and is nowhere (I8)")

    def counters(self) -> dict[str, int]:
        """Return how many contents were kept."""
        return {"conflicts": len(self._kept)}


def reuse_for_ever(sim: Simulation, actor: Actor) -> None:
    """Stage other content under an id that was committed lately, or the same other content once more."""
    rng, model = sim.world.rng, sim.model
    while True:
        known = [batch_id for batch_id in model.committed if batch_id in model.batches]
        if known:
            try_run(sim, actor, partial(_reuse, sim, rng.choice(known[-_RECENT:])))
        else:
            sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))


def _reuse(sim: Simulation, batch_id: str) -> None:
    model = sim.model
    if batch_id not in model.others:
        row = sim.batch_count << ROW_BITS
        sim.batch_count += 1
        model.others[batch_id] = encode_batch({"p=a": [row]}, column="c0", sql_type="BIGINT", bad_count=0)
    stage_batch(TableStore(sim.store, PATHS), body=model.others[batch_id], staging_format=FORMAT, batch_id=batch_id)
    model.others_accepted.add(batch_id)
