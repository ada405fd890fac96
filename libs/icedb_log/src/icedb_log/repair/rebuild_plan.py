"""What a rebuilt log says: which data files are live, which are dead, and what could not be decided (B1 to B3). Pure.

The order of what is believed: log files that are left, then what data files say of each other, then records of imports
and erasures, then ages. A row is never taken twice or left out without the plan naming the file.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.errors import CorruptLog
from icedb_log.keys import parse_log_key
from icedb_log.model import FeedState
from icedb_log.repair.footers import Footer
from icedb_log.repair.rebuild_clocks import find_odd_times
from icedb_log.repair.rebuild_commits import PROVEN, Choice, Side, Verdicts, find_verdicts, group_attempts
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_leftovers import find_leftovers, find_unsure_merges

MAX_NAMES: Final = 1000
"""So many files of one note are named; the counts are always whole."""

NoteKind = Literal[
    "young_flushes",
    "old_flushes",
    "old_merges",
    "removals",
    "pending_imports",
    "batch_ids",
    "views",
    "fed",
    "gone",
    "unreadable",
    "contradiction",
    "clocks",
]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that may be otherwise, without a choice.

    Attributes:
        kind: What.
        text: In words, with what to do.
        file_count: Files that it is about.
        row_count: Rows in them.
        files: Names of the first of them.
    """

    kind: NoteKind
    text: str
    file_count: int = 0
    row_count: int = 0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A data file that the rebuilt log does not name.

    Attributes:
        key: Its key.
        size_bytes: Its size.
        row_count: Its rows; ``None``: cannot be read.
        reason: Why.
        is_held: Whether the orphan sweep keeps its hands off it, for a person to look (B5).
    """

    key: str
    size_bytes: int
    row_count: int | None
    reason: str
    is_held: bool


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is to be done.

    Attributes:
        damage: What is wrong with the log that a rebuild mends; empty: nothing that is certain.
        live: Data files that are live, by key.
        dead: Data files that exist, or are named as live, and are not live any more.
        left_out: Data files that are not named.
        choices: What nobody can tell, and how it is decided.
        notes: What else may be otherwise.
        feed: Of a view: what it counts as taken; ``None``: what the log files say.
        lacks_feed: Of a view: nobody knows what it has taken.
        agreed: Data files of which log files that are whole say the same.
    """

    damage: tuple[str, ...]
    live: frozenset[str]
    dead: frozenset[str]
    left_out: tuple[LeftOut, ...]
    choices: tuple[Choice, ...]
    notes: tuple[Note, ...]
    feed: FeedState | None = None
    lacks_feed: bool = False
    agreed: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """Equal for plans that change the same; what a log file says that is whole is no change."""
        text = "\n".join(sorted(self.live - self.agreed)) + "\0" + "\n".join(sorted(self.dead - self.agreed))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def plan_rebuild(
    evidence: RebuildEvidence, *, decided: Side | None = None, takes_foreign: bool = False, assumes_fed: bool = False
) -> RebuildPlan:
    """Decide what a rebuilt log says.

    Args:
        evidence: What is left of the table.
        decided: What a person says of everything that nobody can tell; ``None``: as is likely.
        takes_foreign: Take files that IceDB did not write and no record of an import names.
        assumes_fed: Of a view: count all commits that its source has as taken, if nobody knows.
    """
    return _Planner(evidence, decided=decided, takes_foreign=takes_foreign, assumes_fed=assumes_fed).plan()


class _Planner:
    """One call of :func:`plan_rebuild`."""

    def __init__(
        self, evidence: RebuildEvidence, *, decided: Side | None, takes_foreign: bool, assumes_fed: bool
    ) -> None:
        self._evidence = evidence
        self._decided: Side | None = decided
        self._takes_foreign = takes_foreign
        self._assumes_fed = assumes_fed
        self._left_out: dict[str, LeftOut] = {}
        self._own, self._outsiders = _sort_out(evidence)

    def plan(self) -> RebuildPlan:
        evidence = self._evidence
        verdicts = find_verdicts(evidence, group_attempts(self._own.values()), decided=self._decided)
        # WARN: with what an erasure rewrote. Its targets are written down after its commit: a log that is lost in
        # between brings rows back that the certificate says are gone.
        dead = set(verdicts.dead) | evidence.rewritten | (evidence.erased - self._live_in_whole_logs())
        dead |= {path for path, marker in evidence.markers.items() if not marker.is_live}
        live = self._find_live(verdicts, dead)
        leftovers = find_leftovers(evidence, verdicts, live, decided=self._decided)
        for choice in leftovers:
            if choice.decided == "outputs":
                for key in choice.inputs:
                    live.discard(key)
                    self._leave_out(key, "its rows seem to be in another file", is_held=True)
        gone = {path for path, m in evidence.markers.items() if m.is_live and not evidence.is_there(path)}
        gone -= dead
        choices = [verdict.choice for verdict in verdicts.by_commit.values() if verdict.choice is not None]
        feed, lacks_feed = self._find_feed(verdicts)
        there = {key for key in dead if evidence.is_there(key) or key in evidence.markers}
        return RebuildPlan(
            damage=self._find_damage(verdicts, live, gone),
            live=frozenset(live),
            dead=frozenset(there | gone),
            left_out=tuple(self._left_out[key] for key in sorted(self._left_out)),
            choices=tuple(sorted((*choices, *leftovers), key=lambda choice: (choice.commit_id, choice.inputs))),
            notes=tuple(self._find_notes(verdicts, live, gone)),
            feed=feed,
            lacks_feed=lacks_feed,
            agreed=frozenset(live & self._live_in_whole_logs()) | (there & evidence.dead_in_whole_logs),
        )

    def _find_live(self, verdicts: Verdicts, dead: set[str]) -> set[str]:
        evidence = self._evidence
        replaced = {key for attempt in verdicts.attempts.values() for key in attempt.inputs}
        live: set[str] = set()
        for key, footer in self._own.items():
            verdict = verdicts.by_commit[footer.origin.commit_id]
            if key in dead:
                continue
            if verdict.has_landed:
                live.add(key)
            else:
                self._leave_out(key, f"not committed: {verdict.basis}", is_held=verdict.choice is not None)
        for key, reason in self._outsiders.items():
            was_live = key in evidence.markers or key in evidence.imported or key in replaced or key in evidence.pinned
            if key in dead:
                continue
            if was_live or (self._takes_foreign and reason == _FOREIGN):
                live.add(key)
            else:
                self._leave_out(key, reason, is_held=True)
        for key, unreadable in evidence.unreadable.items():
            if key not in dead and key in evidence.markers:
                live.add(key)  # the log says so; a reader will say what is wrong with it
            elif key not in dead:
                self._leave_out(key, unreadable.reason, is_held=True)
        return live

    def _live_in_whole_logs(self) -> set[str]:
        files = self._evidence.log.view.files
        return {m.path for file in files for m in file.log.markers} - self._evidence.dead_in_whole_logs

    def _leave_out(self, key: str, reason: str, *, is_held: bool) -> None:
        footer = self._evidence.footers.get(key)
        info = self._evidence.unreadable[key].info if footer is None else footer.info
        rows = None if footer is None else footer.row_count
        self._left_out[key] = LeftOut(key, info.size_bytes, rows, reason, is_held)

    def _find_damage(self, verdicts: Verdicts, live: set[str], gone: set[str]) -> tuple[str, ...]:
        """Return what is certainly wrong. A young file that nobody names is not: it may be about to be committed."""
        evidence = self._evidence
        damage = [f"{file.key}: {file.problem}" for file in evidence.log.damaged]
        if evidence.lost:
            damage.append(
                f"{len(evidence.lost)} commits landed, and their log files are not there: the first is "
                f"{evidence.lost[0]}.jsonl"
            )
        whole = {m.path: m for file in evidence.log.view.files for m in file.log.markers}
        has_commits = any(not file.log.is_seal for file in evidence.log.view.files)
        # Also with such as nobody knows to be this table's: without a log it looks empty.
        outside = [k for k in self._left_out if k in self._outsiders or k in evidence.unreadable]
        if not has_commits and (live or outside):
            damage.append(f"no log file is left, and {len(live) + len(outside)} data files may hold rows")
        proven = {c for c, verdict in verdicts.by_commit.items() if verdict.has_landed and verdict.basis in PROVEN}
        replaced = {key for attempt in verdicts.attempts.values() for key in attempt.inputs}
        known = {key for key, state in evidence.imported.items() if state == "committed"} | replaced | evidence.pinned
        known |= {key for key in live & self._own.keys() if self._own[key].origin.commit_id in proven}
        # A file that was ever live is named for as long as it exists (J2, M1).
        unnamed = [k for k in known - whole.keys() - self._left_out.keys() if evidence.is_there(k)]
        if has_commits and unnamed:
            damage.append(
                f"{len(unnamed)} data files were committed, and no log file names them: the first is {min(unnamed)}"
            )
        if gone:
            damage.append(
                f"{len(gone)} data files are live by the log, and are not there: the first is {min(gone)}. If they "
                "cannot be brought back, their rows are lost"
            )
        taken = {key for commit_id in proven for key in verdicts.attempts[commit_id].inputs} | evidence.rewritten
        wrong = [key for key in taken & whole.keys() if key not in evidence.dead_in_whole_logs]
        if wrong:
            damage.append(
                f"{len(wrong)} data files are live by the log, and others that were committed replaced them: the first "
                f"is {min(wrong)}"
            )
        return tuple(damage)

    def _find_notes(self, verdicts: Verdicts, live: set[str], gone: set[str]) -> Iterable[Note]:
        evidence = self._evidence
        by_basis: dict[str, list[str]] = defaultdict(list)
        for key in sorted(live & self._own.keys()):
            by_basis[verdicts.by_commit[self._own[key].origin.commit_id].basis].append(key)
        young = by_basis["young, and nothing tells"]
        if young:
            yield self._note(
                "young_flushes",
                young,
                "nothing tells whether these were committed: a flush that was cut off leaves such files, and its "
                f"batches were or will be committed by another one. They are taken; {evidence.staged_count} batches "
                "are staged now. Rows may be there twice",
            )
        old = by_basis["older than any orphan"]
        if old:
            yield self._note(
                "old_flushes",
                old,
                "taken because of their age: if they had not been committed, orphan sweeps would have deleted them. If "
                "none has run, rows may be there twice",
            )
        merged = find_unsure_merges(evidence, verdicts, live)
        if merged:
            yield self._note(
                "old_merges",
                merged,
                "taken because what they replaced is gone, though another file that is live can have the same rows: "
                "if they had not been committed, orphan sweeps would have deleted them. If none has run, rows may be "
                "there twice",
            )
        pending = [key for key, state in evidence.imported.items() if state == "pending" and key in live]
        pending = [key for key in pending if key not in evidence.markers]
        if pending:
            yield self._note(
                "pending_imports",
                pending,
                "taken: an import copied them, and did not say that it was "
                "committed. Either way their rows are there once: the next import settles it",
            )
        grace_s = evidence.config.data_grace_ms // 1000
        yield self._note(
            "removals",
            sorted(live),
            f"partitions that were removed within the data grace period ({grace_s:,} s), or longer ago if a pin, a "
            "lease or a view kept their files, and data files of which a deletion left no row, leave no trace but in "
            "the log: if there were any, their rows are back. Look at `icedb partitions`, and remove them again",
        )
        yield Note(
            "batch_ids",
            "which batches were committed is not known any more, but for what log files say that "
            "are left: a batch that a producer sends again is taken again",
        )
        if evidence.views:
            yield Note(
                "views",
                f"commits that the views {', '.join(evidence.views)} had not taken do not reach them "
                "any more, unless their log files are left: compare, or make the views anew",
            )
        if gone:
            yield Note(
                "gone",
                "the log names them as live, and they are not there: their rows are lost",
                len(gone),
                sum(evidence.markers[key].row_count or 0 for key in gone),
                _first(gone),
            )
        unreadable = sorted(live & evidence.unreadable.keys())
        if unreadable:
            yield Note(
                "unreadable",
                "the log names them as live, and their footers cannot be read: queries of them fail. Bring them back "
                "under the same keys; `icedb fsck --deep` says what is wrong",
                len(unreadable),
                sum(evidence.markers[key].row_count or 0 for key in unreadable if key in evidence.markers),
                _first(unreadable),
            )
        yield from self._find_disorder(verdicts)

    def _find_disorder(self, verdicts: Verdicts) -> Iterable[Note]:
        odd = find_odd_times(verdicts.attempts)
        if odd:
            yield self._note(
                "clocks",
                odd,
                "which of two jobs came last is told by the times in their ids, and those of the jobs that wrote these "
                "do not agree with the store's: a clock was off, or a job slept. Compare the rows of their partitions",
            )
        for first, second in verdicts.contradictions:
            yield Note(
                "contradiction",
                f"commits {first} and {second} replaced the same file, and both seem to have "
                "landed, which no fence allows: rows may be there twice, or missing",
            )

    def _note(self, kind: NoteKind, keys: list[str], text: str) -> Note:
        rows = sum(self._evidence.footers[key].row_count for key in keys if key in self._evidence.footers)
        return Note(kind, text, len(keys), rows, _first(keys))

    def _find_feed(self, verdicts: Verdicts) -> tuple[FeedState | None, bool]:
        """Return what a view counts as taken, and whether nobody knows (B6)."""
        evidence = self._evidence
        if evidence.source_names is None:
            return None, False
        feeds = [(feed.sequence, not parse_log_key(key).is_merged, key, feed) for key, feed in evidence.log.feeds]
        newest = max(feeds, default=None, key=lambda found: found[:2])
        # Only of a feed's own log file it is known that all feeds before it had a lower id.
        state_commit = "" if newest is None or not newest[1] else parse_log_key(newest[2]).commit_id
        unnamed = [
            c
            for c, attempt in verdicts.attempts.items()
            if attempt.kind == "flush" and verdicts.by_commit[c].basis != "named in the log" and c > state_commit
        ]
        unread = [file for file in evidence.log.damaged if file.head is None and commit_of(file.key) > state_commit]
        if newest is not None and not unnamed and not unread:
            return newest[3], False
        if not self._assumes_fed:
            return None, True
        sequence = 1 if newest is None else newest[0] + 1
        return FeedState(sequence, tuple(sorted(evidence.source_names))), False


_LAST_ID: Final = "~"
_FOREIGN: Final = "not written by IceDB, and no record of an import names it"


def commit_of(log_key: str) -> str:
    """Return the commit id in the name of an object below ``_log``; the highest there can be if there is none."""
    try:
        return parse_log_key(log_key).commit_id
    except CorruptLog:
        return _LAST_ID


def _sort_out(evidence: RebuildEvidence) -> tuple[dict[str, Footer], dict[str, str]]:
    """Return the table's own data files, and the others with what keeps them from being that."""
    own: dict[str, Footer] = {}
    outsiders: dict[str, str] = {}
    for key, footer in evidence.footers.items():
        origin = footer.origin
        if key in evidence.imported or origin.kind == "foreign" or not origin.commit_id:
            outsiders[key] = _FOREIGN
        elif origin.table != evidence.paths.name:
            outsiders[key] = f"written for table {origin.table[:80]!r}"
        elif origin.partition != evidence.paths.partition_of(key):
            outsiders[key] = f"written for partition {origin.partition[:200]!r}, and lies elsewhere"
        else:
            own[key] = footer
    return own, outsiders


def _first(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(keys)[:MAX_NAMES])
