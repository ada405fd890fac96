"""The file markers of a log file in little memory: its own bytes, and a few columns of numbers.

A decoded marker with statistics takes about a kilobyte, its line a quarter of that. Whoever keeps the logs of many
large tables (:mod:`icedb_log.serving`) keeps the lines, checked once, and decodes a marker when it is asked for.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Final, overload

from icedb_log.model import FileMarker

LineDecoder = Callable[[str, int, bytes], FileMarker]
"""From the key of a log file, the number of a line and its bytes to the marker."""

_PATH_STARTS: Final = b'{"p":"'
"""How a line of ours begins."""
_PATH_OFFSET: Final = len(_PATH_STARTS)
_MAX_PATH_BYTES: Final = (1 << 16) - 1
_NO_ROWS: Final = -1
_INDEX_BITS: Final = 32
_INDEX_MASK: Final = (1 << _INDEX_BITS) - 1
_numbers = count(1)


class CompactMarkers(Sequence[FileMarker]):
    """The markers of one log file. Immutable; each access to one decodes its line.

    Args:
        key: Of the log file.
        body: The log file.
        first_line: Number of the first marker's line.
        lines: Where each line starts, and the marker that it decodes to, from the first to the last.
        decode: Decodes a line that was decoded before.

    Attributes:
        number: Of this object, unique in the process: what locations in it begin with.
        dead: Index of each marker that is a tombstone, and its time.
        sizes: Size of each data file, bytes.
        created: When each was made, unix ms.
    """

    __slots__ = (
        "_body",
        "_decode",
        "_first_line",
        "_key",
        "_path_lengths",
        "_rows",
        "_starts",
        "created",
        "dead",
        "number",
        "sizes",
    )

    def __init__(
        self, key: str, body: bytes, *, first_line: int, lines: Iterable[tuple[int, FileMarker]], decode: LineDecoder
    ) -> None:
        self.number: Final = next(_numbers)
        self._key = key
        self._body = body
        self._first_line = first_line
        self._decode = decode
        self._starts = array("Q")
        self._path_lengths = array("H")
        self._rows = array("q")
        self.sizes: Final = array("Q")
        self.created: Final = array("Q")
        self.dead: Final[dict[int, int]] = {}
        for index, (start, marker) in enumerate(lines):
            path = marker.path.encode()
            # A line that another writer wrote may begin with another field, or have escapes in it.
            is_plain = body.startswith(_PATH_STARTS + path + b'"', start) and len(path) <= _MAX_PATH_BYTES
            self._starts.append(start)
            self._path_lengths.append(len(path) if is_plain else 0)
            self._rows.append(_NO_ROWS if marker.row_count is None else marker.row_count)
            self.sizes.append(marker.size_bytes)
            self.created.append(marker.created_ms)
            if marker.tombstoned_ms is not None:
                self.dead[index] = marker.tombstoned_ms

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> FileMarker: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FileMarker, ...]: ...

    def __getitem__(self, index: int | slice) -> FileMarker | tuple[FileMarker, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        at = range(len(self))[index]
        start = self._starts[at]
        end = self._starts[at + 1] - 1 if at + 1 < len(self._starts) else len(self._body)
        return self._decode(self._key, self._first_line + at, self._body[start:end])

    def __iter__(self) -> Iterator[FileMarker]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # compared by content, as the tuple that it stands for

    def path(self, index: int) -> bytes:
        """Return the path of a data file, UTF-8."""
        length = self._path_lengths[index]
        if not length:
            return self[index].path.encode()
        start = self._starts[index] + _PATH_OFFSET
        return self._body[start : start + length]

    def row_count(self, index: int) -> int | None:
        """Return the rows of a data file; ``None`` if its writer did not say."""
        rows = self._rows[index]
        return None if rows == _NO_ROWS else rows

    def light(self, index: int) -> FileMarker:
        """Return a marker without its statistics and what this version does not know; nothing is decoded for it."""
        return FileMarker(
            path=self.path(index).decode(),
            size_bytes=self.sizes[index],
            created_ms=self.created[index],
            tombstoned_ms=self.dead.get(index),
            row_count=self.row_count(index),
        )

    def location(self, index: int) -> int:
        """Return the location of a marker: this object's number and the index in one number of 64 bits."""
        return self.number << _INDEX_BITS | index


def split_location(location: int) -> tuple[int, int]:
    """Return the number of the markers and the index in them."""
    return location >> _INDEX_BITS, location & _INDEX_MASK
