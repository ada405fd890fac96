"""The fold of markers that are held compactly (rule S1), by what has changed since an earlier one if that is little.

A log file that only came adds files and tombstones to what was there. One that went, or was stripped (J3), may have
been the only one to say something: then everything is folded anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.log.compact_markers import CompactMarkers, split_location
from icedb_log.log.gc_pause import paused_gc
from icedb_log.log.live_files import LiveFiles, find_all_live, reuse_chunks

FEW_MARKERS: Final = 1000
SHARE_OF_MANY: Final = 8
"""More new markers than an eighth of the live files are folded with all others: sorting them is cheaper."""


@dataclass(frozen=True, slots=True)
class CompactFold:
    """An earlier fold.

    Attributes:
        numbers: Of the markers that were folded.
        live: The live files.
        tombstoned_ms: The dead ones, with the earliest time.
    """

    numbers: frozenset[int]
    live: LiveFiles
    tombstoned_ms: Mapping[str, int]


def fold_compact(
    markers: Sequence[CompactMarkers], known: CompactFold | None = None
) -> tuple[LiveFiles, Mapping[str, int]]:
    """Return the live files and the earliest tombstone time of each dead one.

    Args:
        markers: Of all log files, ascending by their keys.
        known: The fold of an earlier state of the same log.
    """
    if known is not None:
        fresh = [each for each in markers if each.number not in known.numbers]
        if _is_growth(known, markers, fresh) and sum(map(len, fresh)) <= max(
            FEW_MARKERS, len(known.live) // SHARE_OF_MANY
        ):
            return _grow(known, fresh)
    with paused_gc():
        tombstoned_ms = _bury({}, markers)
        live = find_all_live(markers, frozenset(path.encode() for path in tombstoned_ms))
    return (live if known is None else reuse_chunks(live, known.live)), tombstoned_ms


def _is_growth(known: CompactFold, markers: Sequence[CompactMarkers], fresh: Sequence[CompactMarkers]) -> bool:
    """Whether every log file of an earlier fold is still there: only then nothing of it has to be taken back (S1)."""
    return len(markers) - len(fresh) == len(known.numbers)


def _is_dead(path: bytes, tombstoned_ms: Mapping[str, int]) -> bool:
    """Whether some log file has a tombstone of a data file: it wins wherever it stands (S1)."""
    return path.decode() in tombstoned_ms


def _dead_paths(fresh: Iterable[CompactMarkers]) -> list[bytes]:
    """Return the data files that new log files put to death: what was live before may be among them (S1)."""
    return [each.path(index) for each in fresh for index in each.dead]


def _grow(known: CompactFold, fresh: Sequence[CompactMarkers]) -> tuple[LiveFiles, Mapping[str, int]]:
    live, tombstoned_ms = known.live, known.tombstoned_ms
    removed: list[bytes] = []
    if any(each.dead for each in fresh):
        tombstoned_ms = _bury(dict(tombstoned_ms), fresh)
        removed = _dead_paths(fresh)
    added: dict[bytes, int] = {}
    sources = {**live.sources, **{each.number: each for each in fresh}}
    for each in fresh:
        for index in range(len(each)):
            path = each.path(index)
            if index in each.dead or _is_dead(path, tombstoned_ms):
                continue
            before = added.get(path, live.find(path))
            if before is None or (_says_no_rows(before, sources) and each.row_count(index) is not None):
                added[path] = each.location(index)
    return live.change(added, removed, fresh), tombstoned_ms


def _says_no_rows(location: int, sources: Mapping[int, CompactMarkers]) -> bool:
    number, at = split_location(location)
    return sources[number].row_count(at) is None


def _bury(tombstoned_ms: dict[str, int], markers: Sequence[CompactMarkers]) -> dict[str, int]:
    """Add the tombstones of some markers, each file with the earliest."""
    for each in markers:
        for index, time_ms in each.dead.items():
            path = each.path(index).decode()
            known = tombstoned_ms.get(path)
            if known is None or time_ms < known:
                tombstoned_ms[path] = time_ms
    return tombstoned_ms
