"""Reads footers and pages of Parquet files in the store, to check and rebuild tables."""

import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from icedb_log.content import zstd
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, PreconditionFailed
from icedb_log.parquet.footer import TAIL_BYTES as END_BYTES
from icedb_log.parquet.footer import Footer, UnreadableCause, UnreadableFooter, parse_footer
from icedb_log.parquet.pages import PageLook, check_file_sums
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore

TAIL_BYTES: Final = 64 * 1024
MAX_FOOTER_BYTES: Final = 64 * 1024 * 1024
FOOTER_THREADS: Final = 16
PAGE_THREADS: Final = 4

_MAGIC: Final = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_READ_AHEAD: Final = 4
_MAX_SHARED_SCHEMAS: Final = 256
_ZSTD: Final = 6
"""In Parquet's list of codecs."""

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


class ParquetFooterReader:
    """Reads footers; implements :class:`~icedb_log.parquet.footer.FooterReader`. Thread-safe.

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
    ) -> Generator[Footer | UnreadableFooter, None, None]:
        """Read the footers of any number of files: one result each, in the same order.

        At most four times as many files as threads are read ahead. Whoever does not want them all closes the iterator.
        """
        wanted = frozenset(bounds_of)
        ahead = self._threads * _READ_AHEAD
        return _read_in_order(lambda info: self.read_footer(info, bounds_of=wanted), infos, self._threads, ahead=ahead)

    def read_footer(self, info: ObjectInfo, *, bounds_of: frozenset[str] = frozenset()) -> Footer | UnreadableFooter:
        """Read the footer of one file, or say why it cannot be read."""
        try:
            return self.require_footer(info, bounds_of=bounds_of)
        except (DamagedFile, IceDBError) as error:
            return UnreadableFooter(info, *_explain(error))

    def require_footer(self, info: ObjectInfo, *, bounds_of: frozenset[str] | None = frozenset()) -> Footer:
        """Read the footer of one file, with the bounds of some columns, ``None``: of all. One or two requests.

        Raises:
            DamagedFile: It is no Parquet file, or a damaged one.
            IceDBError: What the store says to the request.
        """
        footer = parse_footer(self._fetch(info), info, bounds_of=bounds_of)
        columns = footer.columns
        if len(self._shared) < _MAX_SHARED_SCHEMAS:  # a million files of a table have a few different ones
            columns = self._shared.setdefault(tuple(columns.items()), columns)
        return replace(footer, columns=columns)

    def _fetch(self, info: ObjectInfo) -> bytes:
        """Return the footer without its length and the magic bytes."""
        if info.size_bytes <= len(_MAGIC) + END_BYTES:
            raise DamagedFile(f"it has {info.size_bytes} bytes, too few for a Parquet file")
        tail = self._get_tail(info, min(TAIL_BYTES, info.size_bytes))
        if tail.endswith(_ENCRYPTED_MAGIC):
            raise DamagedFile("its footer is encrypted, and nobody who reads the table has a key")
        if len(tail) < END_BYTES or not tail.endswith(_MAGIC):
            raise DamagedFile("it does not end as a Parquet file does: it is cut, or no Parquet file")
        length = int.from_bytes(tail[-END_BYTES : -len(_MAGIC)], "little")
        if length > info.size_bytes - len(_MAGIC) - END_BYTES:
            raise DamagedFile(f"its footer claims {length} bytes, more than the file has: it is cut or damaged")
        if length > MAX_FOOTER_BYTES:
            raise DamagedFile(f"its footer has {length} bytes; the limit is {MAX_FOOTER_BYTES}")
        if length + END_BYTES > len(tail):
            tail = self._get_tail(info, length + END_BYTES)
        return tail[-length - END_BYTES : -END_BYTES]

    def _get_tail(self, info: ObjectInfo, length: int) -> bytes:
        start = info.size_bytes - length
        return self._store.get_range(info.key, start=start, length=length, if_match=info.etag or None).body


class ParquetPageReader:
    """Reads pages; implements :class:`~icedb_log.parquet.pages.PageReader`.

    Args:
        store: Where the files are.
        threads: Files read, and copies on the local disk, at once.
    """

    def __init__(self, store: ObjectStore, *, threads: int = PAGE_THREADS) -> None:
        self._store = store
        self._threads = threads

    def read_pages(self, infos: Iterable[ObjectInfo]) -> Iterator[PageLook]:
        """Read all bytes of any number of files: one result each, in the same order."""
        with tempfile.TemporaryDirectory(prefix="icedb-pages-") as folder:

            def look(numbered: tuple[int, ObjectInfo]) -> PageLook:
                number, info = numbered
                return self._look(info, Path(folder) / f"{number}.parquet")

            yield from _read_in_order(look, enumerate(infos), self._threads, ahead=self._threads)

    def _look(self, info: ObjectInfo, path: Path) -> PageLook:
        try:
            self._store.download(info.key, path)
            pages, unsummed = check_file_sums(path, unpack=_unpack)
        except (DamagedFile, IceDBError, OSError) as error:
            cause, reason = _explain(error)
            return PageLook(info, cause=cause, reason=reason)
        finally:
            path.unlink(missing_ok=True)
        return PageLook(info, page_count=pages, unsummed_count=unsummed)


def _read_in_order(
    read: Callable[[_Item], _Found], items: Iterable[_Item], threads: int, *, ahead: int
) -> Generator[_Found, None, None]:
    """Yield what is read of each item, in their order; at most ``ahead`` of them are waited for at once."""
    waiting: deque[Future[_Found]] = deque()
    pool = ThreadPoolExecutor(threads, "icedb-footers")
    try:
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _explain(error: Exception) -> tuple[UnreadableCause, str]:
    """Return why a file could not be read, and the same in words."""
    if isinstance(error, DamagedFile):
        return "damaged", str(error)
    if isinstance(error, (NotFound, InvalidRequest)):  # no store has a key that none takes
        return "gone", "it is gone since it was listed"
    if isinstance(error, PreconditionFailed):
        return "changed", "it changed since it was listed, which no data file may"
    return "unanswered", str(error)


def _unpack(codec: int, data: bytes, size_bytes: int) -> str | None:
    """Say what is wrong with a page that has no checksum, as far as its compression can tell."""
    if codec != _ZSTD or not size_bytes:
        return None
    try:
        found = zstd.ZstdDecompressor().decompress(data, size_bytes + 1)
    except zstd.ZstdError as error:
        return f"cannot be decompressed ({error})"
    return None if len(found) == size_bytes else f"has {len(found)} bytes without compression, not {size_bytes}"
