"""What the log says now, kept up to date from one view of it to the next (S1). Pure: no store, no clock.

A fold costs as much as the whole log. A state costs what the log files that came and went since the last view hold, so
that a worker can look at a table of 100,000 files every few seconds, and commit to it, and a simulation can run through
100,000 commits. It answers the same as :func:`icedb_log.log.fold.fold`; a test compares the two over random histories.

Planners ask it which data files are live and who names them. Checks of a commit ask it two things more: what the log
files say that are not dead themselves, since the others go (J2), and whether the dead ones are needed for anything.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Self

from icedb_log.model import FileMarker, ListedLogFile, LogView


class Named:
    """One data file: what the log files say of it.

    Attributes:
        marker: Its marker: of two that are live, the one that knows its rows.
        live_in: How often log files list it as live, and
        dead_in: as dead.
        held_live: The same of those log files alone that are not dead themselves.
        held_dead: The same.
        log_keys: Log files that name it, dead ones too; once for each time.
    """

    __slots__ = ("dead_in", "held_dead", "held_live", "live_in", "log_keys", "marker")

    def __init__(self, marker: FileMarker) -> None:
        self.marker = marker
        self.live_in = 0
        self.dead_in = 0
        self.held_live = 0
        self.held_dead = 0
        self.log_keys: list[str] = []

    @property
    def is_live(self) -> bool:
        """S1: a tombstone anywhere wins."""
        return is_live(self.live_in, self.dead_in)


def is_live(live_count: int, dead_count: int) -> bool:
    """Whether a data file is live that is listed so often as live, and so often as dead (S1: a tombstone wins)."""
    return live_count > 0 and not dead_count


class LogState:
    """What the log files of a table say together. Not thread-safe.

    Attributes:
        view: The log as it was taken in last.
    """

    def __init__(self) -> None:
        self.view = LogView("", (), 0)
        self._files: dict[str, ListedLogFile] = {}
        self._held: dict[str, ListedLogFile] = {}
        self._named: dict[str, Named] = {}
        self._killed: Counter[str] = Counter()
        self._folders: dict[str, dict[str, FileMarker]] = {}
        self._changed: set[str] = set()
        self._torn: set[str] = set()
        self._active: tuple[ListedLogFile, ...] | None = None

    @classmethod
    def of(cls, view: LogView) -> Self:
        """Return the state of one view."""
        state = cls()
        state.update(view)
        return state

    @property
    def files(self) -> Collection[ListedLogFile]:
        """All log files of the view that was taken in last."""
        return self._files.values()

    @property
    def folders(self) -> Mapping[str, Mapping[str, FileMarker]]:
        """Live data files by path, for each folder that has any: a partition is a folder."""
        return self._folders

    @property
    def torn(self) -> Collection[str]:
        """Data files of which the log files that are not dead say something else than all together.

        Whoever deletes the dead ones changes what is live: there should be none.
        """
        return self._torn

    def update(self, view: LogView) -> None:
        """Take in a later view of the same table. Costs what the log files that came and went hold."""
        self.view = view
        current = {file.key: file for file in view.files}
        came = [file for key, file in current.items() if not _is_same(self._files.get(key), file)]
        went = [file for key, file in self._files.items() if not _is_same(current.get(key), file)]
        for file in came:
            self._add(file)
        for file in went:
            self._let_go(file.key)
            self._remove(file)
        if came or went:
            self._files, self._active = current, None
        for file in (*came, *went):
            self._hold(file.key)
            for tombstone in file.log.log_tombstones:
                self._hold(tombstone.path)

    def take_changed(self) -> set[str]:
        """Return the folders of which a live file, or a log file that names one, has changed; forget them."""
        changed, self._changed = self._changed, set()
        return changed

    def is_dead_log(self, key: str) -> bool:
        """Whether a log file is tombstoned."""
        return key in self._killed

    def held_log(self, key: str) -> ListedLogFile | None:
        """Return a log file that is there and not dead."""
        return self._held.get(key)

    def active_files(self) -> tuple[ListedLogFile, ...]:
        """Return the log files that are not dead and may be merged (F4: a seal never is), ascending by key."""
        if self._active is None:
            files, killed = self._files.values(), self._killed
            self._active = tuple([file for file in files if not file.log.is_seal and file.key not in killed])
        return self._active

    def logs_naming(self, path: str) -> list[str]:
        """Return the keys of the log files, dead ones too, that name a data file."""
        named = self._named.get(path)
        return [] if named is None else named.log_keys

    def named(self, path: str) -> Named | None:
        """Return what is said of a data file; ``None``: no log file names it."""
        return self._named.get(path)

    def live_marker(self, path: str) -> FileMarker | None:
        """Return the marker of a live data file, ``None`` for any other."""
        named = self._named.get(path)
        return named.marker if named is not None and named.is_live else None

    def _add(self, file: ListedLogFile) -> None:
        for marker in file.log.markers:
            named = self._named.get(marker.path)
            if named is None:
                named = self._named[marker.path] = Named(marker)
            named.log_keys.append(file.key)
            if marker.tombstoned_ms is not None:
                named.dead_in += 1
            else:
                # Of two markers the one that knows its rows, and else the newest: a rebuild may have mended it, and the
                # log file that said something else goes.
                if not named.live_in or named.marker.row_count is None or marker.row_count is not None:
                    named.marker = marker
                named.live_in += 1
            self._settle(marker.path, named)
        if file.log.log_tombstones:
            self._killed.update([tombstone.path for tombstone in file.log.log_tombstones])

    def _remove(self, file: ListedLogFile) -> None:
        for marker in file.log.markers:
            named = self._named[marker.path]
            named.log_keys.remove(file.key)
            if marker.tombstoned_ms is not None:
                named.dead_in -= 1
            else:
                named.live_in -= 1
            self._settle(marker.path, named)
            if not named.log_keys:
                del self._named[marker.path]
                self._torn.discard(marker.path)
        for tombstone in file.log.log_tombstones:
            self._killed[tombstone.path] -= 1
            if not self._killed[tombstone.path]:
                del self._killed[tombstone.path]

    def _hold(self, key: str) -> None:
        """Count what a log file says among what is held if it is there and not dead, and else not."""
        file = None if key in self._killed else self._files.get(key)
        known = self._held.get(key)
        if known is file:
            return
        if known is not None:
            self._let_go(key)
        if file is not None:
            self._held[key] = file
            self._count_held(file, 1)

    def _let_go(self, key: str) -> None:
        file = self._held.pop(key, None)
        if file is not None:
            self._count_held(file, -1)

    def _count_held(self, file: ListedLogFile, step: int) -> None:
        for marker in file.log.markers:
            named = self._named[marker.path]
            if marker.tombstoned_ms is not None:
                named.held_dead += step
            else:
                named.held_live += step
            if is_live(named.held_live, named.held_dead) == named.is_live:
                self._torn.discard(marker.path)
            else:
                self._torn.add(marker.path)

    def _settle(self, path: str, named: Named) -> None:
        folder = path.rpartition("/")[0]
        if named.is_live:
            self._folders.setdefault(folder, {})[path] = named.marker
            self._changed.add(folder)
        else:
            files = self._folders.get(folder)
            if files is not None and files.pop(path, None) is not None:
                self._changed.add(folder)
                if not files:
                    del self._folders[folder]
        if is_live(named.held_live, named.held_dead) != named.is_live:
            self._torn.add(path)
        elif self._torn:
            self._torn.discard(path)


def _is_same(one: ListedLogFile | None, other: ListedLogFile) -> bool:
    return one is not None and one.etag == other.etag
