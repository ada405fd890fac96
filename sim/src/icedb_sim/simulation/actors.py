"""The actors: each runs the library's own functions over and over, as the services do.

An actor takes no notice of the faults that it meets beyond what the error types ask for. Whatever else is raised
is a violation.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import UUID

from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.changes.row_changes import ChangeResult, delete_rows, rewrite_partitions
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clean.deletion import CHUNK_KEYS
from icedb_log.clean.orphans import sweep_orphans
from icedb_log.clean.vacuum import VacuumBounds, vacuum_table
from icedb_log.clock import Clock, make_uuid7_hex
from icedb_log.commit.table import Acquired, Table, ignore_fence
from icedb_log.errors import CommitConflict, CommitOutcomeUnknown, Fenced, InvalidRequest, NotFound, Unavailable
from icedb_log.holds.leases import Lease
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.ingest.staging import stage_batch
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.log.requests import ChangeRequestId
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import Lane, MergeIndex, MergeLimits, MergeOptions
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import PartitionFilter, PartitionMatcher
from icedb_log.table.table_config import PartitionField, TableConfig

from icedb_sim.simulation.changes import Intent, IntentClock, SimRowChanger
from icedb_sim.simulation.data import BAD_BODY, ROW_BITS, SimBatchWriter, SimGroupMerger, encode_batch
from icedb_sim.simulation.facts import AuditWatch, SimBatch
from icedb_sim.simulation.faulty_store import FaultyStore
from icedb_sim.simulation.model import SimModel, SimReader
from icedb_sim.simulation.settings import (
    MAX_STALL_MS,
    PATHS,
    REQUEST_LIFE_MS,
    SECOND_MS,
    Settings,
    draw_orphan_policy,
)
from icedb_sim.simulation.world import Actor, SimClock, Violation, World
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.row_tests import RowTest

ORDINARY: Final = (Unavailable, CommitConflict, CommitOutcomeUnknown, Fenced, NotFound)
"""What an actor may meet at any time: it goes on with its next run."""

_LATE: Final = ("merger", "changer")
"""Who may find data files gone that it was about to read: it slept, and others have replaced them."""

_MAX_ROWS: Final = 5
_RECENT: Final = 4
_RETRY_RATE: Final = 0.5
_REPEAT_RATE: Final = 0.5
"""How often a change that failed is asked for again, under its id."""
_RESTS: Final = {"reader": 3, "janitor": 3, "changer": 6}
"""How much longer those rest who change nothing, or little, or much: steps are dear."""

_PARTITIONED: Final = TableConfig.create(name=PATHS.name, partition=(PartitionField(name="p", column="p"),))


@dataclass(frozen=True, slots=True)
class Change:
    """A change that an actor asks for.

    Attributes:
        what: In words.
        wants: Whether a row of a partition is to go.
        partition: The partition, of what is not about all of them.
        test: Which rows, of what is about rows.
        request: Under which it is asked for, also again (M7).
    """

    what: str
    wants: Callable[[str, int], bool]
    partition: str
    test: RowTest
    request: ChangeRequestId


@dataclass(slots=True)
class Simulation:
    """Everything that the actors of one schedule share."""

    world: World
    store: FaultyStore
    model: SimModel
    audit_watch: AuditWatch
    batch_count: int = 0
    bodies: dict[str, Callable[["Simulation", Actor], None]] = field(default_factory=dict)
    """What actors of each kind do."""
    asked: list[Change] = field(default_factory=list)
    """Changes that somebody asked for and has no answer to."""
    at_calm: list[Callable[["Simulation"], None]] = field(default_factory=list)
    """What is done first when the faults are over."""
    at_rest: list[Callable[["Simulation"], None]] = field(default_factory=list)
    """What else is worked off each time when the faults are over."""
    drops_tables: bool = False
    """Whether the table may be gone."""
    on_fence: Callable[[Acquired], None] = ignore_fence
    """Told of each fence that somebody has acquired."""
    begun_ms: dict[str, int] = field(default_factory=dict)
    """Since when who is at a run that may want a fence, and has none yet, by the world's time."""

    def open(
        self, clock: Clock, *, owner: str = "", reader: LogReader | None = None, paths: TablePaths = PATHS
    ) -> Table:
        """Open a table for a run."""
        table = Table.open(TableStore(self.store, paths), clock=clock, owner=owner, reader=reader)
        if owner:
            self.begun_ms[owner] = self.world.now_ms

        def on_fence(acquired: Acquired) -> None:
            self.begun_ms.pop(owner, None)
            self.on_fence(acquired)

        return replace(table, patience_ms=self.world.settings.patience_ms, on_fence=on_fence)

    def make_reader(self, clock: SimClock) -> LogReader:
        """Return a reader that fetches in the actor's own greenlet."""
        max_refresh_ms = self.world.settings.config.log_grace_ms // 2
        return SimReader(self.store, self.model, clock=clock, max_refresh_ms=max_refresh_ms)


def spawn_actor(sim: Simulation, kind: str, name: str) -> None:
    """Start an actor of a kind, with generators of its own and a clock that is wrong in its own way."""
    world, body = sim.world, sim.bodies[kind]
    rng = world.make_rng(name)
    skew_ms = _draw_skew_ms(world.settings, rng, kind)
    world.spawn(Actor(kind, name, lambda actor: body(sim, actor), skew_ms, rng, world.make_rng(f"{name} faults")))


def next_name(name: str) -> str:
    """Return the name of the actor that takes the place of one that crashed."""
    place, _, number = name.partition(".")
    return f"{place}.{int(number or 1) + 1}"


def flush_for_ever(sim: Simulation, actor: Actor) -> None:
    """Flush, again and again."""
    clock = SimClock(sim.world, actor.skew_ms)
    reader, writer = sim.make_reader(clock), SimBatchWriter(sim.store, clock)
    while True:
        try_run(
            sim,
            actor,
            lambda: flush_table(sim.open(clock, owner=actor.name, reader=reader), writer),
        )


class _DrawnFolds(MergeIndex):
    """Folds what the planner says, or any log files: which ones is no matter of correctness (M1).

    Log files of schedules are small, and each merge would fold all that name its inputs.
    """

    def __init__(self, sim: Simulation, actor: Actor) -> None:
        super().__init__(PATHS, sim.world.settings.config)
        self._rng = sim.world.make_rng(f"{actor.name} folds")

    def find_due_logs(self, groups: Iterable[MergeGroup]) -> frozenset[str]:
        """See :class:`MergeIndex`."""
        if self._rng.random() < 0.5:
            return super().find_due_logs(groups)
        share = self._rng.choice((0, 0.3, 0.7))
        return frozenset(file.key for file in self.log.active_files() if self._rng.random() < share)


def merge_for_ever(sim: Simulation, actor: Actor) -> None:
    """Merge, again and again: in one commit or many, in either lane or in full, with the index of the run before."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    reader, merger = sim.make_reader(clock), SimGroupMerger(sim.store, clock)
    index = _DrawnFolds(sim, actor)
    while True:
        dice = rng.random()
        limits = MergeLimits(commit_bytes=rng.choice((1, 1 << 30)))
        lane: Lane = "cold" if dice > 0.8 else "hot"
        options = MergeOptions(lane, full=dice < 0.1, limits=limits, cold_after_ms=10 * SECOND_MS)

        def run(options: MergeOptions = options) -> object:
            table = sim.open(clock, owner=actor.name, reader=reader)
            return merge_table(table, merger, options=options, index=index)

        try_run(sim, actor, run)


def clean_for_ever(sim: Simulation, actor: Actor) -> None:
    """Vacuum and sweep, again and again: in one part or many, and now and then only the first of them."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    reader = sim.make_reader(clock)
    audit = sim.audit_watch.open()
    policy = draw_orphan_policy(sim.world.seed)

    def vacuum(bounds: VacuumBounds) -> object:
        table = sim.open(clock, reader=reader)
        return vacuum_table(table, audit=audit, bounds=bounds)

    def sweep() -> object:
        return sweep_orphans(sim.open(clock, reader=reader), policy=policy, audit=audit)

    while True:
        if rng.random() < 0.3:
            try_run(sim, actor, sweep)
        else:
            chunk_keys = rng.choice((1, 2, CHUNK_KEYS))
            bounds = VacuumBounds(chunk_keys=chunk_keys, max_objects=rng.choice((None, 1)))
            try_run(sim, actor, partial(vacuum, bounds))


def produce_for_ever(sim: Simulation, actor: Actor) -> None:
    """Enqueue batches, and enqueue some of them again: after an error, and without any reason."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    mine: list[SimBatch] = []
    while True:
        unsure = [batch for batch in mine if not batch.is_acknowledged]
        dice = rng.random()
        if unsure and dice < 0.4:
            batch = rng.choice(unsure)
        elif mine and dice < 0.55:
            batch = rng.choice(mine[-_RECENT:])
        else:
            batch = make_batch(sim, clock)
            mine.append(batch)
        try_run(sim, actor, partial(enqueue, sim, batch))


def read_for_ever(sim: Simulation, actor: Actor) -> None:
    """Read the newest state and past ones."""
    clock = SimClock(sim.world, actor.skew_ms)
    reader = sim.make_reader(clock)
    while True:
        try_run(sim, actor, lambda: _read(sim, reader))


def hold_leases_for_ever(sim: Simulation, actor: Actor) -> None:
    """Lease a time, rely on it for a while, renew it, let it go."""
    clock = SimClock(sim.world, actor.skew_ms)
    reader = sim.make_reader(clock)
    while True:
        try_run(sim, actor, lambda: _hold_lease(sim, clock, reader))


def operate_for_ever(sim: Simulation, actor: Actor) -> None:
    """Change what the table takes, under everybody's feet, and retry what it refused."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    reader = sim.make_reader(clock)
    while True:
        if rng.random() < _RETRY_RATE:
            try_run(sim, actor, partial(_retry_some, sim, clock, reader))
            continue
        change = rng.choice(
            (
                {"evolution": "add_columns"},
                {"evolution": "widen"},
                {"on_bad_rows": "quarantine_rows"},
                {"on_bad_rows": "quarantine_batch"},
            )
        )
        try_run(sim, actor, partial(alter_table_config, TableStore(sim.store, PATHS), change, clock=clock))


def change_for_ever(sim: Simulation, actor: Actor) -> None:
    """Delete some rows of all partitions, or of one; remove a partition, now and then.

    What somebody was asked for and has not answered, because it failed, died or is still at it, is asked for again.
    """
    clock, own = SimClock(sim.world, actor.skew_ms), sim.world.make_rng(f"{actor.name} requests")
    reader = sim.make_reader(clock)
    while True:
        if sim.asked and own.random() < _REPEAT_RATE:
            change = own.choice(sim.asked)
        else:
            change = _draw_change(sim, clock, own)
            sim.asked.append(change)
        try_run(sim, actor, partial(_carry_out, sim, actor, reader, change))


def _draw_change(sim: Simulation, clock: SimClock, own: random.Random) -> Change:
    rng = sim.world.rng
    dice = rng.random()
    partition = rng.choice(("p=a", "p=b"))
    modulus = rng.randint(2, 12)
    test = RowTest(modulus, rng.randrange(modulus))
    what, wants = _draw_intent(dice, partition, test)
    request_id = str(UUID(hex=make_uuid7_hex(clock.now_ms(), own.getrandbits(74))))
    return Change(what, wants, partition, test, ChangeRequestId.of(request_id, what))


def _carry_out(sim: Simulation, actor: Actor, reader: LogReader, change: Change) -> None:
    model, what = sim.model, change.what
    intent = Intent(what, change.wants, frozenset(model.committed))
    clock = IntentClock(sim.world, actor.skew_ms, intent=intent, intents=model.removed.intents)
    table, sql = sim.open(clock, owner=actor.name, reader=reader), change.test.to_sql()
    changer, result = SimRowChanger(sim.store, clock), ChangeResult()
    try:
        if what.startswith("delete"):
            result = delete_rows(table, changer, sql, request=change.request)
        elif what.startswith("rewrite"):
            matches = PartitionMatcher((PartitionFilter.equals("p", change.partition[2:]),), _PARTITIONED)
            result = rewrite_partitions(table, changer, sql, matches=matches, request=change.request)
        else:
            remove_partitions(table, lambda _, infos: [info.path for info in infos if info.path == change.partition])
    except InvalidRequest:
        pass  # it took too long (W3), or its id is too old
    sim.asked[:] = [each for each in sim.asked if each is not change]
    if result.is_repeated:
        model.check_repeated(change.request.request_id, str(result.committed_key))


def _draw_intent(dice: float, partition: str, test: RowTest) -> tuple[str, Callable[[str, int], bool]]:
    if dice < 0.5:
        return f"delete rows {test}", lambda _, row: test.holds(row)
    if dice < 0.75:
        return f"rewrite {partition} without rows {test}", lambda where, row: where == partition and test.holds(row)
    return f"remove {partition}", lambda where, _: where == partition


def _retry_some(sim: Simulation, clock: SimClock, reader: LogReader) -> None:
    model = sim.model
    waiting = [batch_id for batch_id in sorted(model.retriable) if batch_id not in model.retried]
    if not waiting:
        return
    batch_id = sim.world.rng.choice(waiting)
    try:
        retry_quarantined(TableStore(sim.store, PATHS), batch_id, clock=clock, reader=reader)
    except InvalidRequest:
        return  # only by force, or not committed yet
    except NotFound:
        pass  # an earlier try went through
    model.retried.add(batch_id)


def try_run(sim: Simulation, actor: Actor, run: Callable[[], object]) -> None:
    """Run once, take note of an error that may be met at any time, and rest. Raises whatever else came."""
    try:
        run()
    except ORDINARY as error:
        if isinstance(error, NotFound) and not (sim.drops_tables or actor.kind in _LATE):
            raise Violation(f"{actor.name} misses something, and the table is there: {error}") from error
        name = type(error).__name__
        actor.errors[name] = actor.errors.get(name, 0) + 1
        sim.world.note(name, actor.kind)
    sim.begun_ms.pop(actor.name, None)
    rest_ms = sim.world.settings.think_ms * _RESTS.get(actor.kind, 1)
    sim.world.sleep(int(sim.world.rng.random() * rest_ms))


def make_batch(sim: Simulation, clock: SimClock) -> SimBatch:
    """Return a new batch, known to the oracle, with an id by this clock."""
    rng = sim.world.rng
    number = sim.batch_count
    sim.batch_count += 1
    rows = [(number << ROW_BITS) + n for n in range(rng.randint(1, _MAX_ROWS))]
    is_bad = rng.random() < 0.04
    split = rng.randint(0, len(rows))
    parts = {name: part for name, part in (("p=a", rows[:split]), ("p=b", rows[split:])) if part}
    sql_type = "BIGINT"
    if number % 12 == 0 and rng.random() < 0.5:
        sql_type = "VARCHAR"  # a conflict with what the column was before
    elif rng.random() < 0.1:
        sql_type = "DOUBLE"  # a widening, or a column that is wide from the start
    bad_count = rng.randint(1, 3) if rng.random() < 0.1 and not is_bad else 0
    body = BAD_BODY
    if not is_bad:
        body = encode_batch(parts, column=f"c{number % 12}", sql_type=sql_type, bad_count=bad_count)
    batch = SimBatch(str(UUID(hex=clock.new_id())), body, frozenset() if is_bad else frozenset(rows), bad_count)
    sim.model.batches[batch.batch_id] = batch
    return batch


def enqueue(sim: Simulation, batch: SimBatch) -> None:
    """Stage a batch; from then on it is accepted."""
    stage_batch(TableStore(sim.store, PATHS), body=batch.body, staging_format="ndjson", batch_id=batch.batch_id)
    batch.is_acknowledged = True


def _read(sim: Simulation, reader: LogReader) -> None:
    model, rng = sim.model, sim.world.rng
    mark = model.begin_read()
    view = reader.read()
    model.check_read(mark, view, fold(view))
    at_ms = view.store_now_ms - int(rng.random() ** 2 * 12 * sim.world.settings.config.log_grace_ms)
    longest_commit_ms = MAX_STALL_MS + REQUEST_LIFE_MS + sim.world.settings.clock_error_ms
    try:
        snapshot = fold(view, as_of_ms=at_ms, longest_commit_ms=longest_commit_ms)
    except InvalidRequest:
        model.check_refused_read(at_ms)
    else:
        model.check_past_read(mark, at_ms, snapshot)


def _hold_lease(sim: Simulation, clock: SimClock, reader: LogReader) -> None:
    model, world, rng = sim.model, sim.world, sim.world.rng
    log_grace_ms = world.settings.config.log_grace_ms
    ttl_ms = rng.randint(1, 6) * log_grace_ms
    at_ms = world.now_ms - int(rng.random() * 0.9 * log_grace_ms)
    lease_id = put_lease(TableStore(sim.store, PATHS), at_ms=at_ms, ttl_ms=ttl_ms, clock=clock)
    written_ms = model.lease_ends[lease_id] - ttl_ms
    mark = model.begin_read()
    view = reader.read()
    if at_ms <= written_ms - log_grace_ms or model.lease_ends[lease_id] <= view.store_now_ms:
        return  # it came too late to hold anything
    try:
        snapshot = fold(view, as_of_ms=at_ms)
    except InvalidRequest:
        return
    model.check_past_read(mark, at_ms, snapshot)
    lease = Lease(lease_id, at_ms, model.lease_ends[lease_id])
    model.hold_lease(lease, (marker.path for marker in snapshot.live))
    while model.is_lease_held(lease_id):
        clock.sleep_ms(int(rng.random() * log_grace_ms))
        mark = model.begin_read()
        view = reader.read()
        if not model.is_lease_held(lease_id):
            return
        # J4: what is tagged can be read, as often as one likes.
        model.check_past_read(mark, at_ms, fold(view, as_of_ms=at_ms))
        if rng.random() < 0.3:
            put_lease(TableStore(sim.store, PATHS), at_ms=at_ms, ttl_ms=ttl_ms, clock=clock, lease_id=lease_id)


def _draw_skew_ms(settings: Settings, rng: random.Random, kind: str) -> int:
    if kind == "producer":
        # Within what rule I3 allows, or far beyond: those batches are refused.
        most_ms = settings.config.id_skew_ms * rng.choice((1, 1, 5))
        return rng.randint(-most_ms, most_ms) if settings.skew_ms else 0
    return rng.randint(-settings.skew_ms, settings.skew_ms) // SECOND_MS * SECOND_MS


BODIES: Final[dict[str, Callable[[Simulation, Actor], None]]] = {
    "flusher": flush_for_ever,
    "merger": merge_for_ever,
    "janitor": clean_for_ever,
    "producer": produce_for_ever,
    "reader": read_for_ever,
    "lease": hold_leases_for_ever,
    "operator": operate_for_ever,
    "changer": change_for_ever,
}
"""What actors of each kind do in every schedule."""
