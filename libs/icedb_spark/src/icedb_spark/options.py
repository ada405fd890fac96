"""The options of the data source: what users write, checked before anything is read or written.

Names count without case and underscores (``asOf``, ``as_of``). One that is not known is refused: a condition with a
typing error in its name would return every row.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from icedb_client.requests import to_filters, to_ms
from icedb_client.settings import load_client_settings
from icedb_engine.limits import EngineLimits
from icedb_log.errors import InvalidRequest
from icedb_log.table.partitions import PartitionFilter
from icedb_log.units import MIB, parse_duration

from icedb_spark.values import Place, WriteOptions

DEFAULT_SPLIT_BYTES: Final = 64 * MIB
DEFAULT_TASK_MEMORY_BYTES: Final = 512 * MIB
DEFAULT_LEASE_MS: Final = 30 * 60 * 1000
DEFAULT_MAX_FILES: Final = 1000

_PLACE: Final = ("table", "store", "s3Endpoint", "s3Region", "taskMemory", "scratchFolder")
_READ: Final = (*_PLACE, "where", "columns", "asOf", "tag", "partitions", "lease", "splitBytes")
_STREAM: Final = ("startingFrom", "maxFilesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")
_WRITE: Final = (*_PLACE, "writeId", "wait")

_SIZE: Final = re.compile(r"(?P<number>\d{1,15})\s*(?P<unit>b|k|kb|m|mb|g|gb)?", re.IGNORECASE)
_UNITS_BYTES: Final = {"": 1, "b": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read asks for.

    Attributes:
        place: Where the table is.
        where: A condition over the columns, DuckDB's SQL; ``None``: all rows.
        columns: Which columns, in this order; ``None``: all.
        as_of_ms: Time travel, unix ms.
        tag: Name of a tag.
        filters: Which partitions.
        lease_ms: How long the files are to be held beyond the grace period; ``None``: not.
        split_bytes: Bytes of data files for one task.
    """

    place: Place
    where: str | None
    columns: tuple[str, ...] | None
    as_of_ms: int | None
    tag: str | None
    filters: tuple[PartitionFilter, ...]
    lease_ms: int | None
    split_bytes: int


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream asks for besides.

    Attributes:
        starting_ms: Begin with what is committed after this time; ``None``: see ``starts_with_all``.
        starts_with_all: Begin with all rows that are there; else with what is committed from now on.
        max_files: Data files of one batch.
        max_bytes: Bytes of data files of one batch; ``None``: no limit.
        fails_on_data_loss: Whether a position that the log has forgotten is an error.
        lease_ms: How long the table is held for a stream that is down; 0: only for its grace periods.
    """

    starting_ms: int | None
    starts_with_all: bool
    max_files: int
    max_bytes: int | None
    fails_on_data_loss: bool
    lease_ms: int


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read. Raises InvalidRequest; options of streams are let through."""
    options = _Options(given, known=(*_READ, *_STREAM))
    as_of = options.text("asOf")
    read = ReadOptions(
        place=options.place(),
        where=options.text("where"),
        columns=options.names("columns"),
        as_of_ms=None if as_of is None else to_ms(as_of, what="option asOf"),
        tag=options.text("tag"),
        filters=options.filters("partitions"),
        lease_ms=options.duration_ms("lease"),
        split_bytes=options.size_bytes("splitBytes") or DEFAULT_SPLIT_BYTES,
    )
    if read.tag is not None and (read.as_of_ms is not None or read.lease_ms is not None):
        raise InvalidRequest("option tag: a tag has its own time and holds its files itself: leave asOf and lease out")
    return read


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream. Raises InvalidRequest, also for options that mean nothing to a stream."""
    options = _Options(given, known=(*_READ, *_STREAM))
    for name in ("asOf", "tag"):
        if options.text(name) is not None:
            raise InvalidRequest(f"option {name}: a stream follows the table; say where it begins with startingFrom")
    starting = options.text("startingFrom") or "latest"
    word = starting.strip().lower()
    lease_ms = options.duration_ms("lease")
    return StreamOptions(
        starting_ms=None if word in ("latest", "earliest") else to_ms(starting, what="option startingFrom"),
        starts_with_all=word == "earliest",
        max_files=options.count("maxFilesPerTrigger") or DEFAULT_MAX_FILES,
        max_bytes=options.size_bytes("maxBytesPerTrigger"),
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        lease_ms=DEFAULT_LEASE_MS if lease_ms is None else lease_ms,
    )


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a write. Raises InvalidRequest."""
    options = _Options(given, known=_WRITE)
    wait_ms = options.duration_ms("wait")
    return WriteOptions(options.place(), options.text("writeId"), 30_000 if wait_ms is None else wait_ms)


def parse_sink_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a streaming sink. Raises InvalidRequest, also for a ``writeId``."""
    own = {name: value for name, value in given.items() if _fold(name) != "checkpointlocation"}
    options = parse_write_options(own)
    if options.write_id is not None:
        raise InvalidRequest("option writeId: a stream names its writes itself, by its checkpoint: leave it out")
    return options


class _Options:
    """Options as Spark hands them over, by name without case and underscores."""

    def __init__(self, given: Mapping[str, str], *, known: Sequence[str]) -> None:
        names = {_fold(name): name for name in known}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            folded = _fold(name)
            if folded == "path":
                raise InvalidRequest("give no path: the table is named by option table, the warehouse by option store")
            if folded not in names:
                raise InvalidRequest(f"option {name[:_SHOWN]!r} is not known here; known are: {', '.join(known)}")
            self._given[names[folded]] = value

    def text(self, name: str) -> str | None:
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise InvalidRequest(f"option {name} is empty: give a value, or leave it out")
        return value

    def place(self) -> Place:
        table = self.text("table")
        if table is None:
            raise InvalidRequest('give option table: .format("icedb").option("table", "events")')
        settings = load_client_settings(
            store=self.text("store"), s3_endpoint=self.text("s3Endpoint"), s3_region=self.text("s3Region")
        )
        memory_bytes = self.size_bytes("taskMemory") or DEFAULT_TASK_MEMORY_BYTES
        engine = EngineLimits(memory_bytes=memory_bytes, thread_count=1, scratch_folder=self.text("scratchFolder"))
        return Place(table, settings.store_settings, engine)

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            value = self._read_json(name, text)
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise InvalidRequest(f'option {name}: write a list of names, ["a", "b"], or a,b')
            found = tuple(value)
        else:
            found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found or len(set(found)) != len(found):
            raise InvalidRequest(f"option {name} {text[:_SHOWN]!r}: name at least one column, and none twice")
        return found

    def filters(self, name: str) -> tuple[PartitionFilter, ...]:
        text = self.text(name)
        if text is None:
            return ()
        value = self._read_json(name, text)
        if not isinstance(value, dict):
            raise InvalidRequest(f'option {name}: write an object, {{"d": ["2026-01-30", "2026-01-31"]}}')
        return tuple(to_filters(value))

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < 1:
            raise InvalidRequest(f"option {name} {text[:_SHOWN]!r} is not a whole number above 0")
        return int(text)

    def size_bytes(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        match = _SIZE.fullmatch(text.strip())
        size = 0 if match is None else int(match["number"]) * _UNITS_BYTES[(match["unit"] or "").lower()[:1]]
        if size < 1:
            raise InvalidRequest(f"option {name} {text[:_SHOWN]!r} is not a size: write e.g. 64m, 1g, or bytes")
        return size

    def duration_ms(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        return 0 if text.strip() == "0" else parse_duration(text, option=f"option {name}")

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise InvalidRequest(f"option {name} {text[:_SHOWN]!r}: write true or false")
        return text.strip().lower() == "true"

    def _read_json(self, name: str, text: str) -> Any:
        try:
            return orjson.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"option {name} {text[:_SHOWN]!r} is not JSON: {error}") from error


def _fold(name: str) -> str:
    return name.replace("_", "").lower()
