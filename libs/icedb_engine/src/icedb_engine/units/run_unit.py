"""Runs one unit of work, of whatever kind, where it is called."""

from collections.abc import Callable
from typing import Any

from icedb_log.clock import Clock
from icedb_log.errors import crashes_told
from icedb_log.store.object_store import ObjectStore

from icedb_engine.engine import release_memory
from icedb_engine.imports.import_unit import OpenSource, copy_unit, inspect_unit, open_source
from icedb_engine.units.flush_unit import flush_unit
from icedb_engine.units.merge_unit import count_unit, merge_unit
from icedb_engine.units.query_unit import feed_unit, insert_unit
from icedb_engine.work import DOING, UnitKind


def run_unit(kind: UnitKind, unit: Any, store: ObjectStore, *, clock: Clock, sources: OpenSource | None = None) -> Any:
    """Run one unit on a store that is open, and return its result.

    Args:
        kind: What it is; not ``write``, which needs blobs.
        unit: What is to be done.
        store: Of the table.
        clock: For ids of new files.
        sources: Opens the store of a source of an import; as boto3 finds S3 unless told.

    Raises:
        IceDBError: As the unit of that kind says.
        JobCrashed: It failed in a way that nobody foresaw.
    """
    sources = sources or open_source(None)
    runs: dict[UnitKind, Callable[[], Any]] = {
        "flush": lambda: flush_unit(unit, store, clock=clock),
        "insert": lambda: insert_unit(unit, store, clock=clock),
        "feed": lambda: feed_unit(unit, store, clock=clock),
        "merge": lambda: merge_unit(unit, store, clock=clock),
        "change": lambda: merge_unit(unit, store, clock=clock),
        "count": lambda: count_unit(unit, store),
        "inspect": lambda: inspect_unit(unit, sources),
        "copy": lambda: copy_unit(unit, store, sources, clock=clock),
    }
    try:
        with crashes_told(f"a unit crashed while {DOING[kind]}"):
            return runs[kind]()
    finally:
        release_memory()
