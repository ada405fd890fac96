"""Who promotes paths in the simulation while everybody works on, and whether readers see complete columns alone (S4).

They are the scenario ``promoters``. Now and then one of the paths is filled no more. A data file shows by the spaces
behind its rows how many promoted paths its writer knew: that is the truth, whatever the log says of it. Columns are
named by their place, so that two who promote at once do the same.
"""

from functools import partial
from typing import Final

from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import InvalidRequest
from icedb_log.keys import parse_log_key
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.table.promoted_paths import add_promotions, parse_promotions
from icedb_log.table.stored_config import read_table_config

from icedb_sim.simulation.actors import Simulation, try_run
from icedb_sim.simulation.data import count_promoted
from icedb_sim.simulation.scenario import Part, Scenario, Surroundings
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Actor, SimClock, Violation

PROMOTER: Final = "promoter"
TEXT: Final = "props"
_COLUMN: Final = f"{TEXT}__k"
_MOST: Final = 4
_PROMOTE_RATE: Final = 0.3
_END_RATE: Final = 0.2


class PromotionScenario(Scenario):
    """So many actors promote paths, and read: what a snapshot's schema has, each of its data files has.

    Args:
        surroundings: What there is of the schedule.
    """

    name = "promoters"

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._counts: dict[str, int] = {}
        self._seen = {"complete": 0, "ended": 0, "past": 0}

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the promoters."""
        return (Part(PROMOTER, count, self._work_for_ever),)

    def on_put(self, key: str, body: bytes) -> None:
        """Remember of how many paths a data file has the columns; check what the commits before made live."""
        if key.startswith(PATHS.data_prefix):
            self._counts[key] = count_promoted(body)
        elif key.startswith(PATHS.log_prefix) and parse_log_key(key) is not None:
            self._check_truth()

    def check(self, sim: Simulation) -> None:
        """Check that all columns are shown in the end, and that no data file lacks one."""
        self._check_truth()
        config = read_table_config(TableStore(sim.store.inner, PATHS))
        hidden = [column for column in config.find_hidden(sim.model.types) if config.promoted[column]]
        if hidden and sim.model.landed:
            raise Violation(f"at rest nobody sees {', '.join(hidden)}, and no data file lacks them (S4)")
        self._seen["complete"] = len(config.promoted.keys() & sim.model.types.keys())
        self._seen["ended"] = sum(1 for path in config.promoted.values() if not path)

    def counters(self) -> dict[str, int]:
        """Return how many columns were shown in the end, or lost their path; and how many past snapshots had some."""
        return {f"promoted_{name}": count for name, count in self._seen.items()}

    def _check_truth(self) -> None:
        model = self.surroundings.model
        self._require_complete("by all commits", model.types, model.live_truth())

    def _require_complete(self, when: str, schema: object, live: object) -> bool:
        needed = max((int(c.removeprefix(_COLUMN)) + 1 for c in schema if c.startswith(_COLUMN)), default=0)  # type: ignore[attr-defined]
        lacking = [path for path in live if self._counts[path] < needed]  # type: ignore[attr-defined]
        if lacking:
            raise Violation(
                f"{when} {_COLUMN}{needed - 1} is shown, and {min(lacking)} has {self._counts[min(lacking)]} of "
                f"{needed} promoted columns (S4)"
            )
        return needed > 0

    def _work_for_ever(self, sim: Simulation, actor: Actor) -> None:
        clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
        reader = sim.make_reader(clock)
        while True:
            if rng.random() < _PROMOTE_RATE:
                try_run(sim, actor, partial(_promote, sim, clock))
            else:
                try_run(sim, actor, partial(self._read, sim, reader))

    def _read(self, sim: Simulation, reader: LogReader) -> None:
        view = reader.read()
        self._require(fold(view), "in a read")
        at_ms = view.store_now_ms - int(sim.world.rng.random() ** 2 * 4 * sim.world.settings.config.log_grace_ms)
        try:
            snapshot = fold(view, as_of_ms=at_ms)
        except InvalidRequest:
            return
        self._seen["past"] += self._require(snapshot, f"at {at_ms}")

    def _require(self, snapshot: Snapshot, when: str) -> bool:
        return self._require_complete(when, snapshot.schema, [marker.path for marker in snapshot.live])


def _promote(sim: Simulation, clock: SimClock) -> None:
    table, rng = TableStore(sim.store, PATHS), sim.world.rng
    promoted = read_table_config(table).promoted
    place = len(promoted)
    if promoted and rng.random() < _END_RATE:
        alter_table_config(table, {"promoted": {rng.choice(list(promoted)): ()}}, clock=clock)
        return
    if place == _MOST:
        return
    promotions = parse_promotions([f"{TEXT}.k{place}"], option="promote")
    alter_table_config(table, add_promotions({}, promotions, option="promote"), clock=clock)
