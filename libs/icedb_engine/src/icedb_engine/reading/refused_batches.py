"""All that is wrong with the rows of a batch that is refused whole (``on_bad_rows = quarantine_batch``).

The checks that decide stop at the first thing that is wrong with a batch. Its producer wants to know all of it: so
batches that were refused are looked at once more, each on its own, as if their bad rows were to be set aside. Nothing
is decided here, and what cannot be found out leaves the reason as it was.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from icedb_log.errors import Unavailable
from icedb_log.units import MIB

from icedb_engine.engine import open_engine
from icedb_engine.limits import EngineLimits
from icedb_engine.reading.batch_checks import UnitChecks
from icedb_engine.reading.event_frame import EventFrame
from icedb_engine.reading.staged_batch import BatchContent
from icedb_engine.units.flush_types import FlushUnit

MAX_EXPLAINED_BATCHES: Final = 100
"""Of one unit; the others keep the first reason that was found."""
MAX_EXPLAINED_BYTES: Final = 16 * MIB
"""Decoded size of a batch that is looked at again."""
_MEMORY_SHARE: Final = 4
"""Of the unit's memory, beside what the unit itself holds."""


def explain_refused(
    unit: FlushUnit, batches: Mapping[int, BatchContent], types: Mapping[str, str], scratch: Path
) -> dict[int, str]:
    """Return the reason of refused batches, all their bad rows considered; those of which no row is bad are left out.

    Args:
        unit: That refused them.
        batches: What they hold, by number.
        types: Of all columns, as they are after the unit.
        scratch: A folder.
    """
    small = [number for number, content in batches.items() if content.decoded_bytes <= MAX_EXPLAINED_BYTES]
    reasons: dict[int, str] = {}
    limits = replace(unit.engine, memory_bytes=unit.engine.memory_bytes // _MEMORY_SHARE)
    try:
        for number in small[:MAX_EXPLAINED_BATCHES]:
            reason = _explain(unit, batches[number], types, limits=limits, scratch=scratch)
            if reason:
                reasons[number] = reason
    except Unavailable:
        pass  # too little room: the first reason is one as well
    return reasons


def _explain(
    unit: FlushUnit, content: BatchContent, types: Mapping[str, str], *, limits: EngineLimits, scratch: Path
) -> str:
    config = unit.config.model_copy(update={"on_bad_rows": "quarantine_rows"})
    while True:
        with open_engine(limits, scratch) as engine:
            frame = EventFrame(engine, {0: content}, unit.config.times)
            refused = unit.refused_widenings
            checks = UnitChecks(config, unit.paths, types, unit.limits, frame, refused_widenings=refused)
            checks.run((0,), is_exact=True)
        if checks.wishes:
            types = {**types, **checks.wishes}  # what a wider column takes is not bad in itself
            continue
        bad = frame.batches[0].bad
        is_about_rows = bad.row_count and (0 in checks.accepted or not frame.batches[0].row_count)
        return bad.reason if is_about_rows else ""
