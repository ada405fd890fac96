"""Copies of source files below a table, each under a fresh name (W1).

On one S3 the server copies. From a directory the file is uploaded as it lies there; otherwise the object passes through
the scratch folder. A copy counts only if the source was what was inspected, before (its footer was read) and after.
"""

from pathlib import Path
from typing import Protocol, runtime_checkable

from icedb_log.clock import Clock
from icedb_log.errors import NotFound, PreconditionFailed
from icedb_log.ingest.import_jobs import InspectedFile, PlacedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.store.table_store import TableStore

from icedb_engine.imports.import_footers import FileRefused

_CHANGED = "it changed after its footer was read: run the import again when nobody writes it"


@runtime_checkable
class ServerCopies(Protocol):
    """A store whose server copies objects from stores of the same kind."""

    def copy_from(self, source: object, info: ObjectInfo, key: str) -> ObjectInfo:
        """Copy an object that is still what ``info`` says."""
        ...


def copy_file(
    source_store: ObjectStore,
    file: InspectedFile,
    table: TableStore,
    *,
    clock: Clock,
    scratch: Path,
) -> PlacedFile:
    """Copy one file to a fresh key of its partition (N1). Not idempotent: after an error the copy is an orphan (J5).

    Args:
        source_store: Where it is.
        file: The file, as it was inspected.
        table: Its store and keys.
        clock: Gives the fresh name.
        scratch: An existing folder, for a copy between stores.

    Raises:
        FileRefused: The file is gone or changed.
        Unavailable: A store did not answer.
    """
    source = file.source
    file_id = clock.new_id()
    key = table.paths.data_key(partition=file.partition, file_id=file_id)
    try:
        if isinstance(table.store, ServerCopies) and isinstance(source_store, ServerCopies):
            info = ObjectInfo(source.key, source.etag, source.size_bytes, source.modified_ms)
            copied = table.store.copy_from(source_store, info, key)
        else:
            copied = _stream(source_store, source.key, table.store, key, scratch / file_id)
        # Looked at once more, also where the server was given a condition: some servers do not know that one.
        if source_store.head(source.key).etag != source.etag:
            raise FileRefused(_CHANGED)
    except NotFound as error:
        raise FileRefused("it is gone since its footer was read: run the import again") from error
    except PreconditionFailed as error:
        raise FileRefused(_CHANGED) from error
    if copied.size_bytes != source.size_bytes:
        raise FileRefused(_CHANGED)
    return PlacedFile(file, key, copied.size_bytes)


def _stream(source_store: ObjectStore, source_key: str, store: ObjectStore, key: str, scratch: Path) -> ObjectInfo:
    address = source_store.uri(source_key)
    if address.startswith("/"):
        return store.upload(key, Path(address))
    try:
        source_store.download(source_key, scratch)
        return store.upload(key, scratch)
    finally:
        scratch.unlink(missing_ok=True)
