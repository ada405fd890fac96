"""A view in the simulation: who feeds it, and whether it gets each commit of its source once.

It is the scenario ``feeders``. In half of its schedules the view begins with the rows that the source has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from icedb_log.clean.orphans import sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.feed.feeds import BACKFILL_TURN, FeedLimits, feed_view
from icedb_log.feed.position import find_unfilled
from icedb_log.feed.views import create_view, open_source
from icedb_log.jobs import FeedJob, FeedOutput, RefusedCommit, SourceCommit
from icedb_log.keys import log_name, parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.object_store import ObjectStore, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.data import ROW_BITS, SimGroupMerger, write_rows
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, SimClock, Violation
from icedb_sim.tables.small_table import ANY_SHARE

FEEDER: Final = "feeder"
VIEW: Final = PATHS.sibling("view")
_POISON: Final = 8
"""A view cannot take commits with rows of each so manyth batch."""
_BACKFILL_RATE: Final = 0.5
"""In so many schedules the view begins with the rows of its source."""
_MAX_REST_RUNS: Final = 200


class ViewScenario(Scenario):
    """So many actors create a view of the table, feed it, merge it and clean it; it is known what it must have.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "feeders"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self.appended: dict[str, tuple[int, ...]] = {}
        self.skipped: set[str] | None = None
        self.fed: dict[int, str] = {}
        self.decided: set[str] = set()
        self.base_files: dict[str, tuple[int, ...]] = {}
        self._base_logs: frozenset[str] = frozenset()
        self._backfilled: tuple[int, ...] = ()
        self._feeds_beside_backfill = 0
        self._source: dict[str, LogFile] = {}
        self._files: dict[str, tuple[int, ...]] = {}
        self._logs: set[str] = set()
        self._gone: set[str] = set()
        self._before: set[str] = set()

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the feeders."""
        return (Part(FEEDER, count, feed_for_ever),)

    def rest(self, sim: Simulation) -> None:
        """Feed the view until nothing waits."""
        work_off_view(sim)

    def check(self, sim: Simulation) -> None:
        """Check what the view has."""
        check_view(sim, self)

    def counters(self) -> dict[str, int]:
        """Return how many rows the view was fed."""
        return {"fed_rows": len(self.fed)}

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written."""
        if key.startswith((PATHS.data_prefix, VIEW.data_prefix)):
            self._files[key] = tuple(orjson.loads(body))
        elif key.startswith(PATHS.log_prefix):
            log = self._source[log_name(key)] = decode_log_file(key, body)
            if is_append(key, body):
                rows = (row for marker in log.markers for row in self._files[marker.path])
                self.appended.setdefault(log_name(key), tuple(rows))
        elif key.startswith(VIEW.log_prefix):
            self._on_view_log(key, body)
        elif key == PATHS.view_key(VIEW.name):
            self._on_registration(orjson.loads(body))

    def on_delete(self, key: str) -> None:
        """Check that a log file of the source may go."""
        name = log_name(key)
        if key.startswith(PATHS.log_prefix) and self.wants(name):
            raise Violation(f"{key} is deleted, but the view has not taken it (V4)")
        if key.startswith(PATHS.log_prefix) and name in self._base_logs and self._is_filling:
            raise Violation(f"{key} is deleted, but the view has not taken all that it begins with (V4)")
        self._gone.add(name)

    def wants(self, name: str) -> bool:
        """Whether a commit has to be in the view, and no commit of the view has decided it yet."""
        if self.skipped is None or name not in self.appended:
            return False
        return name not in self.skipped and name not in self.decided

    def expected_rows(self) -> set[int]:
        """Return the rows that the view has to have in the end."""
        names = self.appended.keys() - (self.skipped or set())
        parts = (*(self.appended[name] for name in names), *self.base_files.values())
        return {row for rows in parts if not _is_poisoned(rows) for row in rows}

    def refused(self) -> set[str]:
        """Return what the view refuses in the end, by the names of the records."""
        names = self.appended.keys() - (self.skipped or set())
        refused = {name for name in names if _is_poisoned(self.appended[name])}
        rows = (self.base_files[path] for path in sorted(self.base_files, reverse=True))
        return refused | {f"file-{place}" for place, each in enumerate(rows) if _is_poisoned(each)}

    @property
    def _is_filling(self) -> bool:
        return any(True for _ in find_unfilled(self._backfilled, len(self.base_files)))

    def _on_registration(self, registration: dict[str, Any]) -> None:
        if self.skipped is not None:
            raise Violation("the view is registered again, though nobody detached it (V3)")
        if registration["state"] == "pending":
            self._before = set(self.appended)
        else:
            # What was there before the view, and went before anybody could list it, is skipped, too.
            self.skipped = {*registration["skip"], *(self._gone & self._before)}
            if registration["backfill"]:
                self._begin(registration["base"])

    def _begin(self, base: list[str]) -> None:
        """Take note of the rows that the view begins with: all that were appended by then, and not removed."""
        logs = [self._source[name] for name in base]
        dead = {marker.path for log in logs for marker in log.markers if not marker.is_live}
        live = {marker.path for log in logs for marker in log.markers if marker.is_live} - dead
        self._base_logs = frozenset(base)
        self.base_files = {path: self._files[path] for path in live}
        rows = [row for each in self.base_files.values() for row in each]
        before = {row for name in (self.skipped or set()) & self.appended.keys() for row in self.appended[name]}
        if len(rows) != len(set(rows)) or not before.issuperset(rows):
            raise Violation("the view begins with rows that are there twice, or are fed as well (V3)")
        lost = before.difference(rows) - self.surroundings.model.removed.rows
        if lost:
            raise Violation(f"the view neither begins with rows {sorted(lost)[:3]} nor is fed them (V3)")

    def _on_view_log(self, key: str, body: bytes) -> None:
        log = decode_log_file(key, body)
        if key in self._logs or not is_append(key, body):
            return
        self._logs.add(key)
        known = self.expected_rows()
        for marker in log.markers:
            for row in self._files[marker.path]:
                if row in self.fed:
                    raise Violation(f"row {row} is fed by {key}, but was fed by {self.fed[row]} already (V1)")
                if row not in known:
                    raise Violation(f"row {row} is fed by {key}, but is none of the view's (V3, V5)")
                self.fed[row] = key
        if log.feed is not None:
            self.decided.update(log.feed.names)
            has_turned = not self._is_filling or log.feed.backfilled != self._backfilled
            self._feeds_beside_backfill = 0 if has_turned else self._feeds_beside_backfill + 1
            if self._feeds_beside_backfill >= BACKFILL_TURN:
                raise Violation(f"{key} and {BACKFILL_TURN - 1} feeds before it took nothing of the backfill (V6)")
            self._backfilled = log.feed.backfilled


class SimViewFeeder:
    """Copies the rows of commits into one data file; it refuses those with a poisoned row.

    Args:
        store: Where data files are and go.
        clock: For ids.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """Run a feed job. Raises NotFound."""
        taken: list[SourceCommit] = []
        refused: list[RefusedCommit] = []
        rows: list[int] = []
        for commit in job.commits:
            read = [row for marker in commit.files for row in orjson.loads(self._store.get(marker.path).body)]
            if _is_poisoned(tuple(read)):
                refused.append(RefusedCommit(commit, "poison"))
            else:
                taken.append(commit)
                rows += read
        files: tuple[FileMarker, ...] = ()
        if rows:
            marker = write_rows(
                TableStore(self._store, job.paths), partition="", rows=rows, clock=self._clock, time_ms=job.time_ms
            )
            files = (marker,)
        return FeedOutput(files, job.schema, tuple(taken), tuple(refused), (), len(rows), len(rows))


@dataclass(frozen=True, slots=True)
class FeedReaders:
    """Readers of a view's log and its source's, kept by an actor from one run to the next."""

    view: LogReader
    source: LogReader


def feed_for_ever(sim: Simulation, actor: Actor) -> None:
    """Create the view, feed it, merge it and clean it, again and again."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    readers = _make_readers(sim, clock)
    while True:
        dice = rng.random()
        run: Callable[[], object] = partial(_feed, sim, clock, readers, actor.name, max_commits=rng.choice((1, 256)))
        if dice > 0.9:
            run = partial(_vacuum, sim, clock, readers)
        elif dice > 0.7:
            run = partial(_merge, sim, clock, readers, actor.name, full=dice > 0.8)
        _try(sim, actor, run)


def work_off_view(sim: Simulation) -> None:
    """Feed the view until nothing waits, merge and clean it; the faults are over."""
    clock = SimClock(sim.world)
    readers = _make_readers(sim, clock)
    for _ in range(_MAX_REST_RUNS):
        if not _feed(sim, clock, readers, "rest", max_commits=256):
            break
    else:
        raise Violation("feeds never come to rest (V1)")
    merger = SimGroupMerger(sim.store, clock)
    merge_table(sim.open(clock, owner="rest", reader=readers.view, paths=VIEW), merger)
    vacuum_table(sim.open(clock, reader=readers.view, paths=VIEW))
    sweep_orphans(sim.open(clock, reader=readers.view, paths=VIEW), policy=ANY_SHARE)


def check_view(sim: Simulation, watch: ViewScenario) -> None:
    """Check at rest that the view has each row of its source's commits once, and a record of each refusal."""
    snapshot = fold(_make_readers(sim, SimClock(sim.world)).view.read())
    rows = [row for marker in snapshot.live for row in orjson.loads(sim.store.inner.get(marker.path).body)]
    expected = watch.expected_rows()
    if sorted(rows) != sorted(expected):
        wrong = sorted(set(rows) ^ expected)
        raise Violation(f"at rest the view has {len(rows)} rows instead of {len(expected)}, e.g. {wrong[:3]} (V1)")
    refused = watch.refused()
    recorded = {
        log_name(info.key).removesuffix(".json") for info in list_all(sim.store.inner, VIEW.refused_prefix).objects
    }
    if refused != recorded:
        raise Violation(f"refused commits without a record, or the reverse: {sorted(refused ^ recorded)[:1]} (V5)")


def _vacuum(sim: Simulation, clock: SimClock, readers: FeedReaders) -> None:
    vacuum_table(sim.open(clock, reader=readers.view, paths=VIEW))


def _merge(sim: Simulation, clock: SimClock, readers: FeedReaders, owner: str, *, full: bool) -> None:
    view = sim.open(clock, owner=owner, reader=readers.view, paths=VIEW)
    merge_table(view, SimGroupMerger(sim.store, clock), options=MergeOptions(full=full))


def _feed(sim: Simulation, clock: SimClock, readers: FeedReaders, owner: str, *, max_commits: int) -> bool:
    try:
        read_table_config(TableStore(sim.store, VIEW))
    except NotFound:
        _create(sim, clock)
    view = sim.open(clock, owner=owner, reader=readers.view, paths=VIEW)
    source = open_source(view, reader=readers.source)
    result = feed_view(view, source, SimViewFeeder(sim.store, clock), limits=FeedLimits(max_commits=max_commits))
    return result.committed_key is not None


def _create(sim: Simulation, clock: SimClock) -> None:
    fields = {**dict(sim.world.settings.config), "name": VIEW.name, "view_of": PATHS.name, "view_query": "_rows"}
    fields["view_backfill"] = "on" if sim.world.make_rng("view").random() < _BACKFILL_RATE else "off"
    try:
        create_view(TableStore(sim.store, VIEW), TableConfig.create(**fields), clock=clock)
    except InvalidRequest:
        return  # another one was faster


def _make_readers(sim: Simulation, clock: SimClock) -> FeedReaders:
    source: LogReader = sim.make_reader(clock)
    return FeedReaders(source.of_table(VIEW), source)


def is_append(key: str, body: bytes) -> bool:
    """Whether a log file is that of an append, and no seal."""
    return not parse_log_key(key).is_merged and b'"seal":true' not in body


def _is_poisoned(rows: tuple[int, ...]) -> bool:
    return any((row >> ROW_BITS) % _POISON == _POISON - 1 for row in rows)


def _try(sim: Simulation, actor: Actor, run: Callable[[], object]) -> None:
    try:
        run()
    except ORDINARY as error:
        sim.world.note(type(error).__name__, actor.kind)
    sim.world.sleep(int(sim.world.rng.random() * sim.world.settings.think_ms))
