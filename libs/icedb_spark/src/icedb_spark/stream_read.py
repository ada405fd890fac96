"""A stream: a follower of the table's log whose positions are Spark's offsets.

Spark writes an offset into its checkpoint before it reads up to it, and asks for the same range again after a restart:
the follower gives the same files each time, so each appended row comes once. The object lives in the Python worker of
the driver as long as the query runs; what tasks get of it is only how files become rows.
"""

import threading
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import structlog
from icedb_engine.work import DataFile
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError
from icedb_log.feed.follower import Follower
from icedb_log.feed.position import NO_BUDGET, Budget, read_position
from icedb_log.holds.leases import release_lease
from icedb_log.store.table_store import TableStore
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.partitions import PartitionMatcher, read_partition_values
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from icedb_spark.options import ReadOptions, StreamOptions
from icedb_spark.scan import Scan, deal_files
from icedb_spark.values import PinnedSnapshot

RENEWALS_PER_LEASE: Final = 3

_log = structlog.get_logger(__name__)


class IceDBStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a table.

    Args:
        scan: How files become rows; the stream keeps these columns and types as long as it runs.
        options: Which rows.
        stream: Where to begin, how much at once.
        pinned: What was read to learn the columns; its lease, if there is one, is not needed.
    """

    def __init__(self, scan: Scan, options: ReadOptions, stream: StreamOptions, pinned: PinnedSnapshot) -> None:
        self._scan = scan
        self._options = options
        self._stream = stream
        self._spare_lease_id = pinned.lease_id
        self._target: frozenset[str] | None = None
        self._follower: Follower | None = None
        self._is_stopped: threading.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None, "_is_stopped": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """Return where a new query begins.

        Raises:
            BelowHorizon: ``startingFrom`` lies before what the log remembers.
            IceDBError: The table cannot be followed.
        """
        stream = self._stream
        position = self._follow().begin(starting_ms=stream.starting_ms, starts_with_all=stream.starts_with_all)
        return position.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """Return up to where the next batch reads; ``start`` if there is nothing new.

        Raises:
            PositionLost: The checkpoint is older than the log's memory.
            IceDBError: The table cannot be followed.
        """
        budget = NO_BUDGET
        if not isinstance(limit, ReadAllAvailable):
            max_files = limit.max_files if isinstance(limit, ReadMaxFiles) else self._stream.max_files
            budget = Budget(max_files, self._stream.max_bytes)
        position = read_position(start)
        found = self._follow().look(position, budget=budget, until=self._target)
        # The very same text, or Spark takes it for something new.
        return start if found == position else found.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Return how many files a batch may have."""
        return ReadMaxFiles(self._stream.max_files)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Remember what is there now: the query ends when that is read."""
        self._target = self._follow().list_appends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what the tasks of a batch read: always the same for the same offsets.

        Raises:
            PositionLost: A log file in between is gone.
            IceDBError: The log cannot be read.
        """
        follower = self._follow()
        files = follower.files_between(read_position(start), read_position(end))
        matcher = PartitionMatcher(self._options.filters, follower.config)
        paths = self._scan.paths
        chosen = tuple(file for file in files if matcher.matches(read_partition_values(paths.partition_of(file.path))))
        if self._scan.where is not None:
            pruner = FilePruner(self._scan.where, follower.config, schema=self._scan.schema)
            chosen = pruner.select(chosen)
        if not chosen:
            return []
        return deal_files([DataFile.of(file) for file in chosen], split_bytes=self._options.split_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        return self._scan.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what a batch needed that is done."""
        try:
            self._follow().settle(read_position(end))
        except IceDBError as error:
            # What is not given back ends by itself; a batch that is done does not fail for it.
            _log.warning("lease not released, it ends by itself", table=self._scan.paths.name, error=str(error))

    def stop(self) -> None:
        """Renew nothing any more. What is held stays for as long as ``lease`` says, for a query that comes back."""
        if self._is_stopped is not None:
            self._is_stopped.set()

    def _follow(self) -> Follower:
        if self._follower is None:
            place = TableStore(self._options.place.store.open().store, self._scan.paths)
            self._follower = Follower(
                Table.open(place, clock=SystemClock(), owner="spark stream"),
                lease_ms=self._stream.lease_ms,
                on_gap=None if self._stream.fails_on_data_loss else _warn_of_gap,
            )
            if self._spare_lease_id is not None:
                release_lease(place, self._spare_lease_id)
                self._spare_lease_id = None
            if self._stream.lease_ms:
                self._is_stopped = threading.Event()
                every_s = self._stream.lease_ms / RENEWALS_PER_LEASE / 1000
                keeper = threading.Thread(
                    target=_renew_for_ever, args=(self._follower, self._is_stopped, every_s), daemon=True
                )
                keeper.start()
        return self._follower


def _warn_of_gap(gap: str) -> None:
    _log.warning("position lost, rows may be missing", problem=gap)


def _renew_for_ever(follower: Follower, is_stopped: threading.Event, every_s: float) -> None:
    """Renew leases while batches run, however long they take."""
    while not is_stopped.wait(every_s):
        try:
            follower.renew_leases()
        except IceDBError as error:
            _log.warning("lease not renewed, tried again", error=str(error))
