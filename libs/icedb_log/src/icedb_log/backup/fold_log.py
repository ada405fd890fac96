"""The one log file of a copy: what a state says, without its past (S1, M1, B3). Pure.

It replaces the log file that the copy had before as a merge does: with a log tombstone, and a tombstone for each data
file that was live there and is not any more. So both together say what the new one says alone, and a run that is cut
off between them leaves no state that never was.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from icedb_log.batch_ids import BatchIds
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.errors import InvariantViolated
from icedb_log.keys import TablePaths, first_id_of, parse_log_key, parse_staged_key
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.state import LogState
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogTombstone, LogView


@dataclass(frozen=True, slots=True)
class FoldedLog:
    """The log of a copy.

    Attributes:
        key: Of the folded log file.
        switch: Its content while the log files of before are there.
        final: Its content afterwards.
        kept: Log files of appends that stay beside it, because a view of the copy has still to take them (V4).
    """

    key: str
    switch: LogFile
    final: LogFile
    kept: tuple[ListedLogFile, ...]

    def logs(self) -> tuple[LogFile, ...]:
        """Return the log files of the copy."""
        return self.final, *(file.log for file in self.kept)

    def data_files(self) -> frozenset[str]:
        """Return the data files that the copy needs: live ones, and dead ones that a view has still to take."""
        return _live_paths(self.logs())


def fold_log(
    paths: TablePaths,
    view: LogView,
    snapshot: Snapshot,
    *,
    unfed: Collection[str],
    before: Iterable[ListedLogFile],
    aliases: Mapping[str, str],
    commit_id: str,
    now_ms: int,
) -> FoldedLog:
    """Fold a log.

    Args:
        paths: Keys of the table.
        view: The log.
        snapshot: Its fold.
        unfed: Keys of the log files that a view has still to take.
        before: Log files that the copy has.
        aliases: Keys of batches that are not staged in the source any more, to their keys in the copy: they count as
            decided there, too.
        commit_id: Of the folded log file.
        now_ms: This host's clock, for a table without a commit.

    Raises:
        InvariantViolated: The copy would not say what the source says.
    """
    kept = tuple(file for file in view.files if file.key in unfed)
    old = [file for file in before if file.key not in unfed]
    times = [parse_log_key(file.key).time_ms + 1 for file in (*view.files, *old)]
    base = build_merge_log(
        LogState.of(view),
        merged=(),
        folded_log_keys=[file.key for file in view.files],
        commit_id=commit_id,
        now_ms=max(times, default=now_ms),  # not later than need be: nobody can hold a time before the horizon
    )
    needed = _live_paths(file.log for file in kept)
    markers = tuple(marker for marker in base.markers if marker.is_live or marker.path in needed)
    decided, refused, contents = _find_batches([file.log for file in view.files if file.key not in unfed], aliases)
    final = replace(
        base,
        markers=markers,
        log_tombstones=(),
        batch_ids=decided,
        refused_ids=refused,
        contents=contents,
        horizon_ms=base.time_ms,  # R3: an older state is not known here
        rebuilt=commit_id,  # L2: followers begin anew
    )
    named = {marker.path for marker in markers}
    gone = {m.path: m for file in old for m in file.log.markers if m.is_live and m.path not in named}
    dead = tuple(FileMarker(m.path, m.size_bytes, m.created_ms, tombstoned_ms=base.time_ms) for m in gone.values())
    tombstones = tuple(LogTombstone(file.key, base.time_ms) for file in old if not file.log.is_seal)
    switch = replace(final, markers=(*markers, *dead), log_tombstones=tombstones)
    key = paths.log_key(time_ms=base.time_ms, commit_id=commit_id, is_merged=True)
    for log, others in ((switch, (*kept, *old)), (switch, kept), (final, kept)):
        listed = ListedLogFile(key, "", view.store_now_ms, 0, log)
        found = fold(LogView(paths.name, (*others, listed), view.store_now_ms))
        if found.snapshot_id != snapshot.snapshot_id:
            raise InvariantViolated(f"table {paths.name}: the log of its copy would say something else (S1, M1)")
    return FoldedLog(key, switch, final, kept)


def _live_paths(logs: Iterable[LogFile]) -> frozenset[str]:
    return frozenset(marker.path for log in logs for marker in log.markers if marker.is_live)


def _find_batches(
    logs: Collection[LogFile], aliases: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """Return the ids of the batches that are live, those that were refused, and what tells contents (I2, I5, I8)."""
    decided = {batch_id for log in logs for batch_id in log.batch_ids}
    refused = {batch_id for log in logs for batch_id in log.refused_ids} - decided
    contents = {batch_id: known for log in logs for batch_id, known in log.contents.items()}
    staged = BatchIds(parse_staged_key(key).batch_id for key in aliases)
    decided_as = staged.find_in(refused) | staged.find_in(decided)  # I7: maybe as another id of the same key
    for key, name in aliases.items():
        batch_id, alias = parse_staged_key(key).batch_id, first_id_of(name)
        batch_id = decided_as.get(batch_id, batch_id)
        (refused if batch_id in refused else decided).add(alias)
        if batch_id in contents:
            contents[alias] = contents[batch_id]
    return tuple(sorted(decided)), tuple(sorted(refused - decided)), contents
