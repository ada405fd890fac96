"""Dropped tables in the simulation: who drops, takes back, purges and creates anew, and whether nothing is mixed up.

Everybody else goes on with the first table of the name, and sleeps through drops, purges and creations. While it is
being purged, and afterwards, the oracle is blind; the next ones lie under other prefixes, where nobody but those who
drop and create tables may write anything (T4).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from icedb_log.clean.deletion import CHUNK_KEYS
from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import InvalidRequest
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, decode_table_config, find_newest, load_any_config
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS, Dropped, TableConfig
from icedb_log.trash.drop import DropRequest, drop_table, undrop_table
from icedb_log.trash.purge import PurgeLimits, purge_table

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.data import read_staged_ids
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.serving import Process
from icedb_sim.simulation.settings import PATHS, SEAL_AGE_MS, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation

DROPPER: Final = "dropper"
PURGER: Final = "purger"
VISITOR: Final = "visitor"

_STEPS: Final = 1200
_STALL_RATE: Final = 0.015
_MAX_RUNS: Final = 50
_FORCE_RATE: Final = 0.4
_NEXT: Final = f"{PATHS.prefix}."
"""What the keys of later tables of the name begin with."""
_STAYS: Final = "_icedb/table.json"
_LONGER: Final = (1, 4)
"""How much longer data files are kept by the next table of the name."""


class TrashScenario(Scenario):
    """Those who drop and create tables, those who purge them, and readers. Size: so many of the first."""

    name = "droppers"
    runs_alone = True
    drops_tables = True

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._config: TableConfig = surroundings.settings.config
        self._marked_ms = 0
        self._staged: set[str] = set()
        self._empty_ms = 0
        self._purges = 0
        self._next: dict[int, TableConfig] = {}
        self._counts = {"drops": 0, "undrops": 0, "visits": 0, "odd_visits": 0}

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Leave those out who read without looking whether the table is there, and retries; let some sleep more."""
        return replace(
            settings,
            faults=replace(settings.faults, stall=max(settings.faults.stall, _STALL_RATE)),
            sleepy_kind=(settings.sleepy_kind, "flusher", "janitor", PURGER)[seed % 4],
            readers=0,
            lease_holders=0,
            operators=0,
            steps=max(settings.steps, _STEPS),
        )

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the actors."""
        return (
            Part(DROPPER, count, self._drop_for_ever),
            Part(PURGER, 1 + count, self._purge_for_ever),
            Part(VISITOR, 2, self._visit_for_ever),
        )

    def counters(self) -> dict[str, int]:
        """Return how often what happened."""
        return {**self._counts, "purges": self._purges, "lives": 1 + len(self._next)}

    # What the store took.

    def on_put(self, key: str, body: bytes) -> None:
        """Follow the table through its lives."""
        if self._is_there and not self.surroundings.model.live_truth():
            self._empty_ms = self.surroundings.store_now_ms()
        if key == PATHS.config_key:
            self._on_config(decode_table_config(PATHS, body))
        elif key.startswith(PATHS.staging_prefix):
            for batch_id in read_staged_ids(key, body):
                self._on_staged(batch_id)
        elif key.startswith(PATHS.log_prefix) and not self._is_there:
            self._on_late_commit(key, body)
        elif key.startswith(_NEXT):
            self._on_next(key, body)

    def on_delete(self, key: str) -> None:
        """Check that no mark goes, nothing of the next tables, and that who reads in time can do so."""
        if key.endswith("/table.json") or key.startswith(_NEXT):
            raise Violation(f"{key} is never deleted, but has been (T4)")
        mark = self._config.dropped
        if mark is not None and mark.state != "trash" and not mark.is_forced:
            self.surroundings.model.check_promises(key)

    @property
    def _is_there(self) -> bool:
        mark = self._config.dropped
        return mark is None or mark.state == "trash"

    def _on_staged(self, batch_id: str) -> None:
        """Take note of whether a batch is accepted: not without a table, and not when its id is too old (I3)."""
        is_late = parse_uuid7_ms(batch_id) + self._config.retry_window_ms < self.surroundings.store_now_ms()
        if is_late or self._config.dropped is not None:
            self.surroundings.model.unpromised.add(batch_id)
        else:
            self.surroundings.model.unpromised.discard(batch_id)
            self._staged.add(batch_id)

    def _on_late_commit(self, key: str, body: bytes) -> None:
        """Take note of what lands behind the mark, while the table is purged: it may have taken the last rows.

        The oracle is blind by then. Who read the configuration before the mark may say that the table is empty: its log
        says so.
        """
        model = self.surroundings.model
        for marker in model.decode(key, body).markers:
            (model.named if marker.is_live else model.dead).add(marker.path)
        if not model.live_truth():
            self._empty_ms = self._marked_ms

    def _on_config(self, config: TableConfig) -> None:
        now_ms, before, mark = self.surroundings.store_now_ms(), self._config.dropped, config.dropped
        if before is None:
            self._counts["drops"] += mark is not None
            if mark is not None and (mark.state != "trash" or config.undropped == mark.drop_id):
                raise Violation(f"{mark} follows a table that is there, {config.undropped!r} (T1)")
        elif before.state == "trash":
            self._on_trash(before, mark, now_ms=now_ms)
        elif mark is None and before.state == "purged":
            raise Violation(f"a table takes the place of one that was purged: {before} (T4)")
        elif mark is None or mark.drop_id != before.drop_id or mark.state == "trash":
            raise Violation(f"{mark} follows {before} (T1)")
        self._config, self._marked_ms = config, now_ms

    def _on_trash(self, before: Dropped, mark: Dropped | None, *, now_ms: int) -> None:
        if mark is None:
            self._counts["undrops"] += 1
            return
        if mark.state != "purging" or mark.drop_id != before.drop_id:
            raise Violation(f"{mark} follows {before} (T1)")
        if not mark.is_forced and now_ms < self._marked_ms + before.keep_ms:
            raise Violation(f"{before} is purged after {now_ms - self._marked_ms} ms in the trash (T3)")
        self._purges += 1
        self.surroundings.model.is_blind = True

    def _on_next(self, key: str, body: bytes) -> None:
        """Check what is written below the prefix of a later table of the name: the table, its mark, and purges (T4)."""
        folder, _, rest = key.removeprefix(_NEXT).partition("/")
        number, mark = int(folder), self._config.dropped
        if rest != "_icedb/table.json":
            if not rest.startswith("_icedb/audit/"):
                raise Violation(f"{key} was written by somebody who works on the first table of the name (T4)")
        elif number not in self._next:
            before = self._next.get(number - 1, self._config).dropped
            if mark is None or (mark.newest or 1) < number:
                raise Violation(f"{key} is a table that no name leads to: {mark} (T4)")
            if before is None or before.state != "purged":
                raise Violation(f"{key} is created before the table before it is purged: {before} (T4)")
            self._next[number] = decode_table_config(PATHS.numbered(number), body)
        else:
            self._next[number] = decode_table_config(PATHS.numbered(number), body)

    # What actors do.

    def _drop_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Drop, take back, create anew."""
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        while True:
            dice = rng.random()
            config = sim.world.settings.config
            if dice < 0.35:
                request = DropRequest(keep_ms=config.data_grace_ms, is_forced=rng.random() < _FORCE_RATE)
                if request.keep_ms < self._config.data_grace_ms:
                    request = replace(request, keep_ms=self._config.data_grace_ms)
                run: Callable[[TableStore], object] = partial(drop_table, clock=clock, request=request)
            elif dice < 0.55:
                run = partial(undrop_table, clock=clock)
            else:
                change = {"data_grace_ms": config.data_grace_ms * rng.choice(_LONGER)}
                run = partial(create_table, config=config.model_copy(update=change))
            _try(sim, actor, partial(_on_newest, sim, run))
            sim.world.sleep(int(rng.random() * 3 * sim.world.settings.think_ms))

    def _purge_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Purge what is dropped."""
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        while True:
            limits = PurgeLimits(chunk_keys=rng.choice((1, 3, CHUNK_KEYS)), page_keys=rng.choice((2, 1000)))
            _try(
                sim,
                actor,
                partial(
                    _on_newest,
                    sim,
                    partial(purge_table, clock=clock, owner=actor.name, audit=sim.audit_watch.open(), limits=limits),
                ),
            )
            sim.world.sleep(int(rng.random() * 2 * sim.world.settings.think_ms))

    def _visit_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Ask a snapshot service for the newest state."""
        process = Process(sim, actor.skew_ms)
        while True:
            _try(sim, actor, partial(self._visit, sim, process))
            sim.world.sleep(int(sim.world.rng.random() * 2 * sim.world.settings.think_ms))

    def _visit(self, sim: Simulation, process: Process) -> None:
        model = sim.model
        purges, began_ms, was_there = self._purges, self.surroundings.store_now_ms(), self._is_there
        state = process.table.read(max_staleness_ms=0)
        now_ms = self.surroundings.store_now_ms()
        if was_there and self._is_there and purges == self._purges:
            self._counts["visits"] += 1
            mark = process.clock.marks[state.started_ms]
            if now_ms < state.view.store_now_ms + sim.world.settings.config.data_grace_ms:
                model.check_read(mark, state.view, state.snapshot)
            return
        # It went, or came, meanwhile: who opens a file that is gone notices.
        self._counts["odd_visits"] += 1
        paths = [marker.path for marker in state.snapshot.live]
        was_empty = self._empty_ms >= began_ms - CONFIG_CACHE_TTL_MS or (self._is_there and not model.live_truth())
        if not paths and not was_empty:
            raise Violation("a table that is purged was served as an empty one (T5)")
        rows = [row for path in paths for row in model.files[path]]
        if all(map(self.surroundings.exists, paths)) and len(set(rows)) < len(rows):
            raise Violation("of a table that is being purged rows were served twice (T5)")

    # The quiet.

    def calm(self, sim: Simulation) -> None:
        """Take the table back, or have it and all others of its name purged to the end, and create another one."""
        clock = SimClock(sim.world)
        first = TableStore(sim.store, PATHS)
        mark = load_any_config(first)[0].dropped
        if mark is not None and mark.state == "trash" and sim.world.seed % 2:
            undrop_table(first, clock=clock)
        elif mark is not None:
            if mark.state == "trash":
                drop_table(first, clock=clock, request=DropRequest(is_forced=True))
            self._purge_all(sim, clock)
            created = create_table(first, sim.world.settings.config)
            if [info.key for info in list_all(sim.store.inner, f"{created.paths.prefix}/").objects] != [
                created.paths.config_key
            ]:
                raise Violation(f"{created.paths.prefix} is not empty when a table is created there (T4)")
        for batch in sim.model.batches.values():
            # Who enqueued it while the table was being purged, or was not there, was told nothing that holds.
            batch.is_acknowledged = batch.is_acknowledged and batch.batch_id in self._staged

    def _purge_all(self, sim: Simulation, clock: SimClock) -> None:
        place = find_newest(TableStore(sim.store, PATHS)).place
        if self._next.get(place.paths.number, self._config).dropped is None and place.paths.number in self._next:
            drop_table(place, clock=clock, request=DropRequest(is_forced=True))
        elif place.paths.number > 1 and place.paths.number not in self._next:  # its creator has died
            place = place.numbered(place.paths.number - 1)
        for _ in range(_MAX_RUNS):
            mark = load_any_config(place)[0].dropped
            if mark is not None and mark.state == "trash":
                drop_table(place, clock=clock, request=DropRequest(is_forced=True))
            purge_table(place, clock=clock, owner="rest", audit=sim.audit_watch.open())
            marks = [self._config.dropped, *(config.dropped for config in self._next.values())]
            if all(mark is not None and mark.state == "purged" and mark.is_final for mark in marks):
                break
            sim.world.now_ms += SEAL_AGE_MS
        else:
            raise Violation(f"a purge never comes to its end: {self._config.dropped} (T5)")
        left = [info.key for info in list_all(sim.store.inner, PATHS.prefix).objects if not info.key.endswith(_STAYS)]
        if left:
            raise Violation(f"{left[0]} is left of a table that was purged (T5)")


def _on_newest(sim: Simulation, run: Callable[[TableStore], object]) -> object:
    return run(find_newest(TableStore(sim.store, PATHS)).place)


def _try(sim: Simulation, actor: Actor, run: Callable[[], object]) -> None:
    try:
        run()
    except (*ORDINARY, InvalidRequest) as error:
        sim.world.note(type(error).__name__, actor.kind)
