"""The peers of the snapshot benchmark: who asks for the live files of a table, cold, warm, and after a commit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg import manifest

from bench.peers.snapshot_delta import delta_adds, write_delta_commit
from bench.snapshot_work import FIRST_COMMIT_MS, STEP_MS, Cold, Refresh


@dataclass(slots=True)
class DeltaCaller:
    """delta-rs: ``DeltaTable(...)`` and ``file_uris`` for each call, or one that is kept open and looks for news.

    Attributes:
        uri: Of the table.
        name: What it is called.
        day: A partition.
        is_kept_open: Whether ``update_incremental`` is called in place of opening.
    """

    uri: str
    name: str = "delta-rs"
    day: str | None = None
    is_kept_open: bool = False
    _table: Any = field(default=None, init=False)

    def open(self) -> None:
        """Open the table if it is kept open."""
        self._table = DeltaTable(self.uri) if self.is_kept_open else None

    def call(self) -> int:
        """List."""
        if self.is_kept_open:
            table = self._table
            table.update_incremental()
        else:
            table = DeltaTable(self.uri)
        filters = None if self.day is None else [("d", "=", self.day)]
        return len(table.file_uris(partition_filters=filters))

    def close(self) -> None:
        """Let it go."""
        self._table = None


@dataclass(slots=True)
class IcebergCaller:
    """PyIceberg: ``load_table`` and ``plan_files`` for each call, with a catalog that is kept open."""

    catalog: Any
    name: str = "pyiceberg"
    row_filter: str | None = None
    _call: Callable[[], int] | None = field(default=None, init=False)

    def open(self) -> None:
        """Open the catalog."""
        catalog = self.catalog.open()
        options = {} if self.row_filter is None else {"row_filter": self.row_filter}
        self._call = lambda: sum(1 for _ in self.catalog.load(catalog).scan(**options).plan_files())

    def call(self) -> int:
        """Plan."""
        assert self._call is not None
        return self._call()

    def close(self) -> None:
        """Let it go."""
        self._call = None


@dataclass(slots=True)
class ColdDelta(Cold):
    """delta-rs: ``DeltaTable(...)`` and ``file_uris``."""

    uri: str
    options: dict[str, str]

    def _find(self) -> Sequence[str]:
        uris: Sequence[str] = DeltaTable(self.uri, storage_options=self.options).file_uris()
        return uris


@dataclass(slots=True)
class ColdIceberg(Cold):
    """PyIceberg: ``load_table`` of an open catalog, and ``plan_files``."""

    catalog: Any
    _open: Any = field(default=None, init=False)

    def prepare(self) -> None:
        """Open the catalog; what it knows of manifests is forgotten."""
        self._open = self._open or self.catalog.open()
        manifest.clear_manifest_cache()

    def _find(self) -> Sequence[str]:
        return [task.file.file_path for task in self.catalog.load(self._open).scan().plan_files()]


class DeltaRefresh(Refresh):
    """delta-rs: ``update_incremental`` of a table that is kept open, and ``file_uris``."""

    name = "delta-rs, kept open"

    def __init__(self, root: Path, *, file_count: int, commit_count: int) -> None:
        super().__init__(file_count=file_count, commit_count=commit_count)
        self._root = root
        self._table = DeltaCaller(str(root), self.name, is_kept_open=True)
        self._table.open()

    def _append(self, commit: int, numbers: range) -> None:
        write_delta_commit(self._root, commit, delta_adds(numbers, FIRST_COMMIT_MS + commit * STEP_MS))

    def _ask(self) -> int:
        return self._table.call()
