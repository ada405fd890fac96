"""Changes of rows in the simulation: what an actor asks for, the data path that does it, and the truth about it.

An actor tells the oracle what it is going to ask for before it begins, under each id that its clock makes: one of
them becomes the commit's. What a commit takes away must have been asked for, and what was committed when the actor
began must be gone once its commit has landed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from icedb_log.jobs import CountJob, RowChange
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig

from icedb_sim.simulation.data import SimGroupMerger
from icedb_sim.simulation.world import SimClock, Violation, World
from icedb_sim.tables.row_tests import RowTest


class SimRowChanger(SimGroupMerger):
    """Merges groups, and takes rows away."""

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Parse the change; there is nothing else to check."""
        RowTest.parse(change.sql)

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Return all files: names say nothing about row numbers."""
        return tuple(files)

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """Count the rows that a deletion removes."""
        test = RowTest.parse(job.change.sql)
        rows_of = [orjson.loads(self.store.get(marker.path).body) for marker in job.files]
        return tuple(sum(1 for row in rows if test.holds(row)) for rows in rows_of)

    def keep_rows(self, rows: list[int], change: RowChange) -> tuple[list[int], int | None]:
        """Return the rows that are left, and how many a deletion removed."""
        test = RowTest.parse(change.sql)
        kept = [row for row in rows if not test.holds(row)]
        return kept, len(rows) - len(kept) if change.kind == "delete" else None


@dataclass(frozen=True, slots=True)
class Intent:
    """What an actor is going to ask for.

    Attributes:
        what: In words.
        wants: Whether a row of a partition is to go: partition path, row number.
        committed: Batches that were committed when it began: their rows have to go.
    """

    what: str
    wants: Callable[[str, int], bool]
    committed: frozenset[str]


class IntentClock(SimClock):
    """An actor's clock that lets the oracle know what the commits with its ids are meant to do."""

    def __init__(self, world: World, skew_ms: int, *, intent: Intent, intents: dict[str, Intent]) -> None:
        super().__init__(world, skew_ms)
        self._intent = intent
        self._intents = intents

    def new_id(self) -> str:
        """Return an id that stands for the intent."""
        made = super().new_id()
        self._intents[made] = self._intent
        return made


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows that a commit took away.

    Attributes:
        time_ms: Of the commit.
        number: How many commits had landed before.
        rows: What went.
    """

    time_ms: int
    number: int
    rows: frozenset[int]


@dataclass(slots=True)
class RemovedRows:
    """The truth about what was taken away.

    Attributes:
        intents: What the commits with these ids are meant to do.
        removals: In the order in which they landed.
        rows: All rows that are gone.
        partitions: Where each row lies.
    """

    intents: dict[str, Intent] = field(default_factory=dict)
    removals: list[Removal] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)
    partitions: dict[int, str] = field(default_factory=dict)

    def on_data(self, partition: str, rows: Iterable[int]) -> None:
        """Remember where rows lie."""
        self.partitions.update(dict.fromkeys(rows, partition))

    def on_commit(self, key: str, removal: Removal, *, intent: Intent, live: set[int], due: set[int]) -> None:
        """Take note of a commit of somebody who wants rows to go.

        Args:
            key: Its log file.
            removal: What went.
            intent: What was asked for.
            live: Rows that are live afterwards.
            due: Rows of the batches that were committed when it was asked for.
        """
        unasked = sorted(row for row in removal.rows if not intent.wants(self.partitions[row], row))
        if unasked:
            raise Violation(f"{key} was to {intent.what}, and took rows {unasked[:5]} away, too (M3)")
        left = sorted(row for row in due & live if intent.wants(self.partitions[row], row))
        if left:
            raise Violation(f"{key} was to {intent.what}, but rows {left[:5]} are still live (M3)")
        self.rows |= removal.rows
        if removal.rows:
            self.removals.append(removal)

    def before(self, number: int, *, at_ms: int | None = None) -> set[int]:
        """Return what the first commits had taken away, of those with a time up to ``at_ms``."""
        return set().union(
            *(
                removal.rows
                for removal in self.removals
                if removal.number < number and (at_ms is None or removal.time_ms <= at_ms)
            )
        )

    def since(self, number: int, *, at_ms: int | None = None) -> list[frozenset[int]]:
        """Return what each later commit took away, of those with a time up to ``at_ms``."""
        return [
            removal.rows
            for removal in self.removals
            if removal.number >= number and (at_ms is None or removal.time_ms <= at_ms)
        ]
