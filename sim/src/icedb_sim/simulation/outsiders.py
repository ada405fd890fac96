"""Jobs from outside in the simulation: those that append files of their own, and one that follows the table.

They are the scenario ``outsiders``. An appender repeats what it is not sure of, and what one that died has left, under
the same id, with other files. The follower's checkpoint outlives it: one that crashes is replaced by another, which
delivers again what was planned and not noted.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, InvalidRequest
from icedb_log.feed.follower import Follower, PositionLost
from icedb_log.feed.position import NO_BUDGET, Budget, read_position
from icedb_log.ingest.append import AppendJob, append_files, make_batch_id
from icedb_log.keys import log_name
from icedb_log.log.codec import decode_log_file
from icedb_log.model import FileMarker
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.data import ROW_BITS, write_rows
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.views import is_append
from icedb_sim.simulation.world import Actor, SimClock, Violation

APPENDER: Final = "appender"
FOLLOWER: Final = "follower"
_MAX_PENDING: Final = 3
_MAX_REST_LOOKS: Final = 300
_RENEWAL_RATE: Final = 0.3
_BUDGETS: Final = (None, 1, 1, 3)
"""Files that a follower delivers at once: one that delivers one stays behind."""


class OutsiderScenario(Scenario):
    """So many actors append files of their own, and one follows the table: what it must have, its checkpoint, its sink.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "outsiders"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self.checkpoint: dict[str, Any] | None = None
        self.planned: dict[str, Any] | None = None
        self.delivered: dict[int, int] = {}
        self.delivered_count = 0
        self.lost_count = 0
        self.pending: list[Write] = []
        self._appended: dict[str, tuple[int, ...]] = {}
        self._skipped: set[str] = set()
        self._first: frozenset[int] = frozenset()
        self._files: dict[str, tuple[int, ...]] = {}
        self._gone: set[str] = set()

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the appenders and the follower."""
        return (
            Part(APPENDER, count, partial(append_for_ever, watch=self)),
            Part(FOLLOWER, 1, partial(follow_for_ever, watch=self)),
        )

    def rest(self, sim: Simulation) -> None:
        """Deliver what is left."""
        finish_following(sim, self)

    def counters(self) -> dict[str, int]:
        """Return what the follower got, and how often it had to begin anew."""
        return {"delivered_rows": self.delivered_count, "lost_positions": self.lost_count}

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written."""
        if key.startswith(PATHS.data_prefix):
            self._files[key] = tuple(orjson.loads(body))
        elif key.startswith(PATHS.log_prefix) and is_append(key, body):
            rows = (row for marker in decode_log_file(key, body).markers for row in self._files[marker.path])
            self._appended.setdefault(log_name(key), tuple(rows))

    def on_delete(self, key: str) -> None:
        """Take note of an object that is about to be deleted."""
        self._gone.add(log_name(key))

    def begin(self, position: dict[str, Any], first: tuple[FileMarker, ...]) -> None:
        """Take note that a follower begins, with these files: what came and went before its look is none of its own."""
        self._skipped = {*position["taken"], *self._gone}
        self._first = frozenset(row for marker in first for row in self._files[marker.path])
        self.checkpoint, self.planned, self.delivered = position, None, {}

    def deliver(self, end: dict[str, Any], files: tuple[FileMarker, ...]) -> None:
        """Take what lies up to a position, and the position: both or nothing."""
        allowed = self.expected_rows()
        for marker in files:
            for row in self._files[marker.path]:
                if row in self.delivered:
                    raise Violation(f"row {row} is delivered twice (L1)")
                if row not in allowed:
                    raise Violation(f"row {row} is delivered, but is none of the follower's (L1)")
                self.delivered[row] = 1
        self.delivered_count += sum(len(self._files[marker.path]) for marker in files)
        self.checkpoint, self.planned = end, None

    def find_missed(self) -> set[int]:
        """Return the rows that were not delivered, and of which the log says nothing any more."""
        gone = (self._appended.keys() & self._gone) - self._skipped
        return {row for name in gone for row in self._appended[name]} - self.delivered.keys()

    def expected_rows(self) -> set[int]:
        """Return the rows that the follower has to have in the end."""
        names = self._appended.keys() - self._skipped
        return {row for name in names for row in self._appended[name]} | self._first


@dataclass(slots=True)
class Write:
    """A write that nobody is done with. Whoever knows its id may repeat it."""

    rows: dict[str, list[int]]
    column: str
    batch_id: str = ""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Data files of one try, and the store's clock before the first of them."""

    files: tuple[FileMarker, ...]
    begun_ms: int


def append_for_ever(sim: Simulation, actor: Actor, watch: OutsiderScenario) -> None:
    """Write files and append them; repeat what failed, also of those who died, and now and then what did not."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    pending = watch.pending
    while True:
        is_new = not pending or (len(pending) < _MAX_PENDING and rng.random() < 0.5)
        write = _draw_write(sim) if is_new else rng.choice(pending)
        try:
            if is_new and rng.random() < 0.5:
                # As a job does that nobody repeats: its id is as young as its commit, and its files may be old (A3).
                written = _write_files(sim, clock, write)
                _name_write(sim, clock, write, pending)
            else:
                if is_new:
                    _name_write(sim, clock, write, pending)
                written = _write_files(sim, clock, write)
            _append(sim, clock, write, written, actor.name)
            if rng.random() < 0.7 and write in pending:
                pending.remove(write)
        except ORDINARY as error:
            sim.world.note(type(error).__name__, actor.kind)
        except InvalidRequest:
            if write in pending:
                pending.remove(write)  # a column clashes, or nobody can tell any more
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))


def _draw_write(sim: Simulation) -> Write:
    rng = sim.world.rng
    number = sim.batch_count
    sim.batch_count += 1
    rows = [(number << ROW_BITS) + n for n in range(rng.randint(1, 4))]
    split = rng.randint(0, len(rows))
    parts = {name: part for name, part in (("p=a", rows[:split]), ("p=b", rows[split:])) if part}
    return Write(parts, f"c{number % 12}")


def _name_write(sim: Simulation, clock: SimClock, write: Write, pending: list[Write]) -> None:
    write.batch_id = make_batch_id(clock, store_now_ms=_store_now_ms(sim))
    rows = frozenset(row for part in write.rows.values() for row in part)
    sim.model.batches[write.batch_id] = SimBatch(write.batch_id, b"", rows)
    pending.append(write)


def _store_now_ms(sim: Simulation) -> int:
    return sim.store.list_page(PATHS.config_key, limit=1).store_now_ms


def _write_files(sim: Simulation, clock: SimClock, write: Write) -> WrittenFiles:
    begun_ms = _store_now_ms(sim)
    files = tuple(
        write_rows(TableStore(sim.store, PATHS), partition=partition, rows=rows, clock=clock, time_ms=clock.now_ms())
        for partition, rows in write.rows.items()
    )
    return WrittenFiles(files, begun_ms)


def _append(sim: Simulation, clock: SimClock, write: Write, written: WrittenFiles, owner: str) -> None:
    job = AppendJob(written.files, {write.column: "BIGINT"}, write.batch_id, clock.new_id(), written.begun_ms)
    wait_ms = sim.world.rng.choice((0, 0, 5000))
    result = append_files(
        Table.open(TableStore(sim.store, PATHS), clock=clock, owner=owner, reader=sim.make_reader(clock)),
        job,
        wait_ms=wait_ms,
    )
    if result.is_duplicate and write.batch_id not in sim.model.committed:
        raise Violation(f"batch {write.batch_id} is called a duplicate, but was never committed (A2)")


def follow_for_ever(sim: Simulation, actor: Actor, watch: OutsiderScenario) -> None:
    """Follow the table from the checkpoint on, in steps; begin anew where the position is lost."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    follower: Follower | None = None
    budget = NO_BUDGET
    while True:
        try:
            if follower is None or rng.random() < 0.1:
                follower = _open(sim, clock)
                budget = Budget(rng.choice(_BUDGETS))
            if rng.random() < _RENEWAL_RATE:
                follower.renew_leases()
            _step(sim, follower, watch, budget)
        except (*ORDINARY, BelowHorizon) as error:
            sim.world.note(type(error).__name__, actor.kind)
        except PositionLost:
            watch.lost_count += 1
            watch.checkpoint = watch.planned = None
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms * rng.choice((1, 1, 8))))


def finish_following(sim: Simulation, watch: OutsiderScenario) -> None:
    """Deliver what is left, now that the faults are over, and check that nothing is missing."""
    follower = _open(sim, SimClock(sim.world))
    for _ in range(_MAX_REST_LOOKS):
        if watch.checkpoint is None:
            return
        try:
            is_moved = _step(sim, follower, watch, Budget(sim.world.rng.choice(_BUDGETS)))
        except PositionLost:
            watch.checkpoint = None  # the quiet lasted longer than any lease
            return
        if not is_moved:
            break
    else:
        raise Violation("the follower never comes to rest (L1)")
    missing = watch.expected_rows() - watch.delivered.keys()
    if missing:
        raise Violation(f"at rest the follower misses {len(missing)} rows, e.g. {min(missing)} (L1, L2)")


def _open(sim: Simulation, clock: SimClock) -> Follower:
    log_grace_ms = sim.world.settings.config.log_grace_ms
    lease_ms = sim.world.rng.choice((0, 3 * log_grace_ms))
    table = Table.open(TableStore(sim.store, PATHS), clock=clock, reader=sim.make_reader(clock))
    return Follower(table, lease_ms=lease_ms)


def _draw_start(sim: Simulation) -> dict[str, Any]:
    """Return with what a follower begins: what comes from now on, what came after a time, or all rows."""
    rng = sim.world.rng
    ago_ms = int(rng.random() * sim.world.settings.config.log_grace_ms)
    return rng.choice(({}, {"starting_ms": _store_now_ms(sim) - ago_ms}, {"starts_with_all": True}))


def _step(sim: Simulation, follower: Follower, watch: OutsiderScenario, budget: Budget) -> bool:
    if watch.checkpoint is None:
        position = follower.begin(**_draw_start(sim))
        first = follower.files_between(position, replace(position, open=None))
        watch.begin(position.to_json(), first)
        return True
    start = read_position(watch.checkpoint)
    if watch.planned is None:
        missed = watch.find_missed()
        end = follower.look(start, budget=budget)
        if missed:
            raise Violation(f"a position is called good that has missed {len(missed)} rows, e.g. {min(missed)} (L2)")
        if end == start:
            return False
        watch.planned = end.to_json()
    files = follower.files_between(start, read_position(watch.planned))
    for marker in files:
        sim.store.get(marker.path)
    watch.deliver(watch.planned, files)
    follower.settle(read_position(watch.checkpoint))
    return True
