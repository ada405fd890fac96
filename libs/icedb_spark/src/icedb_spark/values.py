"""The values that travel from the driver to tasks, and types. Quick to import: each Python worker does it."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from icedb_engine.limits import EngineLimits
from icedb_engine.work import DataFile
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import Target
from icedb_log.keys import TablePaths
from icedb_log.store_settings import StoreSettings
from icedb_log.table.decimals import find_decimal, spell_decimal
from pyspark.sql import types as spark_types


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
class WritePlan:
    """A write that was checked, before any task runs.

    Attributes:
        options: Where to, and under which name.
        target: The table; its schema has the columns of the DataFrame in their order, with the types that are stored.
        begun_ms: The store's clock before any file was begun.
        is_done: Whether the write is committed already, under its name: the tasks have nothing to do.
    """

    options: WriteOptions
    target: Target
    begun_ms: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """What a DataFrame is made of.

    Attributes:
        paths: Keys of the table.
        schema: All columns of the table, logged and declared, with SQL types.
        files: The data files, ascending by path; packed.
        lease_id: What holds them; ``None``: their grace period alone.
        named: Names in the condition that may be columns, in lower case.
    """

    paths: TablePaths
    schema: Mapping[str, str]
    files: bytes
    lease_id: str | None = None
    named: frozenset[str] = frozenset()

    def unpack(self) -> tuple[DataFile, ...]:
        """Return the data files."""
        prefix = self.paths.data_prefix
        rows = orjson.loads(zlib.decompress(self.files))
        return tuple(DataFile(f"{prefix}{name}", size, count) for name, size, count in rows)


SPARK_TYPES: Final[Mapping[str, Any]] = {
    "BIGINT": spark_types.LongType(),
    "BOOLEAN": spark_types.BooleanType(),
    "DATE": spark_types.DateType(),
    "DOUBLE": spark_types.DoubleType(),
    "TIMESTAMP": spark_types.TimestampType(),
    "VARCHAR": spark_types.StringType(),
}
"""The Spark type of each of ours but decimals. Spark's timestamps have a zone, UTC; ours are UTC."""
_SQL_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "BIGINT"),
    **dict.fromkeys(("float", "double"), "DOUBLE"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "TIMESTAMP"),
    "boolean": "BOOLEAN",
    "date": "DATE",
    "void": "NULL",
}
_TEXT: Final = re.compile(r"(string|char|varchar)\b.*")
_NESTED: Final = re.compile(r"(struct|array|map|variant)\b.*")


def make_spark_schema(types: Mapping[str, str]) -> Any:
    """Return Spark's schema of rows with these columns."""
    return spark_types.StructType([spark_types.StructField(name, _find_type(kind)) for name, kind in types.items()])


def _find_type(sql_type: str) -> Any:
    digits = find_decimal(sql_type)
    return SPARK_TYPES[sql_type] if digits is None else spark_types.DecimalType(digits.precision, digits.scale)


def find_sql_type(name: str, spark_type: str) -> str:
    """Return our type for one of Spark's. Raises InvalidRequest with the cast that the DataFrame needs."""
    if spark_type in _SQL_TYPES:
        return _SQL_TYPES[spark_type]
    if _TEXT.fullmatch(spark_type):
        return "VARCHAR"
    found = f"the write gives column {name!r} as {spark_type.upper()[:80]}"
    decimal = spell_decimal(spark_type)
    if decimal is not None:
        return decimal
    if _NESTED.fullmatch(spark_type):
        raise InvalidRequest(f"{found}: write to_json(…) AS {name}, or take its fields as columns of their own")
    raise InvalidRequest(f"{found}, which a table cannot hold: write CAST(… AS STRING) AS {name}")
