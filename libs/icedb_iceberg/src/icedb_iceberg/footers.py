"""Footers of live data files, for what the log does not say of them: field ids, types, and rows.

Engines take the number of rows from a manifest (``count(*)`` asks for nothing else), so a guess would be a wrong
answer: where another writer's marker does not say it, it is read from the footer.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from icedb_log.errors import CorruptLog, InvalidRequest, NotFound
from icedb_log.model import FileMarker
from icedb_log.parquet.file_reads import FOOTER_THREADS, ParquetFooterReader
from icedb_log.parquet.footer import Footer
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore, limit_reads


def read_footers(store: ObjectStore, markers: Iterable[FileMarker]) -> list[Footer]:
    """Return the footers of some files, in their order. One or two requests for each.

    Raises:
        InvalidRequest: A file is no Parquet file, or a damaged one.
        CorruptLog: A file is gone.
        Unavailable: The store did not answer.
    """
    reader = ParquetFooterReader(store)
    with ThreadPoolExecutor(limit_reads(store, FOOTER_THREADS), "icedb-footers") as pool:
        return list(pool.map(lambda marker: _read(reader, marker), markers))


def read_row_counts(store: ObjectStore, markers: Iterable[FileMarker]) -> dict[str, int]:
    """Return the rows of the files whose markers do not say, by path. Raises as above."""
    unknown = (marker for marker in markers if marker.row_count is None)
    return {footer.info.key: footer.row_count for footer in read_footers(store, unknown)}


def _read(reader: ParquetFooterReader, marker: FileMarker) -> Footer:
    try:
        return reader.require_footer(ObjectInfo(marker.path, "", marker.size_bytes, marker.created_ms))
    except DamagedFile as error:
        raise InvalidRequest(
            f"data file {marker.path}: {error}; what it holds has to be known to publish the table: "
            "`icedb fsck --deep` finds all such files"
        ) from error
    except NotFound as error:
        raise CorruptLog(f"data file {marker.path} is gone, but the log says that it is live: `icedb fsck`") from error
