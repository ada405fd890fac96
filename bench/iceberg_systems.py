"""Ours in the benchmark of the Iceberg catalog: a publication of ten files more, by a process that published before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icedb_iceberg import IcebergWriter, publish_table
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.keys import publication_id_of
from icedb_log.publish.model import Publication
from icedb_log.store.object_store import list_all
from icedb_log.store_settings import open_warehouse

from bench.figures import OURS, Figure, TakesTurns
from bench.snapshot_tables import TABLE, log_file_of, marker
from bench.snapshot_work import FIRST_COMMIT_MS, STEP_MS

NEW_FILES: Final = 10
HISTORY: Final = 100
KB: Final = 1000


def publish_first(root: Path) -> None:
    """Publish the table of a warehouse for the first time, which takes longer than an engine waits if it is large."""
    publish_table(_open(root), writer=IcebergWriter())


def _open(root: Path) -> Table:
    return Table.open(open_warehouse(f"file://{root}").table(TABLE), clock=SystemClock(), owner="bench")


class Publishing(TakesTurns):
    """Publishes, after each commit of ten files.

    Args:
        root: The warehouse, on a directory; its table has that many commits.
        file_count: Data files in it.
        commit_count: Commits in it.
    """

    name = OURS

    def __init__(self, root: Path, *, file_count: int, commit_count: int) -> None:
        self._root = root
        self._files = file_count
        self._commits = commit_count
        self._table: Table | None = None
        self._made: Publication | None = None

    def prepare(self) -> None:
        """Commit ten files; the first time, more often than the history is long, and publish each time."""
        if self._table is None:
            self._table = _open(self._root)
            self._writer = IcebergWriter()
            for _ in range(HISTORY):
                self._commit(self._table)
            self.run()
        self._commit(self._table)

    def run(self) -> None:
        """Publish."""
        assert self._table is not None
        self._made = publish_table(self._table, writer=self._writer)

    def check(self) -> Sequence[Figure]:
        """Say how many bytes were written: what the history makes of them, and the rest."""
        assert self._table is not None
        assert self._made is not None
        paths, made = self._table.paths, self._made
        sizes = {info.key: info.size_bytes for info in list_all(self._table.store, paths.iceberg_prefix).objects}
        own = {key: size for key, size in sizes.items() if publication_id_of(key) == made.publication_id}
        history = own.pop(made.metadata_key) + sizes[paths.publication_head_key]
        history += sum(size for key, size in sizes.items() if made.publication_id in key and "/publications/" in key)
        if not own:
            raise AssertionError("nothing was published")
        return (
            Figure("written", "kB", sum(own.values()) / KB),
            Figure("history", "kB", history / KB),
            Figure("objects", "", len(own) + 3),
        )

    def _commit(self, table: Table) -> None:
        time_ms = FIRST_COMMIT_MS + self._commits * STEP_MS
        numbers = range(self._files, self._files + NEW_FILES)
        markers = [marker(table.paths, number, time_ms) for number in numbers]
        key, body = log_file_of(table.paths, self._commits, time_ms, markers)
        table.store.put_if_absent(key, body)
        self._files += NEW_FILES
        self._commits += 1
