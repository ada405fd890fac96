"""What tasks of a change run: data files become rows that Spark SQL can take, and its rows become data files.

A task that cannot go on sends its error beside the rows, in a column of its own, instead of failing: Spark would only
run it again, and tell of it in words of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.store.stores import StoreSettings
from pydantic import TypeAdapter

from icedb_engine.spark.spark_runner import OK, Chunks, make_answer, watch_failures
from icedb_engine.units.change_unit import ChangeUnit, GroupOutput, make_error_text
from icedb_engine.units.read_unit import ReadFilesUnit, read_files, spark_arrow_type

FAILED: Final = "error"
READ_UNITS: Final = TypeAdapter(ReadFilesUnit)
GROUP_OUTPUTS: Final = TypeAdapter(tuple[GroupOutput, ...])


@dataclass(frozen=True, slots=True)
class HiddenNames:
    """Names of the columns beside the table's own, which no column of the table has.

    Attributes:
        ordinal: Which group or file a row is of.
        error: Why a task could not go on.
        gone: Whether a row is removed.
    """

    ordinal: str
    error: str
    gone: str


def make_hidden_names(columns: Sequence[str]) -> HiddenNames:
    """Return names that no column has, in whatever case."""
    prefix = "__icedb"
    while any(name.lower().startswith(prefix) for name in columns):
        prefix += "_"
    return HiddenNames(f"{prefix}_ordinal", f"{prefix}_error", f"{prefix}_gone")


def encode_read_unit(unit: ReadFilesUnit) -> str:
    """Return a unit as text."""
    return orjson.dumps(unit, default=_plain).decode()


def make_read_task(store: StoreSettings, columns: Mapping[str, str], hidden: HiddenNames) -> Callable[[Chunks], Chunks]:
    """Return what makes rows of the data files of some units.

    Args:
        store: Where they are.
        columns: Columns of the rows, with types.
        hidden: Names of the columns beside them.
    """
    schema = pa.schema(
        [
            (hidden.ordinal, pa.int32()),
            (hidden.error, pa.string()),
            *((name, spark_arrow_type(kind)) for name, kind in columns.items()),
        ]
    )

    def read_rows(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import release_memory  # noqa: PLC0415

        for chunk in chunks:
            for row in chunk.to_pylist():
                try:
                    for rows in read_files(READ_UNITS.validate_json(row["body"]), store.open().store):
                        ordinal, *values = rows.columns
                        no_error = pa.nulls(rows.num_rows, pa.string())
                        yield pa.RecordBatch.from_arrays([ordinal, no_error, *values[: len(columns)]], schema=schema)
                except (IceDBError, OSError) as error:
                    yield _make_error_row(make_error_text(_as_ours(error)), schema)
                release_memory()

    return read_rows


def make_change_task(store: StoreSettings, unit: ChangeUnit) -> Callable[[Chunks], Chunks]:
    """Return what makes data files of rows: ordinal, error, whether removed, then the unit's columns."""

    def write_rows(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import release_memory  # noqa: PLC0415
        from icedb_engine.units.change_unit import write_change  # noqa: PLC0415

        watch_failures()
        try:
            outputs = write_change(unit, chunks, store.open().store, clock=SystemClock())
            yield make_answer(0, OK, orjson.dumps(outputs, default=_plain).decode())
        except (IceDBError, OSError) as error:
            yield make_answer(0, FAILED, make_error_text(_as_ours(error)))
        release_memory()

    return write_rows


def _as_ours(error: IceDBError | OSError) -> IceDBError:
    if isinstance(error, IceDBError):
        return error
    return Unavailable(f"a task that changes rows cannot use its scratch folder: {error}: make room there")


def _make_error_row(text: str, schema: pa.Schema) -> pa.RecordBatch:
    _ordinal, _error, *columns = schema
    arrays = [pa.array([0], pa.int32()), pa.array([text]), *(pa.nulls(1, column.type) for column in columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(value: object) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not travel between driver and task")
