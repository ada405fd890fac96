"""How a job is cut into units of work, and how units and their results travel as text.

Pure functions. The wire is JSON of our own frozen dataclasses, validated on both sides, so that a task and a
driver of different releases disagree loudly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from icedb_log.jobs import MergedGroup, StagedBatch
from icedb_log.model import FileMarker
from pydantic import BaseModel, TypeAdapter

from icedb_engine.imports.import_unit import ImportUnit, ImportUnitResult
from icedb_engine.limits import JobLimits
from icedb_engine.units.change_unit import ChangeUnit, ChangeUnitResult, CountUnit, CountUnitResult
from icedb_engine.units.flush_types import FlushUnit, FlushUnitResult, WriteUnit, estimate_bytes
from icedb_engine.units.merge_unit import MergeUnit
from icedb_engine.units.query_unit import FeedUnit, InsertUnit, QueryUnitResult

FLUSH_UNITS: Final = TypeAdapter(FlushUnit)
FLUSH_RESULTS: Final = TypeAdapter(FlushUnitResult)
WRITE_UNITS: Final = TypeAdapter(WriteUnit)
WRITE_RESULTS: Final = TypeAdapter(tuple[FileMarker, ...])
MERGE_UNITS: Final = TypeAdapter(MergeUnit)
MERGE_RESULTS: Final = TypeAdapter(MergedGroup)
CHANGE_UNITS: Final = TypeAdapter(ChangeUnit)
CHANGE_RESULTS: Final = TypeAdapter(ChangeUnitResult)
COUNT_UNITS: Final = TypeAdapter(CountUnit)
COUNT_RESULTS: Final = TypeAdapter(CountUnitResult)
INSERT_UNITS: Final = TypeAdapter(InsertUnit)
FEED_UNITS: Final = TypeAdapter(FeedUnit)
QUERY_RESULTS: Final = TypeAdapter(QueryUnitResult)
IMPORT_UNITS: Final = TypeAdapter(ImportUnit)
IMPORT_RESULTS: Final = TypeAdapter(ImportUnitResult)

Unit = FlushUnit | WriteUnit | MergeUnit | ImportUnit | ChangeUnit | CountUnit | InsertUnit | FeedUnit
UnitResult = (
    FlushUnitResult
    | tuple[FileMarker, ...]
    | MergedGroup
    | ImportUnitResult
    | ChangeUnitResult
    | CountUnitResult
    | QueryUnitResult
)


def split_batches(batches: Sequence[StagedBatch], limits: JobLimits) -> tuple[tuple[StagedBatch, ...], ...]:
    """Cut batches into units of about equal estimated size; the order is kept, within and between units."""
    sizes = [estimate_bytes(batch, limits.batch) for batch in batches]
    total = sum(sizes)
    unit_count = 1 if total <= limits.direct_bytes else max(2, -(-total // limits.batch.unit_target_bytes))
    units: list[list[StagedBatch]] = [[] for _ in range(unit_count)]
    before = 0
    for batch, size in zip(batches, sizes, strict=True):
        units[(before + size // 2) * unit_count // total].append(batch)
        before += size
    return tuple(tuple(unit) for unit in units if unit)


def encode(value: Unit | UnitResult) -> str:
    """Return a unit or a result as JSON text; the type adapters of this module read it back."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not travel between driver and task")
