"""How a job is cut into units of work, and how units and their results travel as text.

Pure functions. The wire is JSON of our own frozen dataclasses, validated on both sides, so that a task and a
driver of different releases disagree loudly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from icedb_log.jobs import StagedBatch
from pydantic import BaseModel, TypeAdapter

from icedb_parts.flush_types import FlushUnit, FlushUnitResult, WriteUnit, WriteUnitResult
from icedb_parts.limits import FlushUnitLimits
from icedb_parts.merge_unit import MergeUnit, MergeUnitResult

FLUSH_UNITS: Final = TypeAdapter(FlushUnit)
FLUSH_RESULTS: Final = TypeAdapter(FlushUnitResult)
WRITE_UNITS: Final = TypeAdapter(WriteUnit)
WRITE_RESULTS: Final = TypeAdapter(WriteUnitResult)
MERGE_UNITS: Final = TypeAdapter(MergeUnit)
MERGE_RESULTS: Final = TypeAdapter(MergeUnitResult)

_MIN_SHARE: Final = 4
"""A quarter of a unit's target is worth two units: below that one task is faster, and writes fewer files."""


def split_batches(batches: Sequence[StagedBatch], limits: FlushUnitLimits) -> tuple[tuple[StagedBatch, ...], ...]:
    """Cut batches into units of about equal estimated size; the order is kept, within and between units."""
    sizes = [batch.size_bytes * (1 if batch.format == "ndjson" else limits.compression_ratio) + 1 for batch in batches]
    total = sum(sizes)
    unit_count = max(-(-total // limits.unit_target_bytes), 2 if total > limits.unit_target_bytes // _MIN_SHARE else 1)
    units: list[list[StagedBatch]] = [[] for _ in range(unit_count)]
    before = 0
    for batch, size in zip(batches, sizes, strict=True):
        units[(before + size // 2) * unit_count // total].append(batch)
        before += size
    return tuple(tuple(unit) for unit in units if unit)


def encode(value: FlushUnit | FlushUnitResult | WriteUnit | WriteUnitResult | MergeUnit | MergeUnitResult) -> str:
    """Return a unit or a result as JSON text; the type adapters of this module read it back."""
    return orjson.dumps(value, default=_plain).decode()


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not travel between driver and task")
