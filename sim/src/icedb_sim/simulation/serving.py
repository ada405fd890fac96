"""The snapshot service's shared state in the simulation: who asks it for what, and whether the answers are true.

Two callers share each :class:`~icedb_log.serving.table_cache.CachedTable`, as the threads of one process do: they wait
for each other's reads. Answers are checked like plain reads, by what had been committed when they were asked for.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, cast

from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import Snapshot
from icedb_log.serving.batch_commits import CommitWait, await_commit, find_commit
from icedb_log.serving.changes import compare_snapshots
from icedb_log.serving.selection import select_files
from icedb_log.serving.table_cache import CachedTable, TableState
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import PartitionFilter
from icedb_log.table.table_config import PartitionField, TableConfig

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.facts import ReadMark
from icedb_sim.simulation.model import SimModel
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS, SECOND_MS
from icedb_sim.simulation.world import Actor, SimClock, Violation, World

SERVED: Final = "served"

_CALLERS: Final = 2
"""Of each process."""
_POLL_MS: Final = 200
_FOREVER_MS: Final = 1 << 60
_RECENT: Final = 6
_PARTITIONED: Final = TableConfig.create(name=PATHS.name, partition=(PartitionField(name="p", column="p"),))


class InlineExecutor(Executor):
    """Does in the caller what it is asked for."""

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Return an iterator that calls the function."""
        return map(fn, *iterables)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function, and return what has its result. Raises what it raises: an actor may die in it."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class GreenLock:
    """A lock for actors: who waits for it lets others act."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - of the library
        """Take it; ``False``: not within so many seconds."""
        ends_ms = self._world.now_ms + int(timeout * SECOND_MS)
        while self._is_taken and blocking:
            if timeout >= 0 and self._world.now_ms >= ends_ms:
                return False
            self._world.sleep(_POLL_MS)
        is_free, self._is_taken = not self._is_taken, True
        return is_free

    def release(self) -> None:
        """Give it back."""
        self._is_taken = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class MarkingClock(SimClock):
    """A clock that remembers where the world stood whenever it was asked for the time."""

    def __init__(self, world: World, skew_ms: int, *, model: SimModel) -> None:
        super().__init__(world, skew_ms)
        self._model = model
        self.marks: dict[int, ReadMark] = {}

    def monotonic_ms(self) -> int:
        """Return the time that passed, and remember what had been committed by then."""
        now_ms = super().monotonic_ms()
        if now_ms not in self.marks:
            self.marks[now_ms] = self._model.begin_read()
        return now_ms


class Process:
    """One snapshot service, as far as one table goes."""

    def __init__(self, sim: Simulation, skew_ms: int) -> None:
        self.clock = MarkingClock(sim.world, skew_ms, model=sim.model)
        self.table = CachedTable(
            TableStore(sim.store, PATHS),
            clock=self.clock,
            wait_ms=sim.world.settings.config.log_grace_ms,
            on_refresh=lambda _: None,
            fetch_pool=InlineExecutor(),
            new_lock=cast("Callable[[], threading.Lock]", partial(GreenLock, sim.world)),
        )


class ServingScenario(Scenario):
    """Callers of snapshot services. Size: so many services, each with two callers."""

    name = "servers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._processes: list[Process] = []
        self._begun = 0
        self._committed_ms: dict[str, int] = {}
        self._counts = {"served": 0, "served_past": 0, "served_changes": 0, "served_commits": 0}

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the actors."""
        return (Part(SERVED, _CALLERS * count, self._ask_for_ever),)

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of when a batch was committed."""
        if key.startswith(PATHS.log_prefix) and b'"ids"' in body:
            for batch_id in decode_log_file(key, body).batch_ids:
                self._committed_ms.setdefault(batch_id, self.surroundings.store_now_ms())

    def counters(self) -> dict[str, int]:
        """Return how many answers of each kind there were."""
        return self._counts

    def _ask_for_ever(self, sim: Simulation, actor: Actor) -> None:
        """Join a process, or begin one, and ask it for this and that."""
        rng = sim.world.rng
        self._begun += 1
        if self._begun % _CALLERS == 1 or rng.random() < 0.3:
            self._processes.append(Process(sim, actor.skew_ms))
        process = self._processes[-1]
        asks = (self._ask_newest, self._ask_past, self._ask_changes, self._ask_for_commit, self._select)
        while True:
            ask = rng.choices(asks, weights=(4, 2, 2, 3, 1))[0]
            try:
                ask(sim, process)
            except ORDINARY as error:
                sim.world.note(type(error).__name__, actor.kind)
            sim.world.sleep(int(rng.random() * 2 * sim.world.settings.think_ms))

    def _read(self, sim: Simulation, process: Process) -> tuple[TableState, ReadMark]:
        """Ask for a state of some age, check it, and return it with what had been committed when its read began."""
        grace_ms = sim.world.settings.config.log_grace_ms
        max_staleness_ms = sim.world.rng.choice((0, 0, SECOND_MS, grace_ms // 4))
        arrived_ms, arrival = process.clock.monotonic_ms(), sim.model.begin_read()
        state = process.table.read(max_staleness_ms=max_staleness_ms)
        if state.started_ms < arrived_ms - max_staleness_ms:
            raise Violation(f"a state of {state.started_ms} was served at {arrived_ms}, {max_staleness_ms} ms allowed")
        # Of a read that began after the question, what had been committed by the question is asked.
        mark = process.clock.marks[state.started_ms]
        if max_staleness_ms == 0 and mark.commit_count < arrival.commit_count:
            raise Violation(f"a read that began at {state.started_ms} was served to who came at {arrived_ms}")
        self._check(sim, mark, state)
        return state, mark

    def _check(self, sim: Simulation, mark: ReadMark, state: TableState) -> None:
        now_ms = self.surroundings.store_now_ms()
        if now_ms < state.view.store_now_ms + sim.world.settings.config.data_grace_ms:
            sim.model.check_read(mark, state.view, state.snapshot)
        else:  # nobody has promised that its files are still there
            sim.model.check_past_read(mark, _FOREVER_MS, state.snapshot)
        self._counts["served"] += 1

    def _ask_newest(self, sim: Simulation, process: Process) -> None:
        self._read(sim, process)

    def _ask_past(self, sim: Simulation, process: Process) -> None:
        state, mark = self._read(sim, process)
        self._at(sim, state, mark, self._draw_ms(sim, state))

    def _ask_changes(self, sim: Simulation, process: Process) -> None:
        state, mark = self._read(sim, process)
        times = sorted((self._draw_ms(sim, state), self._draw_ms(sim, state)))
        to_ms = sim.world.rng.choice((times[1], None))
        before = self._at(sim, state, mark, times[0])
        after = self._at(sim, state, mark, to_ms)
        if before is None or after is None:
            return
        found = compare_snapshots(before, after)
        added, removed = [m.path for m in found.added], [m.path for m in found.removed]
        there, then = {m.path for m in before.live}, [m.path for m in after.live]
        if not there.issuperset(removed) or not there.isdisjoint(added):
            raise Violation(f"changes from {times[0]} to {to_ms}: {removed[:1]} or {added[:1]} does not fit")
        if sorted([*there.difference(removed), *added]) != then:
            raise Violation(f"changes from {times[0]} to {to_ms} do not lead from the one state to the other")
        if {**before.schema, **found.changed_columns} != dict(after.schema):
            raise Violation(f"changes from {times[0]} to {to_ms} say {found.changed_columns} of the columns")
        self._counts["served_changes"] += 1

    def _select(self, sim: Simulation, process: Process) -> None:
        state, _ = self._read(sim, process)
        wanted = select_files(PATHS, _PARTITIONED, state.snapshot, filters=[PartitionFilter.equals("p", "a")])
        expected = [m.path for m in state.snapshot.live if PATHS.partition_of(m.path) == "p=a"]
        if [m.path for m in wanted] != expected:
            raise Violation(f"of partition p=a {len(wanted)} files were selected, not {len(expected)}")

    def _ask_for_commit(self, sim: Simulation, process: Process) -> None:
        """Read what somebody has written."""
        model, rng = sim.model, sim.world.rng
        accepted = [batch for batch in model.batches.values() if batch.is_acknowledged]
        if not accepted:
            return
        batch = rng.choice(accepted[-_RECENT:])
        began_ms = self.surroundings.store_now_ms()
        grace_ms = sim.world.settings.config.log_grace_ms
        read = process.table.read
        try:
            state = read(max_staleness_ms=rng.choice((0, SECOND_MS)))
            if find_commit(state, batch.batch_id) is None:
                wait = CommitWait(batch.batch_id, process.clock, grace_ms // 2, "-")
                state = await_commit(TableStore(sim.store, PATHS), wait, read=lambda: read(max_staleness_ms=0))
        except InvalidRequest as error:
            if batch.batch_id not in model.refused:
                raise Violation(f"batch {batch.batch_id} was never refused: {error}") from error
            return
        except NotFound as error:
            committed_ms = self._committed_ms.get(batch.batch_id)
            is_forgotten = committed_ms is not None and committed_ms + grace_ms < self.surroundings.store_now_ms()
            if not is_forgotten and batch.batch_id not in model.refused:
                raise Violation(f"batch {batch.batch_id} was accepted before {began_ms}: {error}") from error
            raise
        self._check(sim, process.clock.marks[state.started_ms], state)
        seen = {row for marker in state.snapshot.live for row in model.files[marker.path]}
        missing = batch.rows - model.removed.rows - seen
        if batch.batch_id not in model.committed or missing:
            raise Violation(f"batch {batch.batch_id} was said to be in a state without its rows {sorted(missing)[:5]}")
        self._counts["served_commits"] += 1

    def _draw_ms(self, sim: Simulation, state: TableState) -> int:
        rng = sim.world.rng
        return state.view.store_now_ms - int(rng.random() ** 2 * 12 * sim.world.settings.config.log_grace_ms)

    def _at(self, sim: Simulation, state: TableState, mark: ReadMark, at_ms: int | None) -> Snapshot | None:
        """Ask for the state at a time, and check it; ``None`` if it was refused."""
        try:
            snapshot = state.at(at_ms)
        except BelowHorizon:
            sim.model.check_refused_read(at_ms or 0)
            return None
        if at_ms is not None:
            # It may be an old view: what was stable then and what is now are checked by plain reads.
            sim.model.check_past_read(mark, at_ms, replace(snapshot, is_stable=False))
            self._counts["served_past"] += 1
        return snapshot
