"""What the log file of a merge says (M1, M3, S1). Pure: no store, no clock.

Whatever exchanges live data files or folds log files ends here: outputs, dead inputs, and everything that the folded
log files say. Must never lose a marker or a log tombstone of a log file that it puts to death.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from icedb_log.jobs import MergedGroup
from icedb_log.keys import parse_log_key
from icedb_log.log.fold import find_rebuilt, newest_feed, read_horizon_ms, union_schema
from icedb_log.log.markers import INDEX_BITS, INDEX_MASK
from icedb_log.log.requests import find_requests
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema, state_inexact
from icedb_log.model import EMPTY, FileMarker, ListedLogFile, LogChange, LogFile, LogTombstone


def build_merge_log(
    state: LogState,
    *,
    merged: Sequence[MergedGroup],
    folded_log_keys: Iterable[str],
    commit_id: str,
    now_ms: int,
    change: LogChange | None = None,
    shown: Mapping[str, str] = EMPTY,
    promoted_count: int = 0,
) -> LogFile:
    """Build the log file of a merge (M1): outputs, dead inputs, and everything that the folded log files say.

    Args:
        state: The log, as the merge was planned from.
        merged: What became of each group; no groups at all folds log files only.
        folded_log_keys: Log files that it replaces.
        commit_id: Of this commit.
        now_ms: The committer's clock. The commit's time is later if that is needed to sort after all that it read (S1).
        change: What it does with rows (M3); ``None``: it does not say.
        shown: Promoted columns that come into the schema (S4).
        promoted_count: How many promoted paths the committer knows.
    """
    view = state.view
    known = union_schema(view.table, view.files)
    inputs = {marker.path: marker for group in merged for marker in group.group.inputs}
    chosen = set(folded_log_keys)
    # F4: a seal is never merged away, it has to outlive every request, and it names nothing.
    commits = [file for file in view.files if not file.log.is_seal]
    folded = [file for file in commits if file.key in chosen and not state.is_dead_log(file.key)]
    # WARN: S1: behind all that was read, and not only behind what is folded or names an input. A merge by a clock that
    # goes ahead kills a data file; a fold of its append leaves it out, and is named earlier; the append is vacuumed: a
    # state between the two times has neither the data file nor what the merge made of it.
    # Names and times are the same in our log files, but not necessarily in those of other writers.
    time_ms = max([now_ms, *(max(file.log.time_ms, parse_log_key(file.key).time_ms) + 1 for file in commits)])
    outputs = [marker for group in merged for marker in group.outputs]
    markers = list(outputs)
    markers += [replace(marker, tombstoned_ms=time_ms, landed_ms=None) for marker in inputs.values()]
    markers += _carried_markers(state, folded, skipped=inputs.keys())
    extra = {name: value for file in folded for name, value in file.log.extra.items()}
    return LogFile(
        time_ms=time_ms,
        schema={**known.logged, **shown},
        widened=known.widened,
        inexact=_find_inexact(known, outputs, folded, live={m.path for m in markers if m.tombstoned_ms is None}),
        markers=tuple(markers),
        log_tombstones=_carried_log_tombstones(folded, time_ms),
        commit_id=commit_id,
        horizon_ms=read_horizon_ms(view) or None,
        feed=newest_feed(file.log.feed for file in folded),
        change=change,
        rebuilt=find_rebuilt(folded),
        requests=find_requests(folded, now_ms=view.store_now_ms),
        extra=extra,
        promoted_count=max((promoted_count, *(file.log.promoted_count for file in view.files))),
    )


def _find_inexact(
    known: LoggedSchema, outputs: Iterable[FileMarker], folded: Iterable[ListedLogFile], *, live: Collection[str]
) -> dict[str, bool]:
    """Return what is proven of outputs and of the live data files that are carried (S2): of these, what was said."""
    doubtful = (file.log for file in folded if file.log.inexact is None or file.log.inexact)
    carried = [log for log in doubtful if any(m.tombstoned_ms is None and m.path in live for m in log.markers)]
    return state_inexact(known, outputs, carried=carried)


def _carried_markers(state: LogState, folded: Iterable[ListedLogFile], *, skipped: Collection[str]) -> list[FileMarker]:
    """Return what the folded log files name, once each; a tombstone keeps the proof of when it landed (J1).

    What they list as live, and a log file that stays says is dead, is left out: that one goes on saying so (S1).
    """
    files = {state.markers_in(file.key).number: file for file in folded}
    order = {number: at for at, number in enumerate(files)}
    live: list[FileMarker] = []
    dead: dict[str, FileMarker] = {}
    missing: dict[str, FileMarker] = {}
    for chunk, path, locations in state.named_in(files.keys()):
        if path in skipped:
            continue
        current = chunk.live_marker_of(locations)
        if current is not None:
            live.append(current)
            continue
        stays = chunk.count(each for each in locations if each >> INDEX_BITS not in files)
        said = sorted(
            (each for each in locations if each >> INDEX_BITS in files), key=lambda each: order[each >> INDEX_BITS]
        )
        for location in said:
            marker = chunk.sources[location >> INDEX_BITS].marker(location & INDEX_MASK)
            if marker.tombstoned_ms is None:
                if not stays.held_dead:
                    missing.setdefault(path, marker)
            else:
                dead[path] = _earlier_tombstone(dead.get(path), marker, files[location >> INDEX_BITS].modified_ms)
    # Live here, and dead only in a log file that is dead itself: carried as dead (S1).
    dead.update(_with_tombstones(state, {path: marker for path, marker in missing.items() if path not in dead}))
    return live + [dead[path] for path in sorted(dead)]


def _earlier_tombstone(known: FileMarker | None, marker: FileMarker, modified_ms: int) -> FileMarker:
    landed_ms = earliest_landing(marker.landed_ms, modified_ms)
    if known is None:
        return marker if landed_ms == marker.landed_ms else replace(marker, landed_ms=landed_ms)
    tombstoned_ms = min(known.tombstoned_ms or 0, marker.tombstoned_ms or 0)
    return replace(marker, tombstoned_ms=tombstoned_ms, landed_ms=earliest_landing(known.landed_ms, landed_ms))


def _with_tombstones(state: LogState, missing: Mapping[str, FileMarker]) -> dict[str, FileMarker]:
    """Give each marker the earliest time at which any log file says that it is dead."""
    times = state.tombstoned_ms if missing else {}
    return {path: replace(marker, tombstoned_ms=times[path]) for path, marker in missing.items()}


def _carried_log_tombstones(folded: Iterable[ListedLogFile], time_ms: int) -> tuple[LogTombstone, ...]:
    carried: dict[str, LogTombstone] = {}
    for file in folded:
        for tombstone in file.log.log_tombstones:
            known = carried.get(tombstone.path, tombstone)
            carried[tombstone.path] = LogTombstone(
                tombstone.path,
                min(known.tombstoned_ms, tombstone.tombstoned_ms),
                earliest_landing(known.landed_ms, earliest_landing(tombstone.landed_ms, file.modified_ms)),
                tombstone.extra,
            )
    for file in folded:
        carried.setdefault(file.key, LogTombstone(file.key, time_ms))
    return tuple(carried[path] for path in sorted(carried))


def earliest_landing(landed_ms: int | None, modified_ms: int) -> int:
    """Return the earlier of two proofs that a tombstone had landed, both by the store's clock (J1)."""
    return modified_ms if landed_ms is None else min(landed_ms, modified_ms)
