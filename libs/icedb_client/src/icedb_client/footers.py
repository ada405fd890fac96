"""Reads footers and pages of Parquet files in the store, to check and rebuild tables."""

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from icedb_log.errors import IceDBError, InvalidRequest, NotFound, PreconditionFailed
from icedb_log.parquet.errors import BadFooter
from icedb_log.parquet.footer import parse_parquet_footer
from icedb_log.parquet.pages import DamagedPages, check_file_sums
from icedb_log.parquet.schema import ParquetSchema
from icedb_log.repair.footers import Footer, PageLook, UnreadableCause, UnreadableFooter, read_origin
from icedb_log.store.object_store import ObjectInfo, ObjectStore

from icedb_client.bodies import zstd

TAIL_BYTES: Final = 64 * 1024
MAX_FOOTER_BYTES: Final = 64 * 1024 * 1024
FOOTER_THREADS: Final = 16

_MAGIC: Final = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_END_BYTES: Final = 8
_READ_AHEAD: Final = 4
_MAX_SHARED_SCHEMAS: Final = 256
PAGE_THREADS: Final = 4
_ZSTD: Final = 6
"""In Parquet's list of codecs."""


class ParquetFooterReader:
    """Reads footers; implements :class:`~icedb_log.repair.footers.FooterReader`. Thread-safe.

    Args:
        store: Where the files are.
        threads: Files read at once.
    """

    def __init__(self, store: ObjectStore, *, threads: int = FOOTER_THREADS) -> None:
        self._store = store
        self._threads = threads
        self._shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def read_footers(
        self, infos: Iterable[ObjectInfo], *, bounds_of: Iterable[str] = ()
    ) -> Iterator[Footer | UnreadableFooter]:
        """Read the footers of any number of files: one result each, in the same order.

        At most four times as many files as threads are read ahead. Whoever does not want them all closes the iterator.
        """
        wanted = frozenset(bounds_of)
        waiting: deque[Future[Footer | UnreadableFooter]] = deque()
        pool = ThreadPoolExecutor(self._threads, "icedb-footers")
        try:
            for info in infos:
                waiting.append(pool.submit(self.read_footer, info, bounds_of=wanted))
                if len(waiting) >= self._threads * _READ_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def read_footer(self, info: ObjectInfo, *, bounds_of: frozenset[str] = frozenset()) -> Footer | UnreadableFooter:
        """Read the footer of one file."""
        cause: UnreadableCause = "damaged"
        try:
            footer = self._fetch(info)
            parsed = parse_parquet_footer(
                footer, data_bytes=info.size_bytes - len(footer) - _END_BYTES, bounds_of=bounds_of
            )
        except BadFooter as error:
            reason = str(error)
        except (NotFound, InvalidRequest):  # no store has a key that none takes
            cause, reason = "gone", "it is gone since it was listed"
        except PreconditionFailed:
            cause, reason = "changed", "it changed since it was listed, which no data file may"
        except IceDBError as error:
            cause, reason = "unanswered", str(error)
        else:
            return Footer(
                info=info,
                row_count=parsed.row_count,
                columns=self._share(parsed.schema),
                odd_columns=parsed.schema.odd_columns,
                origin=read_origin(parsed.texts),
                bounds=parsed.bounds,
            )
        return UnreadableFooter(info, cause, reason)

    def _fetch(self, info: ObjectInfo) -> bytes:
        """Return the footer without its length and the magic bytes."""
        if info.size_bytes <= len(_MAGIC) + _END_BYTES:
            raise BadFooter(f"it has {info.size_bytes} bytes, too few for a Parquet file")
        tail = self._get_tail(info, min(TAIL_BYTES, info.size_bytes))
        if tail.endswith(_ENCRYPTED_MAGIC):
            raise BadFooter("its footer is encrypted, and nobody who reads the table has a key")
        if len(tail) < _END_BYTES or not tail.endswith(_MAGIC):
            raise BadFooter("it does not end as a Parquet file does: it is cut, or no Parquet file")
        length = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
        if length > info.size_bytes - len(_MAGIC) - _END_BYTES:
            raise BadFooter(f"its footer claims {length} bytes, more than the file has: it is cut or damaged")
        if length > MAX_FOOTER_BYTES:
            raise BadFooter(f"its footer has {length} bytes; the limit is {MAX_FOOTER_BYTES}")
        if length + _END_BYTES > len(tail):
            tail = self._get_tail(info, length + _END_BYTES)
        return tail[-length - _END_BYTES : -_END_BYTES]

    def _get_tail(self, info: ObjectInfo, length: int) -> bytes:
        start = info.size_bytes - length
        return self._store.get_range(info.key, start=start, length=length, if_match=info.etag or None).body

    def _share(self, schema: ParquetSchema) -> Mapping[str, str]:
        """Return the same mapping for the same columns: a million files of a table have a few different ones."""
        if len(self._shared) >= _MAX_SHARED_SCHEMAS:
            return schema.columns
        return self._shared.setdefault(tuple(schema.columns.items()), schema.columns)


class ParquetPageReader:
    """Reads pages; implements :class:`~icedb_log.repair.footers.PageReader`.

    Args:
        store: Where the files are.
        threads: Files read, and copies on the local disk, at once.
    """

    def __init__(self, store: ObjectStore, *, threads: int = PAGE_THREADS) -> None:
        self._store = store
        self._threads = threads

    def read_pages(self, infos: Iterable[ObjectInfo]) -> Iterator[PageLook]:
        """Read all bytes of any number of files: one result each, in the same order."""
        waiting: deque[Future[PageLook]] = deque()
        with tempfile.TemporaryDirectory(prefix="icedb-pages-") as folder:
            pool = ThreadPoolExecutor(self._threads, "icedb-pages")
            try:
                for number, info in enumerate(infos):
                    waiting.append(pool.submit(self._look, info, Path(folder) / f"{number}.parquet"))
                    if len(waiting) >= self._threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _look(self, info: ObjectInfo, path: Path) -> PageLook:
        try:
            self._store.download(info.key, path)
            counts = check_file_sums(path, unpack=_unpack)
        except DamagedPages as error:
            return PageLook(info, cause="damaged", reason=str(error))
        except (NotFound, InvalidRequest):  # no store has a key that none takes
            return PageLook(info, cause="gone", reason="it is gone since it was listed")
        except (IceDBError, OSError) as error:
            return PageLook(info, cause="unanswered", reason=str(error))
        finally:
            path.unlink(missing_ok=True)
        return PageLook(info, page_count=counts.pages, unsummed_count=counts.unsummed)


def _unpack(codec: int, data: bytes, size_bytes: int) -> str | None:
    """Say what is wrong with a page that has no checksum, as far as its compression can tell."""
    if codec != _ZSTD or not size_bytes:
        return None
    try:
        found = zstd.ZstdDecompressor().decompress(data, size_bytes + 1)
    except zstd.ZstdError as error:
        return f"cannot be decompressed ({error})"
    return None if len(found) == size_bytes else f"has {len(found)} bytes without compression, not {size_bytes}"
