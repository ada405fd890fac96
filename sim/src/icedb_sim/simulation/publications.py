"""Publications in the simulation: who makes them, who reads what they show, and whether all of it is there.

They are the scenario ``publishers``. What engines were shown is known exactly: each state of the head passes by here.
So every object and every data file of every state of a publication is watched from the moment at which it becomes the
current one until a grace period after it has left, whether somebody reads it or not.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson
from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.clean.table_walk import TableWalk
from icedb_log.errors import CorruptLog
from icedb_log.log.state import LogState
from icedb_log.publish.head import decode_head, read_publication
from icedb_log.publish.model import Publication
from icedb_log.publish.publications import publish
from icedb_log.store.object_store import ObjectInfo, StoredObject, list_all
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation
from icedb_sim.tables.json_publications import JsonPublications

PUBLISHER: Final = "publisher"
ENGINE: Final = "engine"
SWEEPER: Final = "publication-sweeper"
STALL_RATE: Final = 0.01
LOSS_RATE: Final = 0.01
"""Each so manieth time a publisher finds that it may not show the newest state."""
_STEPS: Final = 1000


@dataclass(slots=True)
class _Shown:
    """A publication that engines have been shown.

    Attributes:
        publication: What it says.
        needed: Its objects, and the data files of all its states.
        states: The data files of each state, oldest first.
        left_ms: When it left, by the store's clock; ``None``: it is the current one.
    """

    publication: Publication
    needed: frozenset[str]
    states: tuple[frozenset[str], ...]
    left_ms: int | None = None


@dataclass(slots=True)
class _Seen:
    """What the scenario knows of the store."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    shown: dict[str, _Shown] = field(default_factory=dict)
    current_id: str = ""
    sequence: int = -1
    chain: str = ""


class PublicationScenario(Scenario):
    """So many actors publish a table, others read what is shown, and one more janitor sweeps.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "publishers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._seen = _Seen()
        self._made = 0
        self._retired = 0
        self._swept = 0
        self._reads = 0
        self._data_grace_ms = surroundings.settings.config.data_grace_ms

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Return settings under which publications matter: who makes them and who deletes has to sleep."""
        change = {"data_grace_ms": settings.config.log_grace_ms * (1, 1, 2)[seed % 3]}
        return replace(
            settings,
            config=settings.config.model_copy(update=change),
            sleepy_kind=(settings.sleepy_kind, PUBLISHER, "janitor", SWEEPER)[seed % 4],
            faults=replace(settings.faults, stall=max(settings.faults.stall, STALL_RATE)),
            readers=0,
            lease_holders=0,
            operators=0,
            steps=_STEPS,
        )

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return publishers, engines and a sweeper."""
        return (
            Part(PUBLISHER, 1 + count, self._publish_for_ever),
            Part(ENGINE, 1, self._read_for_ever),
            Part(SWEEPER, 1, self._sweep_for_ever),
        )

    def calm(self, sim: Simulation) -> None:
        """Publish once more: what was in the making when the faults ended is over with that."""
        _act(sim, lambda: publish(sim.open(SimClock(sim.world)), JsonPublications()))

    def rest(self, sim: Simulation) -> None:
        """Let what is published go, as a table that nobody reads does."""
        _act(sim, lambda: self._sweep(sim, SimClock(sim.world)))

    def counters(self) -> dict[str, int]:
        """Return how often what happened."""
        return {
            "publications": self._made,
            "retired": self._retired,
            "published_reads": self._reads,
            "published_swept": self._swept,
        }

    # What passes by

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of what is published, and look whether all that it needs is there."""
        if key.startswith(PATHS.published_prefix):
            if key in self._seen.bodies:
                raise Violation(f"{key} is written a second time (P5)")
            self._seen.bodies[key] = body
        elif key == PATHS.publication_head_key:
            self._on_head(key, body)

    def on_delete(self, key: str) -> None:
        """Check that nobody needs what goes who was shown it."""
        if not key.startswith((PATHS.data_prefix, PATHS.published_prefix)):
            return
        now_ms = self.surroundings.store_now_ms()
        for shown in self._seen.shown.values():
            if self._is_held(shown, now_ms) and key in shown.needed:
                number = shown.publication.sequence
                raise Violation(f"{key} was deleted, but engines were shown publication {number}, which needs it (J4)")
        self._swept += key.startswith(PATHS.published_prefix)

    def _is_held(self, shown: _Shown, now_ms: int) -> bool:
        return shown.left_ms is None or now_ms < shown.left_ms + self._data_grace_ms

    def _on_head(self, key: str, body: bytes) -> None:
        seen, now_ms = self._seen, self.surroundings.store_now_ms()
        head = decode_head(PATHS, StoredObject(ObjectInfo(key, "", len(body), now_ms), body))
        if head.chain == seen.chain and head.sequence != seen.sequence + 1:
            raise Violation(f"the head goes from number {seen.sequence} to {head.sequence} (P1)")
        seen.chain, seen.sequence = head.chain, head.sequence
        before = seen.shown.get(seen.current_id)
        if before is not None and (head.current is None or head.current.publication_id != seen.current_id):
            before.left_ms = now_ms
        for publication_id, shown in list(seen.shown.items()):
            told = shown.publication
            if head.withdrawn >= (told.sequence if told.chain == head.chain else 0):
                del seen.shown[publication_id]  # E5: nobody may rely on it
        if head.current is None:
            seen.current_id = ""
            self._retired += 1
            return
        seen.current_id = head.current.publication_id
        if seen.current_id in seen.shown:
            raise Violation(f"publication {seen.current_id} becomes the current one again (P1)")
        self._made += 1
        self._show(head.current, before)

    def _show(self, current: Publication, before: _Shown | None) -> None:
        said = [orjson.loads(self._seen.bodies[each["key"]]) for each in self._snapshots(current)]
        states = tuple(frozenset(each["paths"]) for each in said)
        shown = _Shown(current, frozenset(current.objects).union(*states), states)
        gone = sorted(key for key in shown.needed if not self.surroundings.exists(key))
        if gone:
            raise Violation(f"publication {current.sequence} is shown, but {gone[0]} is gone (J4)")
        for state in states:
            rows = Counter(row for path in state for row in self.surroundings.model.files.get(path, ()))
            if rows and max(rows.values()) > 1:
                raise Violation(f"publication {current.sequence} has a state with a row twice (P4)")
        if before is not None and before.states and current.chain == before.publication.chain:
            mine = [each["key"] for each in self._snapshots(current)]
            theirs = [each["key"] for each in self._snapshots(before.publication)]
            kept = [key for key in mine if key in theirs]
            if kept and kept != theirs[len(theirs) - len(kept) :]:
                raise Violation(f"publication {current.sequence} tells another history than the one before (P1)")
        self._seen.shown[current.publication_id] = shown

    def _snapshots(self, publication: Publication) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = orjson.loads(self._seen.bodies[publication.metadata_key])["snapshots"]
        return found

    # Who acts

    def _publish_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Publish, as a catalog does that is asked."""
        clock, state = SimClock(sim.world, actor.skew_ms), LogState()
        reader, writer = sim.make_reader(clock), JsonPublications()

        def run() -> None:
            mark = sim.model.begin_read()
            made = publish(sim.open(clock, reader=reader), writer, state=state)
            shown = self._seen.shown.get(made.publication_id)
            if shown is None:
                return  # it was withdrawn, or lost, meanwhile
            live = shown.states[-1] if shown.states else frozenset()
            sim.model.check_shown(mark, live)

        while True:
            try:
                run()
            except ORDINARY as error:
                sim.world.note(type(error).__name__, actor.kind)
            pause = sim.world.rng.choice((1, 1, 2, 12))  # now and then nobody asks for long
            sim.world.sleep(int(sim.world.rng.random() * pause * sim.world.settings.think_ms))

    def _read_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Load what is shown, and read all of it later, as long as it is promised to be there."""
        rng = sim.world.rng
        while True:
            try:
                self._load(sim, rng.random())
            except ORDINARY as error:
                sim.world.note(type(error).__name__, actor.kind)
            sim.world.sleep(int(rng.random() * 2 * sim.world.settings.think_ms))

    def _load(self, sim: Simulation, share: float) -> None:
        publication = read_publication(TableStore(sim.store, PATHS))
        if publication is None:
            return
        sim.world.sleep(int(share * self._data_grace_ms))
        shown = self._seen.shown.get(publication.publication_id)
        if shown is None:
            return
        for key in sorted(shown.needed):
            if not self._is_held(shown, self.surroundings.store_now_ms()):
                return
            if not sim.store.inner.holds(key):
                raise Violation(f"an engine that was shown publication {publication.sequence} misses {key} (J4)")
            self._reads += 1

    def _sweep_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Sweep what publications left; lose all of them, or their head, now and then."""
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        while True:
            dice = rng.random()
            run = partial(self._sweep, sim, clock)
            if dice < 2 * LOSS_RATE:
                lost = PATHS.iceberg_prefix if dice < LOSS_RATE else PATHS.publication_head_key
                run = partial(self._lose, sim, lost)
            _act(sim, run, actor.kind)
            sim.world.sleep(int(rng.random() * 3 * sim.world.settings.think_ms))

    @staticmethod
    def _sweep(sim: Simulation, clock: SimClock) -> None:
        table = sim.open(clock, reader=sim.make_reader(clock))
        listing = list_all(sim.store, PATHS.iceberg_prefix)
        holds = list_all(sim.store, PATHS.holds_prefix)
        walk = TableWalk(
            listing.store_now_ms, leftovers={"published": list(listing.objects), "hold": list(holds.objects)}
        )
        sweep_leftovers(table, walk, audit=sim.audit_watch.open())

    def _lose(self, sim: Simulation, prefix: str) -> None:
        """Lose what is published: nobody may rely on it any more, and nothing else may suffer."""
        self._seen.shown.clear()
        self._seen.current_id = ""
        inner = sim.store.inner
        inner.delete([info.key for info in inner.list_page(prefix).objects])
        sim.world.note("lost", prefix)


def _act(sim: Simulation, run: Callable[[], object], kind: str = "rest") -> None:
    try:
        run()
    except CorruptLog as error:
        raise Violation(str(error)) from error
    except ORDINARY as error:
        sim.world.note(type(error).__name__, kind)
