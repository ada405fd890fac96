"""A view of a :class:`~icedb_sim.tables.small_table.SmallTable`, with every actor a method."""

from typing import Any

from icedb_log.clean.vacuum import VacuumResult, vacuum_table
from icedb_log.commit.table import Table
from icedb_log.feed.feeds import FeedLimits, FeedResult, feed_view
from icedb_log.feed.views import ViewLag, create_view, open_source, read_view_lag
from icedb_log.keys import TablePaths
from icedb_log.log.fold import Snapshot, fold, newest_feed
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import MergeResult, merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.model import FeedState, LogView
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig

from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.row_files import RowFileMerger, read_live_rows
from icedb_sim.tables.small_table import DEFAULTS, SmallTable


class SmallView:
    """A view ``wh/<name>`` of a small table, or of another small view. After each step one millisecond passes.

    Args:
        table: Whose store and clock it shares.
        name: Name of the view.
        source: Keys of its source; by default the table's.
        is_created: Whether to create it at once.
        config: Fields of the configuration that differ from :data:`DEFAULTS`.
    """

    def __init__(
        self,
        table: SmallTable,
        *,
        name: str = "v",
        source: TablePaths | None = None,
        is_created: bool = True,
        **config: Any,
    ) -> None:
        self.table = table
        self.store = table.store
        self.clock = table.clock
        self.source = source or table.paths
        self.paths = self.source.sibling(name)
        self.config = TableConfig.create(
            name=name, view_of=self.source.name, view_query="select * from _rows", **{**DEFAULTS, **config}
        )
        if is_created:
            self.create()

    def create(self) -> None:
        """Create it."""
        create_view(TableStore(self.store, self.paths), self.config, clock=self.clock)
        self.clock.advance(1)

    def feed(self, *, limits: FeedLimits | None = None, feeder: RowFileFeeder | None = None) -> FeedResult:
        """Feed it once."""
        result = feed_view(*self.opened("feed"), feeder or RowFileFeeder(self.store, self.clock), limits=limits)
        self.clock.advance(1)
        return result

    def feed_all(self) -> int:
        """Feed it until nothing waits; return how many commits it took."""
        count = 0
        while (result := self.feed()).committed_key:
            count += result.commit_count + len(result.refused)
        return count

    def merge(self, *, full: bool = False) -> MergeResult:
        """Merge the view once."""
        merger = RowFileMerger(self.store, self.clock)
        result = merge_table(
            Table.open(
                TableStore(self.store, self.paths), clock=self.clock, owner="merge", reader=self.reader(self.paths)
            ),
            merger,
            options=MergeOptions(full=full),
        )
        self.clock.advance(1)
        return result

    def vacuum(self) -> VacuumResult:
        """Vacuum the view once."""
        result = vacuum_table(
            Table.open(TableStore(self.store, self.paths), clock=self.clock, reader=self.reader(self.paths))
        )
        self.clock.advance(1)
        return result

    def lag(self) -> ViewLag:
        """Read how far it is behind."""
        return read_view_lag(*self.opened())

    def opened(self, owner: str = "") -> tuple[Table, Table]:
        """Open the view and its source with fresh readers, without threads."""
        view = Table.open(
            TableStore(self.store, self.paths), clock=self.clock, owner=owner, reader=self.reader(self.paths)
        )
        return view, open_source(view, reader=self.reader(self.source))

    def reader(self, paths: TablePaths) -> LogReader:
        """Return a reader without threads, so that calls come in one order."""
        return LogReader(TableStore(self.store, paths), clock=self.clock, fetch=1)

    def view(self) -> LogView:
        """Read the view's log."""
        return self.reader(self.paths).read()

    def snapshot(self) -> Snapshot:
        """Read the view's log and fold it."""
        return fold(self.view())

    def ids(self) -> list[int]:
        """Return the ids of all live rows of the view, ascending."""
        return sorted(row["id"] for row in read_live_rows(self.store, self.snapshot()))


def grow_old(table: SmallTable) -> None:
    """Let every grace period of log and data files pass."""
    table.clock.advance(70_000)


def feed_state(view: SmallView) -> FeedState | None:
    """Return what a view's log says that it has taken."""
    return newest_feed(file.log.feed for file in view.view().files)
