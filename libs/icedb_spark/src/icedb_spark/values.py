"""The values that travel from the driver to tasks. Small, and quick to import: each Python worker does it."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from icedb_engine.limits import EngineLimits
from icedb_engine.units.work import DataFile
from icedb_log.keys import TablePaths
from icedb_log.store.stores import StoreSettings


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is, and what a task may take.

    Attributes:
        table: Name of the table.
        store: How driver and tasks reach the warehouse. Credentials are not in it: each side has its own.
        engine: Bounds of a task.
    """

    table: str
    store: StoreSettings
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write asks for.

    Attributes:
        place: Where the table is.
        write_id: The caller's own name of this write: repeated under it, it counts once; ``None``: it is not repeated.
        wait_ms: How long to wait for an ingest worker that is at work.
    """

    place: Place
    write_id: str | None
    wait_ms: int


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """What a DataFrame is made of.

    Attributes:
        paths: Keys of the table.
        schema: All columns of the table, logged and declared, with SQL types.
        files: The data files, ascending by path; packed.
        lease_id: What holds them; ``None``: their grace period alone.
    """

    paths: TablePaths
    schema: Mapping[str, str]
    files: bytes
    lease_id: str | None = None

    def unpack(self) -> tuple[DataFile, ...]:
        """Return the data files."""
        prefix = self.paths.data_prefix
        rows = orjson.loads(zlib.decompress(self.files))
        return tuple(DataFile(f"{prefix}{name}", size, count) for name, size, count in rows)
