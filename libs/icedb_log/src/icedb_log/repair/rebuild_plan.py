"""What a rebuilt log says: which data files are live, which are dead, and which wait for a person (B1, B5). Pure.

For each data file the first of these answers:

1. A log file that is whole names it: it is live or dead as the log says (S1).
2. An erasure waits for it to be gone: it is dead (E3).
3. The footer of another data file names it as an input: it is dead.
4. Nothing names it: it is a *candidate*. A person takes it or leaves it; nothing is guessed.

A file that was left counts as if it were not there: it says nothing about its inputs. One that a log file names or a
person takes says it against the log, too: its inputs, and what they were made from, are dead even if a log file lists
them as live. Two commits cannot both have replaced one file (F1): taking both is refused.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from icedb_log.log.fold import newest_feed
from icedb_log.log.state import LogState
from icedb_log.model import FeedState, FileMarker
from icedb_log.parquet.footer import Footer
from icedb_log.repair.rebuild_evidence import Mark, RebuildEvidence

Fate = Literal["waiting", "taken", "left"]


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What is asked for.

    Attributes:
        is_dry_run: Say what would be done; no fence is taken, nothing is written.
        is_forced: Write a new log although the old one has no certain damage.
        take: Globs of candidates that are live: of their paths below ``_data/``, or of commit ids.
        leave: Globs of candidates that are not; of a file that both match it is left.
        assumes_fed: Of a view: count all commits that its source has as taken, if nobody knows.
        digest: Of the plan that a person agreed to; another one is refused.
    """

    is_dry_run: bool = False
    is_forced: bool = False
    take: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    assumes_fed: bool = False
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file that nothing names, and what its footer says.

    Attributes:
        key: Its key.
        fate: What becomes of it.
        kind: Which job wrote it; ``foreign``: none of this table's; ``unreadable``: nobody can read its footer.
        commit_id: For which commit.
        partition: Encoded partition path, of its key.
        row_count: Its rows; ``None``: nobody knows.
        read_rows: Rows of the files that it was made from, with all other files that were; ``None``: none were, or
            one of them is gone or cannot be read.
        written_rows: Rows of all files that its job made from the same files. Fewer than ``read_rows``: rows were
            removed, or the job was cut off.
        size_bytes: Its size.
        age_ms: Since its LastModified, by the store's clock.
        mark: What else is known of it.
        problem: Why it is no ordinary file of this table; empty: it is.
    """

    key: str
    fate: Fate
    kind: str
    commit_id: str
    partition: str
    row_count: int | None
    read_rows: int | None
    written_rows: int | None
    size_bytes: int
    age_ms: int
    mark: Mark
    problem: str


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A damaged log file, and where its copy is."""

    key: str
    etag: str
    size_bytes: int
    problem: str
    copy_key: str = ""


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is to be done.

    Attributes:
        table: Name of the table.
        damage: What is certainly wrong with the log; empty: nothing.
        damaged: Log files that cannot be read.
        whole_log_files: The others.
        live_files: Data files that are live by what is certain.
        live_rows: Rows of them, without those of files that nobody can count.
        uncounted_files: Live data files whose rows nobody can count.
        dead_files: Data files that are there and dead.
        dead_rows: Rows of them.
        candidates: Data files that nothing names, by commit and key.
        missing: Data files that are live by the log and are not there.
        conflicts: Commits that cannot both have landed, in words; one of each has to be left.
        staged_batches: Batches that are staged now.
        digest: Equal for plans that change the same; what a whole log file says is no change.
        live: Keys of all live data files, with those that are taken.
        dead: Keys of data files that exist, or are named, and are not live.
        feed: Of a view: what it counts as taken; ``None``: what the log files say.
        lacks_feed: Of a view: nobody knows what it has taken (B5).
    """

    table: str
    damage: tuple[str, ...]
    damaged: tuple[DamagedEntry, ...]
    whole_log_files: int
    live_files: int
    live_rows: int
    uncounted_files: int
    dead_files: int
    dead_rows: int
    candidates: tuple[Candidate, ...]
    missing: tuple[str, ...]
    conflicts: tuple[str, ...]
    staged_batches: int
    digest: str
    live: frozenset[str] = field(repr=False)
    dead: frozenset[str] = field(repr=False)
    feed: FeedState | None = None
    lacks_feed: bool = False

    def of(self, fate: Fate) -> tuple[Candidate, ...]:
        """Return the candidates of one fate."""
        return tuple(each for each in self.candidates if each.fate == fate)

    def rows_of(self, fate: Fate) -> int:
        """Return the rows of the candidates of one fate, as far as they can be counted."""
        return sum(each.row_count or 0 for each in self.of(fate))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a document, with the sums that a person decides by."""
        document = asdict(self)
        for name in ("live", "dead", "feed"):
            document.pop(name)
        return document | {f"{fate}_rows": self.rows_of(fate) for fate in ("taken", "waiting", "left")}


_DEFAULTS: Final = RebuildOptions()


def plan_rebuild(evidence: RebuildEvidence, options: RebuildOptions = _DEFAULTS) -> RebuildPlan:
    """Say what a rebuilt log would name."""
    return _Findings(evidence, options).plan()


class _Findings:
    """What is found of each data file; see the module for the order."""

    def __init__(self, evidence: RebuildEvidence, options: RebuildOptions) -> None:
        self._evidence = evidence
        self._options = options
        state = LogState.of(evidence.view)
        self._markers: dict[str, FileMarker] = {marker.path: marker for marker in state.live}
        there = evidence.footers.keys() | evidence.unreadable.keys()
        named = {marker.path for file in evidence.view.files for marker in file.log.markers}
        self._own = {key: footer for key, footer in evidence.footers.items() if not _find_problem(evidence, footer)}
        unnamed = there - named - evidence.erased
        matched = {key for key in unnamed if self._matches(key, options.leave)}
        # F3: who was writing them had announced no commit, and is fenced off. Another job does it again.
        self._cut_off = {key for key in unnamed & self._own.keys() if evidence.fences.is_cut_off(self._own[key])}
        self.left = matched | self._cut_off
        inputs = {key for name, footer in self._own.items() if name not in self.left for key in footer.origin.inputs}
        self.candidates = unnamed - (inputs - self.left)
        self.left &= self.candidates
        # Nobody can say which rows an unreadable file has: it can only be left.
        wanted = (self.candidates & evidence.footers.keys()) - self.left
        self.taken = {key for key in wanted if self._matches(key, options.take)}
        replaced = self._find_replaced(named | self.taken) | evidence.erased
        self.missing = self._markers.keys() - there - replaced
        # Live by the log, and replaced for certain: rows are there twice, or were erased.
        self.replaced = self._markers.keys() & replaced
        self.live = (self._markers.keys() - self.missing - self.replaced) | self.taken
        self.dead = ((there | named) - self.live - self.candidates) | self.missing

    def _find_replaced(self, landed: Iterable[str]) -> set[str]:
        """Return what files that landed were made from, at any remove: an input was live, so that it had landed."""
        waiting, found = list(landed), set[str]()
        while waiting:
            footer = self._own.get(waiting.pop())
            new = () if footer is None else set(footer.origin.inputs) - found
            found.update(new)
            waiting.extend(new)
        return found

    def plan(self) -> RebuildPlan:
        """Put it together."""
        evidence = self._evidence
        damage = tuple(self._find_damage())
        certain = self.live - self.taken
        counts = [self._rows(key) for key in certain]
        dead_there = [found for key in self.dead if (found := evidence.found(key)) is not None]
        feed, lacks_feed = self._find_feed()
        changed = (self.taken, self.missing, self.replaced, [file.key for file in evidence.damaged])
        text = "\0".join("\n".join(sorted(keys)) for keys in changed)
        return RebuildPlan(
            table=evidence.paths.name,
            damage=damage,
            damaged=tuple(DamagedEntry(f.key, f.etag, f.size_bytes, f.problem) for f in evidence.damaged),
            whole_log_files=len(evidence.view.files),
            live_files=len(certain),
            live_rows=sum(count for count in counts if count is not None),
            uncounted_files=counts.count(None),
            dead_files=len(dead_there),
            dead_rows=sum(each.row_count for each in dead_there if isinstance(each, Footer)),
            candidates=tuple(self._describe()),
            missing=tuple(sorted(self.missing)),
            conflicts=tuple(self._find_conflicts()),
            staged_batches=evidence.staged_count,
            digest=hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
            live=frozenset(self.live),
            dead=frozenset(self.dead),
            feed=feed,
            lacks_feed=lacks_feed,
        )

    def _matches(self, key: str, globs: Iterable[str]) -> bool:
        names = (key.removeprefix(self._evidence.paths.data_prefix), self._commit_of(key))
        return any(fnmatchcase(name, glob) for glob in globs for name in names if name)

    def _commit_of(self, key: str) -> str:
        footer = self._own.get(key)
        return "" if footer is None else footer.origin.commit_id

    def _rows(self, key: str) -> int | None:
        """Return how many rows a data file has: the footer knows best."""
        footer, marker = self._evidence.footers.get(key), self._markers.get(key)
        if footer is not None:
            return footer.row_count
        return None if marker is None else marker.row_count

    def _find_damage(self) -> Iterator[str]:
        """Yield what is certainly wrong. That files wait is not: a job that was cut off leaves some."""
        evidence = self._evidence
        for file in evidence.damaged:
            yield f"{file.key}: {file.problem}"
        if lost := evidence.lost:
            yield f"{len(lost)} log files of commits that landed are not there: the first is {lost[0]}.jsonl"
        if not evidence.has_commits and self.candidates:
            yield f"no log file is left; data files that may hold rows: {len(self.candidates)}"
        if self.missing:
            yield (
                f"{len(self.missing)} data files are live by the log and are not there: the first is "
                f"{min(self.missing)}. If they cannot be brought back, their rows are lost"
            )
        if self.replaced:
            yield (
                f"{len(self.replaced)} data files are live by the log, though others replaced them: the first is "
                f"{min(self.replaced)}"
            )

    def _find_conflicts(self) -> Iterator[str]:
        """Yield the commits that replaced one file, at least one of them by a file that is taken (F1)."""
        takers: dict[str, set[str]] = defaultdict(set)
        for key in self.live | self.dead:
            for path in self._own[key].origin.inputs if key in self._own else ():
                takers[path].add(self._commit_of(key))
        taken = {self._commit_of(key) for key in self.taken}
        found = {tuple(sorted(each)): path for path, each in sorted(takers.items()) if len(each) > 1 and each & taken}
        for commit_ids, path in sorted(found.items()):
            yield f"{' and '.join(commit_ids)} both replaced {path}: only one of them can have landed"

    def _describe(self) -> Iterator[Candidate]:
        evidence, own = self._evidence, self._own
        written: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
        for each in own.values():
            written[each.origin.commit_id, each.origin.inputs] += each.row_count
        for key in sorted(self.candidates, key=lambda key: (self._commit_of(key), key)):
            footer, unreadable = evidence.footers.get(key), evidence.unreadable.get(key)
            info = (footer or evidence.unreadable[key]).info
            origin = own[key].origin if key in own else None
            inputs = () if origin is None else origin.inputs
            read = [self._rows(path) for path in inputs]
            known = [count for count in read if count is not None]
            yield Candidate(
                key=key,
                fate="taken" if key in self.taken else "left" if key in self.left else "waiting",
                kind="unreadable" if footer is None else "foreign" if origin is None else origin.kind,
                commit_id=self._commit_of(key),
                partition=key.removeprefix(evidence.paths.data_prefix).rpartition("/")[0],
                row_count=None if footer is None else footer.row_count,
                read_rows=sum(known) if read and len(known) == len(read) else None,
                written_rows=written[origin.commit_id, inputs] if origin is not None and inputs else None,
                size_bytes=info.size_bytes,
                age_ms=max(0, evidence.view.store_now_ms - info.modified_ms),
                mark=evidence.marks.get(key) or evidence.marks.get(self._commit_of(key), ""),
                problem=unreadable.reason if footer is None and unreadable else self._problem_of(key),
            )

    def _problem_of(self, key: str) -> str:
        if key in self._own:
            return "its job had announced no commit, and is fenced off" if key in self._cut_off else ""
        return _find_problem(self._evidence, self._evidence.footers[key])

    def _find_feed(self) -> tuple[FeedState | None, bool]:
        """Return what a view counts as taken, and whether nobody knows (B5)."""
        evidence = self._evidence
        if evidence.source_names is None:
            return None, False
        feed = newest_feed(file.log.feed for file in evidence.view.files)
        is_whole = not (evidence.damaged or evidence.lost or self.taken)
        if feed is not None and is_whole:
            return feed, False
        if not self._options.assumes_fed:
            return None, True
        sequence = (feed.sequence if feed else 0) + 1
        backfilled = (evidence.backfill_files,) if evidence.backfill_files else ()
        return FeedState(sequence, tuple(sorted(evidence.source_names)), backfilled=backfilled), False


def _find_problem(evidence: RebuildEvidence, footer: Footer) -> str:
    """Return why a data file is none of the table's own; empty: it is one."""
    origin, paths = footer.origin, evidence.paths
    if evidence.marks.get(footer.info.key) == "imported":
        return "an import copied it"
    if origin.kind == "foreign" or not origin.commit_id:
        return "IceDB did not write it"
    if origin.table != paths.name:
        return f"it was written for table {origin.table[:80]!r}"
    if origin.partition != paths.partition_of(footer.info.key):
        return f"it was written for partition {origin.partition[:200]!r}, and lies elsewhere"
    return ""
