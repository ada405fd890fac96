"""The file markers of a log file as the state of the log takes them: decoded, or as lines in little memory.

A decoded marker with statistics takes about a kilobyte, its line a quarter of that. Whoever keeps the logs of many
large tables (:mod:`icedb_log.serving`, janitor, merger) keeps the lines, checked once, and decodes a marker when it is
asked for. Whoever looks at everything keeps what was decoded. A location tells one marker among those of many log
files.

Python looks for reference cycles whenever the number of its objects has grown by a quarter. Decoding a large log file
makes nothing but such growth and not one cycle: without :func:`paused_gc` the searches take a third of its time.
"""

import gc
import threading
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, count
from typing import Any, Final, NamedTuple, overload

from icedb_log.model import FileMarker

_lock = threading.Lock()
_paused_count = 0
_was_enabled = False


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the search for cycles for the whole process; may be nested, and entered by many threads at once."""
    global _paused_count, _was_enabled  # noqa: PLW0603 - the collector itself is one for the process
    with _lock:
        if _paused_count == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused_count += 1
    try:
        yield
    finally:
        with _lock:
            _paused_count -= 1
            if _paused_count == 0 and _was_enabled:
                gc.enable()


Entry = tuple[str, int]
"""Path and location of a marker."""

LineDecoder = Callable[[str, int, bytes], FileMarker]
"""From the key of a log file, the number of a line and its bytes to the marker."""

_PATH_STARTS: Final = b'{"p":"'
"""How a line of ours begins."""
_PATH_OFFSET: Final = len(_PATH_STARTS)
_MAX_PATH_BYTES: Final = (1 << 16) - 1
_NOTHING: Final = -1
INDEX_BITS: Final = 32
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
"""A location is the number of its markers, and then the index in them."""
_numbers = count(1)


class Tombstone(NamedTuple):
    """When a data file died, and the proof that its tombstone landed, as in :class:`~icedb_log.model.FileMarker`."""

    path: str
    tombstoned_ms: int
    landed_ms: int | None


MarkerBlock = tuple[int, Sequence[bytes], Sequence[Any]]
"""Lines that follow each other: where the first starts, all of them, and what each says, in fields as of a marker."""


class MarkerSequence(Sequence[FileMarker]):
    """Markers that are decoded on access: a sequence, compared by content, like a tuple of them."""

    __slots__ = ()

    @abstractmethod
    def marker(self, index: int) -> FileMarker:
        """Return a marker, whole."""

    @overload
    def __getitem__(self, index: int) -> FileMarker: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FileMarker, ...]: ...

    def __getitem__(self, index: int | slice) -> FileMarker | tuple[FileMarker, ...]:
        if isinstance(index, slice):
            return tuple(self.marker(at) for at in range(*index.indices(len(self))))
        return self.marker(range(len(self))[index])

    def __iter__(self) -> Iterator[FileMarker]:
        return map(self.marker, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or (len(self) == len(other) and tuple(self) == tuple(other))

    __hash__ = None  # type: ignore[assignment]


class Markers(MarkerSequence):
    """The markers of one log file. Immutable.

    Attributes:
        key: Of the log file.
        number: Of this object, unique in the process: what locations in it begin with.
        dead: Index of each marker that is a tombstone, and its time.
    """

    __slots__ = ("dead", "key", "number")

    def __init__(self, key: str) -> None:
        self.key: Final = key
        self.number: Final = next(_numbers)
        self.dead: dict[int, int] = {}

    @abstractmethod
    def light(self, index: int) -> FileMarker:
        """Return a marker, maybe without its statistics and what this version does not know: nothing is decoded."""

    def path(self, index: int) -> str:
        """Return the path of a data file."""
        return self.light(index).path

    def size_bytes(self, index: int) -> int:
        """Return the size of a data file."""
        return self.light(index).size_bytes

    def created_ms(self, index: int) -> int:
        """Return when a data file was made."""
        return self.light(index).created_ms

    def row_count(self, index: int) -> int | None:
        """Return the rows of a data file; ``None`` if its writer did not say."""
        return self.light(index).row_count

    def landed_ms(self, index: int) -> int | None:
        """Return the proof that a tombstone landed, if its log file has one (J1)."""
        return self.light(index).landed_ms

    def promoted_count(self, index: int) -> int:
        """Return how many promoted paths a data file has the columns of (S4)."""
        return self.light(index).promoted_count

    def tombstones(self) -> Iterator[Tombstone]:
        """Yield what is said of the dead data files."""
        return (Tombstone(self.path(index), time_ms, self.landed_ms(index)) for index, time_ms in self.dead.items())

    def dead_paths(self) -> Iterator[str]:
        """Yield the paths of the markers that are tombstones."""
        return map(self.path, self.dead)

    def live_paths(self) -> Iterator[str]:
        """Yield the paths of the markers that are no tombstones."""
        dead = self.dead
        return (path for index, path in enumerate(self.paths()) if index not in dead)

    def entries(self) -> list[Entry]:
        """Return path and location of each marker."""
        base = self.number << INDEX_BITS
        return [(path, base | index) for index, path in enumerate(self.paths())]

    def paths(self) -> Iterator[str]:
        """Yield all paths."""
        return map(self.path, range(len(self)))


class DecodedMarkers(Markers):
    """Markers that are decoded already."""

    __slots__ = ("_markers",)

    def __init__(self, key: str, markers: Sequence[FileMarker]) -> None:
        super().__init__(key)
        self._markers = markers
        self.dead = {at: time_ms for at, m in enumerate(markers) if (time_ms := m.tombstoned_ms) is not None}

    def __len__(self) -> int:
        return len(self._markers)

    def __iter__(self) -> Iterator[FileMarker]:
        return iter(self._markers)

    def marker(self, index: int) -> FileMarker:
        """See :class:`MarkerSequence`."""
        return self._markers[index]

    light = marker

    def path(self, index: int) -> str:
        """See :class:`Markers`: of a million of them, with one call less."""
        return self._markers[index].path

    def size_bytes(self, index: int) -> int:
        """See :class:`Markers`; as above."""
        return self._markers[index].size_bytes

    def created_ms(self, index: int) -> int:
        """See :class:`Markers`; as above."""
        return self._markers[index].created_ms

    def paths(self) -> Iterator[str]:
        """See :class:`Markers`."""
        return (marker.path for marker in self._markers)


def _length_of(path: bytes, line: bytes) -> int:
    """Return how long a path is that its line begins with, as it is.

    0: another writer wrote the line, and it begins with another field, or has escapes in it.
    """
    is_plain = line.startswith(b'%b%b"' % (_PATH_STARTS, path)) and len(path) <= _MAX_PATH_BYTES
    return len(path) if is_plain else 0


class LineMarkers(Markers):
    """The lines of a log file, and a few columns of numbers; each access to a whole marker decodes its line.

    Args:
        key: Of the log file.
        body: The log file.
        first_line: Number of the first marker's line.
        blocks: All lines of markers, and what they say.
        decode: Decodes a line that was decoded before.
    """

    __slots__ = (
        "_body",
        "_created",
        "_decode",
        "_first_line",
        "_landed",
        "_path_lengths",
        "_promoted",
        "_rows",
        "_sizes",
        "_starts",
    )

    def __init__(
        self, key: str, body: bytes, *, first_line: int, blocks: Iterable[MarkerBlock], decode: LineDecoder
    ) -> None:
        super().__init__(key)
        self._body = body
        self._first_line = first_line
        self._decode = decode
        self._starts = array("Q")
        self._path_lengths = array("H")
        self._rows = array("q")
        self._sizes = array("Q")
        self._created = array("Q")
        self._landed = array("q")
        self._promoted = array("H")
        times: dict[int, int] = {}
        for start, lines, said in blocks:
            dead = [(at, each.tombstoned_ms) for at, each in enumerate(said, len(self._starts))]
            self.dead.update((at, times.setdefault(ms, ms)) for at, ms in dead if ms is not None)
            self._starts.extend(accumulate([len(line) + 1 for line in lines[:-1]], initial=start))
            self._path_lengths.extend(map(_length_of, [each.path.encode() for each in said], lines))
            self._rows.extend([_NOTHING if (rows := each.row_count) is None else rows for each in said])
            self._sizes.extend([each.size_bytes for each in said])
            self._created.extend([each.created_ms for each in said])
            self._landed.extend([_NOTHING if (ms := each.landed_ms) is None else ms for each in said])
            self._promoted.extend([each.promoted_count for each in said])

    def __len__(self) -> int:
        return len(self._starts)

    def marker(self, index: int) -> FileMarker:
        """See :class:`Markers`."""
        start = self._starts[index]
        end = self._starts[index + 1] - 1 if index + 1 < len(self._starts) else len(self._body)
        return self._decode(self.key, self._first_line + index, self._body[start:end])

    def light(self, index: int) -> FileMarker:
        """See :class:`Markers`."""
        return FileMarker(
            self.path(index),
            self._sizes[index],
            self._created[index],
            self.dead.get(index),
            self.row_count(index),
            promoted_count=self._promoted[index],
        )

    def path(self, index: int) -> str:
        """See :class:`Markers`."""
        length = self._path_lengths[index]
        if not length:
            return self.marker(index).path
        start = self._starts[index] + _PATH_OFFSET
        return self._body[start : start + length].decode()

    def size_bytes(self, index: int) -> int:
        """See :class:`Markers`."""
        return self._sizes[index]

    def created_ms(self, index: int) -> int:
        """See :class:`Markers`."""
        return self._created[index]

    def row_count(self, index: int) -> int | None:
        """See :class:`Markers`."""
        rows = self._rows[index]
        return None if rows == _NOTHING else rows

    def landed_ms(self, index: int) -> int | None:
        """See :class:`Markers`."""
        landed_ms = self._landed[index]
        return None if landed_ms == _NOTHING else landed_ms

    def promoted_count(self, index: int) -> int:
        """See :class:`Markers`."""
        return self._promoted[index]

    def paths(self) -> Iterator[str]:
        """See :class:`Markers`."""
        body, offset = self._body, _PATH_OFFSET
        for index, (start, length) in enumerate(zip(self._starts, self._path_lengths, strict=True)):
            begin = start + offset
            yield body[begin : begin + length].decode() if length else self.path(index)


def markers_of(key: str, markers: Sequence[FileMarker]) -> Markers:
    """Return the markers of a log file as the state takes them."""
    return markers if isinstance(markers, Markers) else DecodedMarkers(key, markers)
