"""Dropped tables in the simulation: who drops, takes back, purges and creates anew, and whether nothing is mixed up.

Everybody else goes on as before, and sleeps through drops, purges and creations. While a table is being purged, and
until there is another one, the oracle is blind; the new one is a table of which it knows nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from icedb_log.clean.deletion import CHUNK_KEYS
from icedb_log.clean.drop import DropRequest, drop_table, undrop_table
from icedb_log.clean.purge import PurgeLimits, purge_table
from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import InvalidRequest
from icedb_log.log.codec import decode_log_file
from icedb_log.store.object_store import StoredObject, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, decode_table_config, load_any_config
from icedb_log.table.table_config import BELIEVED_MS, Dropped, TableConfig

from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.serving import Process
from icedb_sim.simulation.settings import PATHS, SEAL_AGE_MS, Settings
from icedb_sim.simulation.wire import read_wire
from icedb_sim.simulation.world import Actor, SimClock, Violation

DROPPER: Final = "dropper"
PURGER: Final = "purger"
VISITOR: Final = "visitor"

_STEPS: Final = 1200
_STALL_RATE: Final = 0.015
_MAX_RUNS: Final = 50
_FORCE_RATE: Final = 0.4
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
        self._inner: MemoryObjectStore | None = None
        self._marked_ms = 0
        self._staged: set[str] = set()
        self._empty_ms = 0
        self._purges = 0
        self._lives = 1
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
        return {**self._counts, "purges": self._purges, "lives": self._lives}

    # What the store took.

    def on_put(self, key: str, body: bytes) -> None:
        """Follow the table through its lives."""
        if self._is_there and not self.surroundings.model.live_truth():
            self._empty_ms = self.surroundings.store_now_ms()
        if key == PATHS.config_key:
            self._on_config(decode_table_config(PATHS, body))
        elif key.startswith(PATHS.staging_prefix):
            self._on_staged(key.rpartition("/")[2].partition(".")[0])
        elif key.startswith(PATHS.log_prefix) and not self._is_there:
            self._on_late_commit(key, body)

    def on_delete(self, key: str) -> None:
        """Check that what outlives its table does so, and that who reads in time can do so."""
        if key == PATHS.config_key or key.startswith(PATHS.fences_prefix):
            raise Violation(f"{key} is never deleted, but has been (T6)")
        mark = self._config.dropped
        if mark is None or mark.state == "trash":
            return
        if not mark.is_forced:
            self.surroundings.model.check_promises(key)
        if key.startswith(PATHS.log_prefix) and self._inner is not None:
            stored, now_ms = self._inner.get(key), self.surroundings.store_now_ms()
            if is_seal(stored) and now_ms < stored.info.modified_ms + self._config.seal_age_ms:
                raise Violation(f"the purge deletes {key}, a seal of {stored.info.modified_ms} (F4)")

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
        """Take note of what lands behind the mark, before the fences are taken (T4): it may have taken the last rows.

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
            self._on_birth(config, before)
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

    def _on_birth(self, config: TableConfig, before: Dropped) -> None:
        if config.incarnation != before.drop_id:
            raise Violation(f"a new table says that it is {config.incarnation!r}, after {before} (T4)")
        model = self.surroundings.model
        model.begin_anew(replace(model.settings, config=config))
        model.is_blind = False
        self._staged.clear()
        self._lives += 1
        self._empty_ms = self.surroundings.store_now_ms()
        if self._inner is None:
            return
        for info in list_all(self._inner, PATHS.log_prefix).objects:
            stored = self._inner.get(info.key)
            if not is_seal(stored):
                raise Violation(f"{info.key} is there when a new table takes the name (T4)")
            model.logs[info.key] = read_wire(info.key, stored.body)

    # What actors do.

    def _drop_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Drop, take back, create anew."""
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        self._inner = sim.store.inner
        while True:
            dice = rng.random()
            config = sim.world.settings.config
            if dice < 0.35:
                request = DropRequest(keep_ms=config.data_grace_ms, is_forced=rng.random() < _FORCE_RATE)
                if request.keep_ms < self._config.data_grace_ms:
                    request = replace(request, keep_ms=self._config.data_grace_ms)
                run: Callable[[], object] = partial(
                    drop_table, TableStore(sim.store, PATHS), clock=clock, request=request
                )
            elif dice < 0.55:
                run = partial(undrop_table, TableStore(sim.store, PATHS), clock=clock)
            else:
                change = {"data_grace_ms": config.data_grace_ms * rng.choice(_LONGER)}
                run = partial(create_table, TableStore(sim.store, PATHS), config.model_copy(update=change))
            _try(sim, actor, run)
            sim.world.sleep(int(rng.random() * 3 * sim.world.settings.think_ms))

    def _purge_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Purge what is dropped."""
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        self._inner = sim.store.inner
        while True:
            limits = PurgeLimits(chunk_keys=rng.choice((1, 3, CHUNK_KEYS)), page_keys=rng.choice((2, 1000)))
            _try(
                sim,
                actor,
                partial(
                    purge_table,
                    TableStore(sim.store, PATHS),
                    clock=clock,
                    owner=actor.name,
                    audit=sim.audit_watch.open(),
                    limits=limits,
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
        was_empty = self._empty_ms >= began_ms - BELIEVED_MS or (self._is_there and not model.live_truth())
        if not paths and not was_empty:
            raise Violation("a table that is purged was served as an empty one (T5)")
        rows = [row for path in paths for row in model.files[path]]
        if all(map(self.surroundings.exists, paths)) and len(set(rows)) < len(rows):
            raise Violation("of a table that is being purged rows were served twice (T5)")

    # The quiet.

    def calm(self, sim: Simulation) -> None:
        """Take the table back, or have it purged to the end and another one created."""
        clock = SimClock(sim.world)
        self._inner = sim.store.inner
        mark = load_any_config(TableStore(sim.store, PATHS))[0].dropped
        if mark is not None and mark.state == "trash" and sim.world.seed % 2:
            undrop_table(TableStore(sim.store, PATHS), clock=clock)
        elif mark is not None:
            if mark.state == "trash":
                drop_table(TableStore(sim.store, PATHS), clock=clock, request=DropRequest(is_forced=True))
            self._purge_all(sim, clock)
            sim.world.now_ms += sim.world.settings.config.log_grace_ms
            create_table(TableStore(sim.store, PATHS), sim.world.settings.config)
        for batch in sim.model.batches.values():
            # Who enqueued it while the table was being purged, or was not there, was told nothing that holds.
            batch.is_acknowledged = batch.is_acknowledged and batch.batch_id in self._staged

    def _purge_all(self, sim: Simulation, clock: SimClock) -> None:
        for _ in range(_MAX_RUNS):
            purge_table(TableStore(sim.store, PATHS), clock=clock, owner="rest", audit=sim.audit_watch.open())
            mark = self._config.dropped
            if mark is not None and mark.state == "purged" and mark.is_final:
                break
            sim.world.now_ms += SEAL_AGE_MS
        else:
            raise Violation(f"a purge never comes to its end: {self._config.dropped} (T6)")
        left = [info.key for info in list_all(sim.store.inner, "").objects if not _may_stay(info.key)]
        if left:
            raise Violation(f"{left[0]} is left of a table that was purged (T6)")


def is_seal(stored: StoredObject) -> bool:
    """Whether a log file is a seal."""
    return decode_log_file(stored.info.key, stored.body).is_seal


def _may_stay(key: str) -> bool:
    return key in (PATHS.config_key, PATHS.purge_key) or key.startswith(PATHS.fences_prefix)


def _try(sim: Simulation, actor: Actor, run: Callable[[], object]) -> None:
    try:
        run()
    except (*ORDINARY, InvalidRequest) as error:
        sim.world.note(type(error).__name__, actor.kind)
