"""Erasures in the simulation: who asks for them and carries them on, and whether a certificate tells the truth.

They are the scenario ``erasers``.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.clean.orphans import sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import Clock
from icedb_log.erasure.erasure_run import MAX_RUNS, advance_erasure
from icedb_log.errors import InvalidRequest
from icedb_log.holds.erasures import Erasure, create_erasure, list_open_ids
from icedb_log.keys import parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.changes import Intent, IntentClock, SimRowChanger
from icedb_sim.simulation.data import read_staged_ids
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, SimClock, Violation
from icedb_sim.tables.row_tests import RowTest
from icedb_sim.tables.small_table import ANY_SHARE

ERASER: Final = "eraser"
CLEANER: Final = "janitor of erasures"
_MAX_REST_RUNS: Final = 40


class ErasureScenario(Scenario):
    """So many actors ask for erasures and carry them on; every certificate is checked when it is written.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "erasers"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._complete_count = 0
        self._model = surroundings.model
        self._store_now_ms = surroundings.store_now_ms
        self._exists = surroundings.exists
        self._ended: set[str] = set()
        self._refused_ids: set[str] = set()
        self._staged_ms: dict[str, int] = {}
        self._uploaded_ms: dict[str, int] = {}

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the erasers, and a janitor that also sweeps what was published."""
        return (Part(ERASER, count, erase_for_ever), Part(CLEANER, 1, clean_for_ever))

    def check(self, sim: Simulation) -> None:
        """Bring all erasures to their end."""
        finish_erasures(sim)

    def counters(self) -> dict[str, int]:
        """Return how many erasures are complete."""
        return {"erasures": self._complete_count}

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written."""
        if key.startswith(PATHS.staging_prefix):
            for batch_id in map(self._model.first_id, read_staged_ids(key, body)):
                if batch_id not in self._model.committed:
                    self._staged_ms[batch_id] = self._store_now_ms()
        elif key.startswith(PATHS.data_prefix):
            self._uploaded_ms[key] = self._store_now_ms()
        elif key.startswith(PATHS.log_prefix):
            if parse_log_key(key).commit_id in self._refused_ids and b'"seal":true' not in body:
                raise Violation(f"{key} deletes rows of an erasure that was refused (E3)")
            for batch_id in map(self._model.first_id, decode_log_file(key, body).batch_ids):
                self._staged_ms.setdefault(batch_id, self._store_now_ms())  # appended: accepted as it lands
        elif key.startswith(PATHS.erasures_prefix):
            self._check(key, Erasure.model_validate_json(body))

    def _check(self, key: str, erasure: Erasure) -> None:
        if key in self._ended:
            raise Violation(f"{key} is changed after its end (E1)")
        if not erasure.has_ended:
            return
        self._ended.add(key)
        if erasure.state == "refused":
            self._check_refusal(erasure)
            return
        if erasure.state != "complete" or erasure.checked_ms is None:
            raise Violation(f"erasure {erasure.erasure_id} ended as {erasure.state} (E1)")
        self._complete_count += 1
        model, what = self._model, f"the certificate of {erasure.erasure_id} for rows {erasure.condition}"
        test = RowTest.parse(erasure.condition)
        covered = {
            row
            for batch_id in model.committed
            # In the same second nobody can tell: the store cuts its times off.
            if self._staged_ms[batch_id] < erasure.requested_ms
            for row in model.batches[batch_id].rows
            if test.holds(row)
        }
        self._check_objects(erasure, what)
        self._check_files(erasure, covered, what)
        if erasure.is_row_count_exact and erasure.row_count > len(covered) + self._late_rows(erasure, test):
            raise Violation(f"{what} counts {erasure.row_count} rows, more than there ever were (E3)")

    def _check_objects(self, erasure: Erasure, what: str) -> None:
        named = {path for log in self._model.logs.values() for path, _ in log.markers}
        for key in erasure.objects:
            if self._exists(key):
                raise Violation(f"{what} says that {key} is gone, but it is there (E5)")
            if key in named and key in erasure.dead:
                raise Violation(f"{what} is written while a log file names {key} (E5)")

    def _check_files(self, erasure: Erasure, covered: set[int], what: str) -> None:
        live = self._model.live_truth()
        for key, rows in self._model.files.items():
            left = covered.intersection(rows)
            if not left or not self._exists(key):
                continue
            if key in live:
                raise Violation(f"{what} is written while rows {sorted(left)[:5]} are live in {key} (E2, E3)")
            if self._uploaded_ms[key] < (erasure.checked_ms or 0):
                raise Violation(f"{what} is written while {key} holds rows {sorted(left)[:5]} (E4, E5)")

    def _check_refusal(self, erasure: Erasure) -> None:
        """Check that an erasure is refused only after some runs that slept, and that none of them landed, nor will."""
        self._refused_ids.update(run.commit_id for run in erasure.runs)
        if len(erasure.runs) < MAX_RUNS:
            raise Violation(f"erasure {erasure.erasure_id} is refused for {erasure.refusal} (E3)")

    def _late_rows(self, erasure: Erasure, test: RowTest) -> int:
        """Count the rows that came after the request: a deletion may take some of them, too."""
        model = self._model
        late = (b for b in model.committed if self._staged_ms[b] >= erasure.requested_ms)
        return sum(test.holds(row) for batch_id in late for row in model.batches[batch_id].rows)


def erase_for_ever(sim: Simulation, actor: Actor) -> None:
    """Ask for erasures, and carry all open ones on."""
    reader = sim.make_reader(SimClock(sim.world, actor.skew_ms))
    while True:
        _try(sim, actor, partial(_erase_some, sim, actor, reader))


def clean_for_ever(sim: Simulation, actor: Actor) -> None:
    """Vacuum and sweep, now and then also what was published."""
    clock = SimClock(sim.world, actor.skew_ms)
    reader = sim.make_reader(clock)
    while True:
        _try(sim, actor, partial(_clean, sim, clock, reader))


def finish_erasures(sim: Simulation) -> None:
    """Bring all open erasures to their end, with the janitor's help, when all faults are over.

    Raises:
        Violation: One does not end.
    """
    clock = SimClock(sim.world)
    reader = sim.make_reader(clock)
    actor = Actor(ERASER, "rest", lambda _: None, 0, sim.world.rng, sim.world.rng)
    for _ in range(_MAX_REST_RUNS):
        open_ids = list_open_ids(TableStore(sim.store, PATHS))
        if not open_ids:
            return
        for erasure_id in open_ids:
            _advance(sim, actor, reader, erasure_id)
        sim.world.now_ms += sim.world.settings.config.orphan_age_ms + 2 * sim.world.settings.clock_error_ms
        _clean(sim, clock, reader)
    raise Violation(f"erasure {open_ids[0]} never ends (E5)")


def _erase_some(sim: Simulation, actor: Actor, reader: LogReader) -> None:
    rng = sim.world.rng
    open_ids = list_open_ids(TableStore(sim.store, PATHS))
    if not open_ids or rng.random() < 0.1:
        modulus = rng.randint(2, 12)
        condition = RowTest(modulus, rng.randrange(modulus)).to_sql()
        clock = SimClock(sim.world, actor.skew_ms)
        open_ids = (create_erasure(TableStore(sim.store, PATHS), condition=condition, clock=clock).erasure_id,)
    _advance(sim, actor, reader, rng.choice(open_ids))


def _advance(sim: Simulation, actor: Actor, reader: LogReader, erasure_id: str) -> None:
    model = sim.model
    # The commit is one of the ids that this clock makes. What the record says is read by then, too, but not known here.
    condition = Erasure.model_validate_json(sim.store.get(PATHS.erasure_key(erasure_id)).body).condition
    test = RowTest.parse(condition)
    intent = Intent(f"erase rows {test}", lambda _, row: test.holds(row), frozenset(model.committed))
    clock: Clock = IntentClock(sim.world, actor.skew_ms, intent=intent, intents=model.removed.intents)
    try:
        advance_erasure(
            sim.open(clock, owner=actor.name, reader=reader),
            SimRowChanger(sim.store, clock),
            erasure_id,
        )
    except InvalidRequest:
        return  # it took too long (W3)


def _clean(sim: Simulation, clock: SimClock, reader: LogReader) -> None:
    audit = sim.audit_watch.open()
    vacuum_table(sim.open(clock, reader=reader), audit=audit)
    if sim.world.rng.random() < 0.3:
        swept = sweep_orphans(sim.open(clock, reader=reader), policy=ANY_SHARE, audit=audit)
        if swept.walk.leftovers.get("published"):  # E5: what was published has to go, too
            sweep_leftovers(sim.open(clock, reader=reader), swept.walk, audit=audit)


def _try(sim: Simulation, actor: Actor, run: Callable[[], object]) -> None:
    try:
        run()
    except ORDINARY as error:
        sim.world.note(type(error).__name__, actor.kind)
    sim.world.sleep(int(sim.world.rng.random() * sim.world.settings.think_ms * 2))
