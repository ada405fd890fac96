"""Which objects of tables can be read by their own keys, as Iceberg's metadata names them.

Under the bucket of the warehouse's public location, two kinds: data files, and what lies in a table's
``_icedb/iceberg/metadata/``. A data file has to be named by the table's log besides, live or dead
(:mod:`icedb_gateway.views`): what a publication names was live in some state, and keeps its tombstone until it is
deleted. Nothing else has a key here: no log, no staged batch, no configuration, no listing. A key is compared as it is,
component by component: nothing in it is resolved, so that ``..`` leads nowhere.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from cachetools import TTLCache
from icedb_iceberg.location import read_location
from icedb_log.errors import HaltError, InvalidRequest
from icedb_log.keys import TABLE_NAME, TablePaths
from icedb_log.units import SECOND_MS
from icedb_service.logs import get_logger

from icedb_gateway.requests import GatewayParts

LOCATION_AGE_MS: Final = 10 * SECOND_MS
"""How long the public location is believed: it is fixed, until a person changes it."""
_FOLDERS: Final = ("/_data/", "/_icedb/")
_METADATA_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}")


@dataclass(frozen=True, slots=True)
class TableObject:
    """What a key means.

    Attributes:
        table: Whose it is.
        path: Its key in the store.
        rest: What follows the folder of its kind.
        is_metadata: Whether it is Iceberg's metadata, and not a data file.
    """

    table: str
    path: str
    rest: str
    is_metadata: bool


@dataclass(frozen=True, slots=True)
class _Place:
    bucket: str
    root: str


_NOWHERE: Final = _Place("", "")
"""No bucket has this name."""


class TableObjects:
    """Reads keys. Use it from one event loop."""

    def __init__(self, parts: GatewayParts) -> None:
        self._warehouse = parts.warehouse
        self._work = parts.reads.work
        self._places: TTLCache[None, _Place] = TTLCache(1, LOCATION_AGE_MS, parts.clock.monotonic_ms)

    async def is_bucket(self, bucket: str) -> bool:
        """Whether the warehouse's public location is in this bucket. Raises as :meth:`parse`."""
        return bool(bucket) and bucket == (await self._find_place()).bucket

    async def parse(self, bucket: str, key: str) -> TableObject | None:
        """Return what a key means; ``None`` for one that is of no object of a table, or of another bucket.

        Raises:
            Overloaded: Too many calls wait for the store.
            Unavailable: The public location could not be read.
        """
        if not bucket or not any(folder in key for folder in _FOLDERS):  # of a view: most of what is asked for
            return None
        place = await self._find_place()
        if bucket != place.bucket or not key.startswith(place.root):
            return None
        table, _, rest = key.removeprefix(place.root).partition("/")
        if not TABLE_NAME.fullmatch(table):
            return None
        return self._below(self._warehouse.table(table).paths, rest)

    async def _find_place(self) -> _Place:
        place = self._places.get(None)
        if place is None:
            place = self._places[None] = await self._work.run_blocking("", self._read_place)
        return place

    @staticmethod
    def _below(paths: TablePaths, rest: str) -> TableObject | None:
        path = f"{paths.prefix}/{rest}"
        if path.startswith(paths.data_prefix):
            return TableObject(paths.name, path, path.removeprefix(paths.data_prefix), is_metadata=False)
        name = path.removeprefix(paths.published_prefix)
        if name != path and _METADATA_NAME.fullmatch(name):
            return TableObject(paths.name, path, name, is_metadata=True)
        return None

    def _read_place(self) -> _Place:
        try:
            parts = urlsplit(read_location(self._warehouse.store, self._warehouse.root))
        except (InvalidRequest, HaltError) as error:
            get_logger().error(
                "public_location_unusable", reason=str(error), mitigation="no file can be read by its key"
            )
            return _NOWHERE
        if parts.scheme != "s3":
            return _NOWHERE
        root = parts.path.strip("/")
        return _Place(parts.netloc, f"{root}/" if root else "")
