"""Tags in the simulation: who makes them and relies on them, and whether they hold.

They are the scenario ``taggers``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound
from icedb_log.holds.stored_holds import StoredHold, decode_hold, decode_snapshot, find_ended_holds
from icedb_log.holds.tags import create_tag, delete_tag, read_tagged
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.reader import LogReader
from icedb_log.store.object_store import ObjectInfo, StoredObject
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation

TAGGER: Final = "tagger"
STALL_RATE: Final = 0.01
_OLDEST: Final = 6
_STEPS: Final = 1000
_NAMES: Final = ("a", "b", "c")


@dataclass(slots=True)
class _Held:
    tag: StoredHold
    paths: frozenset[str]


class TagScenario(Scenario):
    """So many actors tag times and rely on them: no data file goes that an active tag names, and each name has one.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "taggers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._tag_count = 0
        self._data_grace_ms = surroundings.settings.config.data_grace_ms
        self._store_now_ms = surroundings.store_now_ms
        self._exists = surroundings.exists
        self._held: dict[str, _Held] = {}

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Return settings under which tags matter."""
        return with_taggers(settings, seed)

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the taggers."""
        return (Part(TAGGER, count, tag_for_ever),)

    def rest(self, sim: Simulation) -> None:
        """End everything that holds."""
        end_tags(sim)

    def counters(self) -> dict[str, int]:
        """Return how many tags became active."""
        return {"tags": self._tag_count}

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of a tag that was just written."""
        if key.startswith(PATHS.holds_of("tag")):
            now_ms = self._store_now_ms()
            tag = decode_hold(StoredObject(ObjectInfo(key, "", len(body), now_ms), body))
            if tag.status(now_ms) == "active":
                self._on_active(tag, body)
            elif tag.state == "ended" and key in self._held:
                self._held[key].tag = tag

    def on_delete(self, key: str) -> None:
        """Check that no tag needs what goes."""
        now_ms = self._store_now_ms()
        for held in self._held.values():
            ends_ms = held.tag.ends_ms
            is_held = ends_ms is None or ends_ms + self._data_grace_ms > now_ms
            if is_held and (key == held.tag.key or key in held.paths):
                raise Violation(f"{key} was deleted, but tag {held.tag.name} at {held.tag.at_ms} needs it (J4)")

    def _on_active(self, tag: StoredHold, body: bytes) -> None:
        now_ms = self._store_now_ms()
        for other in self._held.values():
            if other.tag.name == tag.name and other.tag.status(now_ms) == "active":
                raise Violation(f"{tag.key} and {other.tag.key} are both active (J4)")
        paths = frozenset(marker.path for marker in decode_snapshot(tag, body).markers)
        gone = [path for path in paths if not self._exists(path)]
        if gone:
            raise Violation(f"{tag.key} is active, but {gone[0]} is gone (J4)")
        self._held[tag.key] = _Held(tag, paths)
        self._tag_count += 1


def with_taggers(settings: Settings, seed: int) -> Settings:
    """Return settings for those who tag: grace periods and sleepers follow from the seed.

    Who makes tags and who deletes has to sleep, and log files have to stay as long as data files: otherwise a time is
    below the horizon (R3) before its tag has anything to be proven against.
    """
    change = {"data_grace_ms": settings.config.log_grace_ms} if seed % 8 < 6 else {}
    return replace(
        settings,
        config=settings.config.model_copy(update=change),
        sleepy_kind=(settings.sleepy_kind, TAGGER, "janitor")[seed % 3],
        faults=replace(settings.faults, stall=max(settings.faults.stall, STALL_RATE)),
        readers=0,
        lease_holders=0,
        operators=0,
        steps=_STEPS,
    )


def tag_for_ever(sim: Simulation, actor: Actor) -> None:
    """Tag a time, read what is tagged, delete the tag, and clear ended tags away, again and again."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    reader = sim.make_reader(clock)
    while True:
        dice = rng.random()
        run: Callable[[], object] = partial(_read, sim, rng.choice(_NAMES))
        if dice < 0.45:
            run = partial(_tag, sim, clock, reader, rng.choice(_NAMES))
        elif dice < 0.6:
            run = partial(_end, sim, rng.choice(_NAMES))
        elif dice < 0.65:
            run = partial(_clear, sim)
        try:
            run()
        except ORDINARY as error:
            sim.world.note(type(error).__name__, actor.kind)
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))


def end_tags(sim: Simulation) -> None:
    """End everything that holds: the faults are over, and the table has to come to rest."""
    for name in _NAMES:
        _end(sim, name)
    _clear(sim)


def _tag(sim: Simulation, clock: SimClock, reader: LogReader, name: str) -> None:
    rng, model, config = sim.world.rng, sim.model, sim.world.settings.config
    ttl_ms = rng.choice((None, rng.randint(1, 8) * config.data_grace_ms))
    # Mostly just before something died: that is what a janitor may be about to delete.
    died_ms = sorted({t for t in fold(reader.read()).tombstoned_ms.values() if t <= sim.world.now_ms})
    past_ms = sim.world.now_ms - int(rng.random() * 1.5 * config.data_grace_ms)
    at_ms = rng.choice((None, past_ms, *(t - 1 for t in died_ms[:_OLDEST])))
    mark = model.begin_read()
    try:
        tag = create_tag(sim.open(clock, reader=reader), name, at_ms=at_ms, ttl_ms=ttl_ms)
    except (BelowHorizon, InvalidRequest):
        return
    if at_ms is not None:
        found = _read(sim, name)
        if found is not None and found[0].key == tag.key:
            model.check_past_read(mark, at_ms, replace(found[1], is_stable=False))


def _read(sim: Simulation, name: str) -> tuple[StoredHold, Snapshot] | None:
    try:
        return read_tagged(TableStore(sim.store, PATHS), name)
    except (InvalidRequest, NotFound):
        return None


def _end(sim: Simulation, name: str) -> None:
    try:
        delete_tag(TableStore(sim.store, PATHS), name)
    except NotFound:
        return


def _clear(sim: Simulation) -> None:
    sim.store.delete(
        find_ended_holds(TableStore(sim.store, PATHS), data_grace_ms=sim.world.settings.config.data_grace_ms)
    )
