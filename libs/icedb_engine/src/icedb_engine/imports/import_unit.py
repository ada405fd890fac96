"""Units of an import: footers are read, or files copied below a table, many at once. They need stores, not Spark.

Copies get new names (W1). Within one S3 the server copies. From a directory the file is uploaded unchanged;
otherwise the object passes through the scratch folder. A copy counts only if the source was what was inspected, before
(its footer was read) and after.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, NotFound, PreconditionFailed
from icedb_log.jobs import (
    CopyOutput,
    InspectedFile,
    InspectJob,
    InspectOutput,
    PlacedFile,
    RefusedFile,
    SourceFile,
)
from icedb_log.parquet.thrift import ThriftError
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings

from icedb_engine.engine import open_scratch
from icedb_engine.imports.import_inspect import FileRefused, inspect_file
from icedb_engine.work import CopyUnit
from icedb_engine.writing.parquet_join import remove_field_ids

THREADS: Final = 16
"""Files of one unit that are worked on at once: it is the network that takes the time."""
_CHANGED: Final = "it changed after its footer was read: run the import again when nobody writes it"

OpenSource = Callable[[str], ObjectStore]
_Input = TypeVar("_Input", SourceFile, InspectedFile)
_Output = TypeVar("_Output", InspectedFile, PlacedFile)


@runtime_checkable
class ServerCopies(Protocol):
    """A store whose server copies objects from stores of the same kind."""

    def copy_from(self, source: object, info: ObjectInfo, key: str) -> ObjectInfo:
        """Copy an object that is still what ``info`` says."""
        ...


def open_source(s3: S3Options | None) -> OpenSource:
    """Return what opens the store of a source by its URL."""
    return lambda url: StoreSettings(url, s3).open().store


def inspect_unit(job: InspectJob, open_source: OpenSource) -> InspectOutput:
    """Read the footers of a job's sources. Raises Unavailable when a store did not answer."""
    stores = {url: open_source(url) for url in {source.store_url for source in job.sources}}
    told = replace(job, sources=())

    def inspect(source: SourceFile) -> InspectedFile:
        return inspect_file(stores[source.store_url], source, told)

    return InspectOutput(*_do_all(job.sources, inspect, url_of=lambda source: source.url))


def copy_unit(unit: CopyUnit, store: ObjectStore, open_source: OpenSource, *, clock: Clock) -> CopyOutput:
    """Copy files, each to a fresh key of its partition (N1). Not idempotent: after an error copies are orphans (J5).

    Raises:
        Unavailable: A store did not answer.
    """
    stores = {url: open_source(url) for url in {file.source.store_url for file in unit.files}}
    table = TableStore(store, unit.paths)
    with open_scratch(unit.engine) as scratch:

        def copy(file: InspectedFile) -> PlacedFile:
            return _copy_file(stores[file.source.store_url], file, table, clock=clock, scratch=scratch)

        return CopyOutput(*_do_all(unit.files, copy, url_of=lambda file: file.source.url))


def _do_all(
    items: Sequence[_Input], work: Callable[[_Input], _Output], *, url_of: Callable[[_Input], str]
) -> tuple[tuple[_Output, ...], tuple[RefusedFile, ...]]:
    def try_one(item: _Input) -> _Output | RefusedFile:
        try:
            return work(item)
        except (FileRefused, InvalidRequest) as error:
            return RefusedFile(url_of(item), str(error))

    with ThreadPoolExecutor(max(1, min(THREADS, len(items))), "icedb-import") as pool:
        results = list(pool.map(try_one, items))
    return (
        tuple(result for result in results if not isinstance(result, RefusedFile)),
        tuple(result for result in results if isinstance(result, RefusedFile)),
    )


def _copy_file(
    source_store: ObjectStore, file: InspectedFile, table: TableStore, *, clock: Clock, scratch: Path
) -> PlacedFile:
    """Copy one file. Raises FileRefused: it is gone or changed."""
    source = file.source
    file_id = clock.new_id()
    key = table.paths.data_key(partition=file.partition, file_id=file_id)
    try:
        if file.has_field_ids:
            size_bytes = _copy_without_ids(source_store, source, table.store, key, scratch / file_id)
        elif isinstance(table.store, ServerCopies) and isinstance(source_store, ServerCopies):
            info = ObjectInfo(source.key, source.etag, source.size_bytes, source.modified_ms)
            size_bytes = table.store.copy_from(source_store, info, key).size_bytes
        else:
            size_bytes = _stream(source_store, source.key, table.store, key, scratch / file_id)
        # Looked at once more, also where the server was given a condition: some servers do not know that one.
        if source_store.head(source.key).etag != source.etag:
            raise FileRefused(_CHANGED)
    except NotFound as error:
        raise FileRefused("it is gone since its footer was read: run the import again") from error
    except PreconditionFailed as error:
        raise FileRefused(_CHANGED) from error
    if size_bytes != source.size_bytes and not file.has_field_ids:
        raise FileRefused(_CHANGED)
    return PlacedFile(file, key, size_bytes)


def _stream(source_store: ObjectStore, source_key: str, store: ObjectStore, key: str, scratch: Path) -> int:
    """Copy a file through this process; return how large its copy is."""
    address = source_store.uri(source_key)
    if address.startswith("/"):
        store.upload(key, Path(address))
        return store.head(key).size_bytes  # whoever writes it may do so still
    try:
        size_bytes = source_store.download(source_key, scratch).size_bytes
        store.upload(key, scratch, may_move=True)
    finally:
        scratch.unlink(missing_ok=True)
    return size_bytes


def _copy_without_ids(
    source_store: ObjectStore, source: SourceFile, store: ObjectStore, key: str, scratch: Path
) -> int:
    """Copy a file whose columns have field ids, with a footer that has none (N6); return how large its copy is."""
    try:
        source_store.download(source.key, scratch)
        if scratch.stat().st_size != source.size_bytes:
            raise FileRefused(_CHANGED)
        remove_field_ids(scratch)
        size_bytes = scratch.stat().st_size
        store.upload(key, scratch, may_move=True)
    except ThriftError as error:
        raise FileRefused(f"its field ids cannot be taken out of a copy ({error}): write it again without") from error
    finally:
        scratch.unlink(missing_ok=True)
    return size_bytes
