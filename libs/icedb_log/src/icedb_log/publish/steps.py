"""What happened to a table since a state of it, log file by log file. Pure.

The log is no history: a log file may appear late, with a time long past, and go away when it has been merged. So the
steps are what *this* look at the log adds to what is known: each log file that is new is one, in an order in which
nothing comes before what it removes or carries on. What the new log files do not explain is one step more. The state
after the last step is the fold's, whatever the log files say (S1).
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from icedb_log.holds.guards import Death
from icedb_log.keys import log_name, parse_log_key
from icedb_log.log.fold import read_horizon_ms
from icedb_log.log.live_files import LiveFiles, path_digest, sum_digests
from icedb_log.log.markers import markers_of
from icedb_log.model import FileMarker, ListedLogFile, LogView
from icedb_log.publish.model import Operation, Step
from icedb_log.store.store_clock import MAX_STORE_GAP_MS

MAX_STEPS: Final = 100
"""Steps of one publication; older ones are told as one."""
NOBODY_KNOWS_MS: Final = -1
"""Needed since before all times: what a file that no log file names died of."""


@dataclass(frozen=True, slots=True)
class History:
    """Steps from one state to another.

    Attributes:
        steps: In their order; none adds nothing and removes nothing.
        before_since_ms: The state before the first step needs no data file that was dead by then.
    """

    steps: tuple[Step, ...]
    before_since_ms: int


@dataclass(slots=True)
class _Change:
    """A step in the making."""

    time_ms: int
    log: ListedLogFile | None = None
    added: dict[str, FileMarker] = field(default_factory=dict)
    removed: dict[str, None] = field(default_factory=dict)
    is_replace: bool = False
    has_own_files: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    @property
    def log_name(self) -> str:
        """Name of its log file; empty without one."""
        return "" if self.log is None else log_name(self.log.key)

    @property
    def operation(self) -> Operation:
        """What it did to rows, as told to those who know what was before it and nothing in between."""
        if not self.removed:
            return "append"
        if not self.added:
            return "delete"
        return "replace" if self.is_replace else "overwrite"


def find_history(
    view: LogView,
    live: LiveFiles,
    deaths: Mapping[str, Death],
    *,
    before: Collection[str] | None,
    before_digest: int | None = None,
    known: AbstractSet[str] = frozenset(),
    since_ms: int,
) -> History:
    """Return what leads from a state to the one that the log says.

    Args:
        view: The log.
        live: Its live data files, as folded.
        deaths: When each dead data file died, as the same log says.
        before: Data files of the state before; ``None``: there is none, and the first step makes all that is not told.
        before_digest: Of these data files, as :attr:`LiveFiles.digest`; ``None``: it is not known. With it a look costs
            what has changed, and not what is there.
        known: Names of log files that are part of the state before.
        since_ms: A state that needs a data file which was dead by then is not told by itself.
    """
    files = [file for file in view.files if not file.log.is_seal and log_name(file.key) not in known]
    dying = {path for file in files for path in markers_of(file.key, file.log.markers).dead_paths()}
    current, gone = set(before or ()), deaths.keys() - dying
    changes = [change for file in _in_order(files) if (change := _apply(file, current, gone))]
    if not _leads_to(live, changes, 0 if before is None else before_digest):
        rest = _find_rest(live, current, view.store_now_ms)
        changes += [rest] if rest else []
    needs_ms = _find_needs(view, changes, deaths)
    last = len(changes) - 1
    first = max(0, last + 1 - MAX_STEPS)
    # The last state is the live one: the log proves it (J4), however short the grace periods are.
    first = next((at for at in range(first, last) if needs_ms[at + 1] >= since_ms), last)
    if before is None:
        first = max(first, _last_uncertain(view, changes))
    told = [_unite(changes[: first + 1]), *changes[first + 1 :]] if changes else []
    steps = [
        Step(
            each.operation,
            each.time_ms,
            each.log_name,
            tuple(each.added.values()),
            tuple(each.removed),
            need_ms,
            each.has_own_files,
        )
        for each, need_ms in zip(told, needs_ms[first + 1 :], strict=False)
        if each
    ]
    # Without a step the state before is the live one, too.
    return History(tuple(steps), needs_ms[0] if steps else max(since_ms, needs_ms[-1]))


def _leads_to(live: LiveFiles, changes: Sequence[_Change], before_digest: int | None) -> bool:
    """Whether it is certain that changes make of the state before what is live."""
    if before_digest is None:
        return False
    came = (path_digest(path) for change in changes for path in change.added)
    went = (-path_digest(path) for change in changes for path in change.removed)
    return sum_digests([before_digest, *came, *went]) == live.digest


def _find_needs(view: LogView, changes: Sequence[_Change], deaths: Mapping[str, Death]) -> list[int]:
    """Return for the state before all changes, and that after each: by when none of its data files was dead."""
    # Whatever is live died, if ever, after the log was listed: as for a lease of that time (J4).
    needs_ms = [view.store_now_ms - MAX_STORE_GAP_MS]
    for change in reversed(changes):
        died = (_seen_dead_ms(deaths.get(path)) - 1 for path in change.removed)
        needs_ms.append(max(min((needs_ms[-1], *died)), NOBODY_KNOWS_MS))
    needs_ms.reverse()
    return needs_ms


def _seen_dead_ms(death: Death | None) -> int:
    """Return until when a data file may have been seen live; of one that no log file names nobody knows."""
    return death.seen_dead_ms if death is not None else NOBODY_KNOWS_MS


def _in_order(files: Sequence[ListedLogFile]) -> Iterator[ListedLogFile]:
    """Yield log files, none before another one of which it says that data files or the log file itself are dead.

    By name as far as that allows: clocks differ, and a merge may carry a time before that of its inputs. Where they
    contradict each other, the first by name comes first.
    """
    followers = _find_followers(files)
    waits_for = Counter(follower for each in followers for follower in each)
    ready = [at for at in range(len(files)) if not waits_for[at]]
    heapq.heapify(ready)
    left = dict.fromkeys(range(len(files)))
    while left:
        at = heapq.heappop(ready) if ready else next(iter(left))
        if at not in left:
            continue
        del left[at]
        yield files[at]
        for follower in followers[at]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                heapq.heappush(ready, follower)


def _find_followers(files: Sequence[ListedLogFile]) -> list[set[int]]:
    """Return for each log file those that say that it, or a data file that it lists as live, is dead."""
    position = {file.key: at for at, file in enumerate(files)}
    killers: dict[str, list[int]] = defaultdict(list)
    followers: list[set[int]] = [set() for _ in files]
    for at, file in enumerate(files):
        for path in markers_of(file.key, file.log.markers).dead_paths():
            killers[path].append(at)
        for tombstone in file.log.log_tombstones:
            if tombstone.path in position:
                followers[position[tombstone.path]].add(at)
    for at, file in enumerate(files) if killers else ():
        for path in markers_of(file.key, file.log.markers).live_paths():
            followers[at].update(killers.get(path, ()))
    for at, each in enumerate(followers):
        each.discard(at)
    return followers


def _apply(file: ListedLogFile, current: set[str], gone: set[str]) -> _Change:
    """Take one log file in; return what it changes, which may be nothing."""
    change = _Change(parse_log_key(file.key).time_ms, file, has_own_files=file.log.change == "append")
    markers = markers_of(file.key, file.log.markers)
    row_count: int | None = 0  # how many more there are afterwards; None: nobody knows
    for index, path in enumerate(markers.paths()):
        if index in markers.dead:
            gone.add(path)
            if path not in current:
                continue
            current.remove(path)
            change.removed[path] = None
            rows = markers.row_count(index)
            row_count = None if row_count is None or rows is None else row_count - rows
        elif path not in current and path not in gone:  # S1: what is dead stays dead
            current.add(path)
            marker = change.added[path] = markers.marker(index)
            rows = marker.row_count
            row_count = None if row_count is None or rows is None else row_count + rows
    # A merge of data files of which some were never told before has more rows than what it removes.
    change.is_replace = file.log.change == "merge" and row_count == 0
    return change


def _find_rest(live: LiveFiles, current: set[str], now_ms: int) -> _Change:
    """Return what the log says and its log files, one after another, did not."""
    change = _Change(now_ms)
    paths = live.paths()
    lacking = [path for path in paths if path not in current]
    if not lacking and len(paths) == len(current):
        return change
    change.removed = dict.fromkeys(sorted(current.difference(paths)))
    for path in lacking:
        marker = live.find(path)
        if marker is not None:
            change.added[path] = marker
    return change


def _unite(changes: Sequence[_Change]) -> _Change:
    """Return several changes as one."""
    if len(changes) == 1:
        return changes[0]
    last = changes[-1]
    united = _Change(last.time_ms)
    united.is_replace = all(change.is_replace for change in changes)
    united.has_own_files = all(change.has_own_files for change in changes)
    for change in changes:
        for path in change.removed:
            if united.added.pop(path, None) is None:
                united.removed[path] = None
        for path, marker in change.added.items():
            if path in united.removed:
                del united.removed[path]
            else:
                united.added[path] = marker
    return united


def _last_uncertain(view: LogView, changes: Sequence[_Change]) -> int:
    """Return the last change of which a state before it may lack rows: its log files may be gone (R3); -1: none."""
    horizon_ms = read_horizon_ms(view)
    found = (at for at, change in enumerate(changes) if change.log is None or change.time_ms <= horizon_ms)
    return max(found, default=-1)
