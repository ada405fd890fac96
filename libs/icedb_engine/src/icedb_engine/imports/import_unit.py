"""One unit of an import: footers are read, or files copied, many at once. Needs stores, not Spark.

A unit is one of two kinds: without ``inspected`` it reads the footers of ``sources``; with it, it copies those files.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.ingest.import_jobs import InspectedFile, InspectJob, PlacedFile, RefusedFile
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_log.store.table_store import TableStore

from icedb_engine.engine import open_scratch
from icedb_engine.imports.import_copy import copy_file
from icedb_engine.imports.import_footers import FileRefused
from icedb_engine.imports.import_inspect import inspect_file
from icedb_engine.limits import EngineLimits

THREADS: Final = 16
"""Files of one unit that are worked on at once: it is the network that takes the time."""

_Input = TypeVar("_Input")
_Output = TypeVar("_Output")


@dataclass(frozen=True, slots=True)
class ImportUnit:
    """Some files of an import, for one task.

    Attributes:
        job: The table, and the files whose footers are to be read.
        inspected: Files to be copied instead.
        engine: Bounds of the task.
    """

    job: InspectJob
    inspected: tuple[InspectedFile, ...]
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class ImportUnitResult:
    """What became of the files of a unit; each is in exactly one of the three."""

    inspected: tuple[InspectedFile, ...] = ()
    placed: tuple[PlacedFile, ...] = ()
    refused: tuple[RefusedFile, ...] = ()


def import_unit(
    unit: ImportUnit, store: ObjectStore, *, open_source: Callable[[str], ObjectStore], clock: Clock
) -> ImportUnitResult:
    """Read footers, or copy files.

    Args:
        unit: What to do.
        store: Where the table is.
        open_source: Opens the store of a source by its URL.
        clock: Gives the names of copies.

    Raises:
        Unavailable: A store did not answer.
    """
    files = unit.inspected
    stores = {url: open_source(url) for url in {s.store_url for s in (*unit.job.sources, *(f.source for f in files))}}
    if not files:
        found, refused = _do_all(
            unit.job.sources,
            lambda source: inspect_file(stores[source.store_url], source, replace(unit.job, sources=())),
            url_of=lambda source: source.url,
        )
        return ImportUnitResult(inspected=found, refused=refused)
    with open_scratch(unit.engine) as scratch:
        placed, refused = _do_all(
            files,
            lambda file: copy_file(
                stores[file.source.store_url], file, TableStore(store, unit.job.paths), clock=clock, scratch=scratch
            ),
            url_of=lambda file: file.source.url,
        )
    return ImportUnitResult(placed=placed, refused=refused)


def open_source(s3: S3Options | None) -> Callable[[str], ObjectStore]:
    """Return what opens the store of a source by its URL."""
    return lambda url: StoreSettings(url, s3).open().store


def _do_all(
    items: Sequence[_Input], work: Callable[[_Input], _Output], *, url_of: Callable[[_Input], str]
) -> tuple[tuple[_Output, ...], tuple[RefusedFile, ...]]:
    def try_one(item: _Input) -> _Output | RefusedFile:
        try:
            return work(item)
        except (FileRefused, InvalidRequest) as error:
            return RefusedFile(url_of(item), str(error))

    with ThreadPoolExecutor(max(1, min(THREADS, len(items))), "icedb-import") as pool:
        results: Iterable[_Output | RefusedFile] = list(pool.map(try_one, items))
    return (
        tuple(result for result in results if not isinstance(result, RefusedFile)),
        tuple(result for result in results if isinstance(result, RefusedFile)),
    )
