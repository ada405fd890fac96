"""What a rebuilt log says: which data files are live, which are dead, and what could not be decided (B1 to B3). Pure.

The order of what is believed: log files that are left, then what data files say of each other, then records of imports
and erasures, then ages. A row is never taken twice or left out without the plan naming the file.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from icedb_log.keys import file_time_ms, parse_log_key
from icedb_log.model import FeedState
from icedb_log.parquet.footer import ColumnBounds, Footer
from icedb_log.repair.rebuild_commits import CLOCK_SKEW_MS, GONE, NAMED, OLD, YOUNG, CommitResolver, commit_of
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_record import Choice, DamagedEntry, LeftOut, Note, RebuildReport, Side

MAX_NAMES: Final = 1000
"""So many files of one note are named; the counts are always whole."""

NOTES: Final[Mapping[str, str]] = {
    "young_flushes": (
        "nothing tells whether these were committed: a flush that was cut off leaves such files, and its batches were "
        "or will be committed by another one. They are taken; {staged} batches are staged now. Rows may be there twice"
    ),
    "old_flushes": (
        "taken because of their age: if they had not been committed, orphan sweeps would have deleted them. If none "
        "has run, rows may be there twice"
    ),
    "old_merges": (
        "taken because what they replaced is gone, though another file that is live can have the same rows: if they "
        "had not been committed, orphan sweeps would have deleted them. If none has run, rows may be there twice"
    ),
    "pending_imports": (
        "taken: an import copied them, and did not say that it was committed. Either way their rows are there once: "
        "the next import settles it"
    ),
    "removals": (
        "partitions that were removed within the data grace period ({grace_s:,} s), or longer ago if a pin, a lease "
        "or a view kept their files, and data files of which a deletion left no row, leave no trace but in the log: if "
        "there were any, their rows are back. Look at `icedb partitions`, and remove them again"
    ),
    "batch_ids": (
        "which batches were committed is not known any more, but for what log files say that are left: a batch that a "
        "producer sends again is taken again"
    ),
    "views": (
        "commits that the views {views} had not taken do not reach them any more, unless their log files are left: "
        "compare, or make the views anew"
    ),
    "gone": "the log names them as live, and they are not there: their rows are lost",
    "unreadable": (
        "the log names them as live, and their footers cannot be read: queries of them fail. Bring them back under the "
        "same keys; `icedb fsck --deep` says what is wrong"
    ),
    "clocks": (
        "which of two jobs came last is told by the times in their ids, and those of the jobs that wrote these do not "
        "agree with the store's: a clock was off, or a job slept. Compare the rows of their partitions"
    ),
    "contradiction": (
        "commits {first} and {second} replaced the same file, and both seem to have landed, which no fence allows: "
        "rows may be there twice, or missing"
    ),
}
"""What may be otherwise without a choice, and what to do about it."""

_FOREIGN: Final = "not written by IceDB, and no record of an import names it"

Decision = Literal["keep-inputs", "keep-outputs", "likely"]
_SIDES: Final[dict[Decision | None, Side]] = {"keep-inputs": "inputs", "keep-outputs": "outputs"}


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What is asked for.

    Attributes:
        is_dry_run: Say what would be done; no fence is taken, nothing is written.
        is_forced: Rebuild although nothing is certainly wrong with the log: log files were lost, and you know it.
        decision: How to decide what nobody can tell; ``None``: refuse if there is any.
        takes_foreign: Take files that IceDB did not write and no record of an import names.
        assumes_fed: Of a view: count all commits that its source has as taken, if nobody knows.
        digest: Of the plan that a person agreed to: it is carried out, with what is likely where that changes nothing
            that was agreed to; any other is refused.
    """

    is_dry_run: bool = False
    is_forced: bool = False
    decision: Decision | None = None
    takes_foreign: bool = False
    assumes_fed: bool = False
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What is to be done.

    Attributes:
        report: What was found and decided.
        live: Data files that are live, by key.
        dead: Data files that exist, or are named as live, and are not live any more.
        feed: Of a view: what it counts as taken; ``None``: what the log files say.
        lacks_feed: Of a view: nobody knows what it has taken.
    """

    report: RebuildReport
    live: frozenset[str]
    dead: frozenset[str]
    feed: FeedState | None = None
    lacks_feed: bool = False


_DEFAULTS: Final = RebuildOptions()


def plan_rebuild(evidence: RebuildEvidence, options: RebuildOptions = _DEFAULTS) -> RebuildPlan:
    """Decide what a rebuilt log says; without a decision about what nobody can tell: as is likely."""
    found = _Findings(evidence, options)
    live, dead = found.live, found.dead | found.gone
    # What a log file says that is whole is no change.
    agreed = (live & (evidence.named - evidence.dead)) | (found.dead & evidence.dead)
    changed = "\n".join(sorted(live - agreed)) + "\0" + "\n".join(sorted(dead - agreed))
    there = [each for key in live if (each := evidence.found(key))]
    report = RebuildReport(
        table=evidence.paths.name,
        made_ms=evidence.view.store_now_ms,
        damage=tuple(found.find_damage()),
        whole_log_files=len(evidence.view.files),
        damaged=tuple(
            DamagedEntry(
                key=file.key,
                etag=file.etag,
                size_bytes=file.size_bytes,
                problem=file.problem,
                salvaged_count=len(file.log.markers),
            )
            for file in evidence.damaged
        ),
        live_files=len(live),
        live_bytes=sum(each.info.size_bytes for each in there),
        live_rows=sum(each.row_count for each in there if isinstance(each, Footer)),
        dead_files=sum(evidence.is_there(key) for key in dead),
        choices=tuple(sorted(found.choices, key=lambda choice: (choice.commit_id, choice.inputs))),
        notes=tuple(found.find_notes()),
        left_out=tuple(_describe(evidence, key, why) for key, why in sorted(found.left_out.items())),
        digest=hashlib.blake2b(changed.encode(), digest_size=16).hexdigest(),
    )
    feed, lacks_feed = _find_feed(evidence, found.commits, assumes_fed=options.assumes_fed)
    return RebuildPlan(report, frozenset(live), frozenset(dead), feed, lacks_feed)


def _describe(evidence: RebuildEvidence, key: str, objection: tuple[str, bool]) -> LeftOut:
    found, (reason, is_held) = evidence.footers.get(key) or evidence.unreadable[key], objection
    rows = found.row_count if isinstance(found, Footer) else None
    return LeftOut(key=key, size_bytes=found.info.size_bytes, row_count=rows, reason=reason, is_held=is_held)


class _Findings:
    """What is found of each data file.

    Attributes:
        commits: Which commits landed.
        live: Data files that are live.
        dead: Data files that are dead, as far as they exist or a log file names them.
        gone: Data files that are live by the log, and are not there.
        left_out: Data files that are not named, by key: why, and whether a person should look at them.
        choices: What nobody can tell, and how it is decided.
    """

    def __init__(self, evidence: RebuildEvidence, options: RebuildOptions) -> None:
        self.evidence = evidence
        self.takes_foreign = options.takes_foreign
        decided = _SIDES.get(options.decision)
        self.outsiders = {key: why for key, f in evidence.footers.items() if (why := self._find_outsider(f))}
        own = {key: footer for key, footer in evidence.footers.items() if key not in self.outsiders}
        self.commits = CommitResolver(evidence, own.values(), decided=decided)
        self.verdicts = {key: self.commits.verdicts[footer.origin.commit_id] for key, footer in own.items()}
        # WARN: with what an erasure rewrote. Its targets are written down after its commit: a log that is lost in
        # between brings rows back that the certificate says are gone.
        dead = self.commits.dead() | evidence.rewritten | (evidence.erased - (evidence.named - evidence.dead))
        dead |= {path for path, marker in evidence.markers.items() if not marker.is_live}
        self.dead = {key for key in dead if evidence.is_there(key) or key in evidence.markers}
        self.gone = {path for path in evidence.markers if not evidence.is_there(path)} - dead
        unclear = {*evidence.footers, *evidence.unreadable} - dead
        self.left_out = {key: found for key in unclear if (found := self._find_objection(key))}
        self.live = unclear - self.left_out.keys()
        leftovers = _Leftovers(evidence, self.commits, self.live)
        self.choices = list(leftovers.find(decided))
        for choice in self.choices:
            if choice.decided == "outputs":
                self.live.discard(choice.inputs[0])
                self.left_out[choice.inputs[0]] = "its rows seem to be in another file", True
        self.choices += [each.choice for each in self.commits.verdicts.values() if each.choice is not None]
        self.unsure_merges = leftovers.find_unsure_merges(self.live)

    def _find_outsider(self, footer: Footer) -> str:
        """Return why a data file is none of the table's own; empty: it is one."""
        origin, paths = footer.origin, self.evidence.paths
        if footer.info.key in self.evidence.imported or origin.kind == "foreign" or not origin.commit_id:
            return _FOREIGN
        if origin.table != paths.name:
            return f"written for table {origin.table[:80]!r}"
        if origin.partition != paths.partition_of(footer.info.key):
            return f"written for partition {origin.partition[:200]!r}, and lies elsewhere"
        return ""

    def _find_objection(self, key: str) -> tuple[str, bool] | None:
        """Return why a data file is not live that nothing says is dead, and whether a person should look at it."""
        evidence, verdict = self.evidence, self.verdicts.get(key)
        if verdict is not None:
            return None if verdict.has_landed else (f"not committed: {verdict.basis}", verdict.choice is not None)
        if key in evidence.unreadable:
            # What the log names is live: a reader will say what is wrong with it.
            return None if key in evidence.markers else (evidence.unreadable[key].reason, True)
        # What something names which only names what was live once.
        witnesses = (evidence.markers, evidence.imported, self.commits.replaced, evidence.pinned)
        reason = self.outsiders[key]
        is_ours = any(key in names for names in witnesses) or (self.takes_foreign and reason == _FOREIGN)
        return None if is_ours else (reason, True)

    def find_damage(self) -> Iterator[str]:
        """Yield what is certainly wrong. A young file that nobody names is not: it may be about to be committed."""
        evidence, live = self.evidence, self.live
        for file in evidence.damaged:
            yield f"{file.key}: {file.problem}"
        if evidence.lost:
            yield (
                f"{len(evidence.lost)} commits landed, and their log files are not there: the first is "
                f"{evidence.lost[0]}.jsonl"
            )
        # Also with such as nobody knows to be this table's: without a log it looks empty.
        outside = [k for k in self.left_out if k in self.outsiders or k in evidence.unreadable]
        if not evidence.has_commits and (live or outside):
            yield f"no log file is left, and {len(live) + len(outside)} data files may hold rows"
        known = {key for key, state in evidence.imported.items() if state == "committed"}
        known |= self.commits.replaced | evidence.pinned
        known |= {key for key in live & self.verdicts.keys() if self.verdicts[key].is_proven}
        # A file that was ever live is named for as long as it exists (J2, M1).
        unnamed = [k for k in known - evidence.named - self.left_out.keys() if evidence.is_there(k)]
        if evidence.has_commits and unnamed:
            yield f"{len(unnamed)} data files were committed, and no log file names them: the first is {min(unnamed)}"
        if self.gone:
            yield (
                f"{len(self.gone)} data files are live by the log, and are not there: the first is {min(self.gone)}. "
                "If they cannot be brought back, their rows are lost"
            )
        replaced = self.commits.dead(proven_only=True) | evidence.rewritten
        if wrong := (replaced & evidence.named) - evidence.dead:
            yield (
                f"{len(wrong)} data files are live by the log, and others that were committed replaced them: the first "
                f"is {min(wrong)}"
            )

    def find_notes(self) -> Iterator[Note]:
        """Yield what may be otherwise without a choice."""
        evidence, live = self.evidence, self.live
        by_basis: dict[str, list[str]] = defaultdict(list)
        for key in live & self.verdicts.keys():
            by_basis[self.verdicts[key].basis].append(key)
        pending = {key for key, state in evidence.imported.items() if state == "pending"}
        about: dict[str, Collection[str]] = {
            "young_flushes": by_basis[YOUNG],
            "old_flushes": by_basis[OLD],
            "old_merges": self.unsure_merges,
            "pending_imports": (pending & live) - evidence.markers.keys(),
            "removals": live,
            "batch_ids": (),
            "views": (),
            "gone": self.gone,
            "unreadable": live & evidence.unreadable.keys(),
            "clocks": self.commits.find_odd_times(),
        }
        always = {"removals", "batch_ids", *(("views",) if evidence.views else ())}
        values = {
            "staged": evidence.staged_count,
            "grace_s": evidence.config.data_grace_ms // 1000,
            "views": ", ".join(evidence.views),
        }
        for kind in (kind for kind, keys in about.items() if keys or kind in always):
            # As far as their footers, or the log, say.
            known = evidence.markers if kind in ("gone", "unreadable") else evidence.footers
            yield Note(
                kind=kind,
                text=NOTES[kind].format(**values),
                file_count=len(about[kind]),
                row_count=sum(known[key].row_count or 0 for key in about[kind] if key in known),
                files=tuple(sorted(about[kind])[:MAX_NAMES]),
            )
        for first, second in self.commits.find_contradictions():
            yield Note(kind="contradiction", text=NOTES["contradiction"].format(first=first, second=second))


class _Leftovers:
    """Live files that may be dead: something kept them when what replaced them was vacuumed (B3).

    A pin or a view keeps a dead data file for longer than the files that replaced it (a lease keeps both). Then no
    footer names it: its rows are in an *heir*, a file that was made from one that is gone. Such pairs are looked for,
    by partition.

    Args:
        evidence: What is left of the table.
        commits: Which commits landed.
        live: The data files that are live if there are no leftovers.
    """

    def __init__(self, evidence: RebuildEvidence, commits: CommitResolver, live: Iterable[str]) -> None:
        self._evidence = evidence
        self._lone = {commit_id for commit_id, verdict in commits.verdicts.items() if verdict.basis == GONE}
        self._live = {key: evidence.footers[key] for key in sorted(live) if key in evidence.footers}
        ages = {key: self._newest_gone_ms(key) for key in self._live}
        self._gone_ms = {key: ms for key, ms in ages.items() if ms}
        self._heirs: dict[str, list[Footer]] = defaultdict(list)
        for key in sorted(self._gone_ms, key=lambda key: (-self._gone_ms[key], key)):
            self._heirs[evidence.paths.partition_of(key)].append(self._live[key])

    def find(self, decided: Side | None) -> Iterator[Choice]:
        """Yield the live files that may be dead, each with a live file that may have its rows.

        Args:
            decided: What a person says; ``None``: as is likely.
        """
        for key, footer in self._live.items():
            is_kept = key in self._evidence.pinned or self._evidence.holds_single_files
            is_young = not self._evidence.is_swept(footer.info.modified_ms)
            if not (is_kept or (is_young and footer.origin.commit_id in self._lone)):
                continue
            heir = next((heir for heir in self._heirs_of(key) if self._may_hold(heir, footer)), None)
            if heir is None:
                continue
            why = (
                "a pin or a view may have kept it after it was replaced"
                if is_kept
                else "it is young, and what it replaced is gone: it was committed, or cut off before another run did "
                "the same"
            )
            likely: Side = "outputs" if is_kept else "inputs"
            yield Choice(
                what="leftover",
                commit_id=footer.origin.commit_id,
                kind=footer.origin.kind,
                inputs=(key,),
                outputs=(heir.info.key,),
                input_rows=footer.row_count,
                output_rows=heir.row_count,
                likely=likely,
                decided=decided or likely,
                why=f"{why}; its rows can be in the other file, which was made from files that are gone. Compare the "
                "two",
            )

    def find_unsure_merges(self, live: Collection[str]) -> list[str]:
        """Return those of some live files that are taken for their age alone although another may have their rows.

        What they replaced is gone, which another commit may have done that replaced the same; and a live file of the
        same partition comes from one that is gone and was made later.
        """
        found: list[str] = []
        for key, footer in self._live.items():
            is_old = self._evidence.is_swept(footer.info.modified_ms)
            if key in live and is_old and footer.origin.commit_id in self._lone:
                heir = next((heir for heir in self._heirs_of(key) if heir.info.key in live), None)
                if heir and self._is_newer(heir, footer):
                    found.append(key)
        return found

    def _heirs_of(self, key: str) -> Iterator[Footer]:
        """Yield the other live files of a partition that come from files that are gone, the newest of these first."""
        heirs = self._heirs.get(self._evidence.paths.partition_of(key), ())
        return (heir for heir in heirs if heir.info.key != key)

    def _may_hold(self, heir: Footer, footer: Footer) -> bool:
        """Whether a file's rows can have come into another one by way of a file that is gone."""
        if (heir.info.modified_ms, heir.info.key) <= (footer.info.modified_ms, footer.info.key):
            return False  # what has its rows was written later; so no two files are left out for each other's sake
        if not self._is_newer(heir, footer):
            return False
        if heir.origin.kind != "merge" or self._evidence.config.merge_query is not None:
            return True  # rows were changed on the way: nothing can be compared
        return footer.row_count <= heir.row_count and all(
            _lies_within(bounds, heir.bounds.get(name)) for name, bounds in footer.bounds.items()
        )

    def _is_newer(self, heir: Footer, footer: Footer) -> bool:
        """Whether what is gone of an heir can be as young as a file, which was made when its host named it."""
        made_ms = file_time_ms(footer.info.key) or footer.info.modified_ms
        return self._gone_ms[heir.info.key] + CLOCK_SKEW_MS >= made_ms

    def _newest_gone_ms(self, key: str) -> int:
        """Return when the newest file was named that a data file has rows of, and that is gone, unix ms; 0: none is."""
        seen, waiting, newest_ms = {key}, [key], 0
        while waiting:
            footer = self._evidence.footers.get(waiting.pop())
            for each in () if footer is None else footer.origin.inputs:
                if not self._evidence.is_there(each):
                    newest_ms = max(newest_ms, file_time_ms(each) or 0)
                elif each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return newest_ms


def _lies_within(inner: ColumnBounds, outer: ColumnBounds | None) -> bool:
    """Whether all values can lie within; bounds that are not known, or not of one type, forbid nothing."""
    if outer is None or not inner.is_exact:
        return True
    try:
        below = inner.low is not None and outer.low is not None and inner.low < outer.low  # type: ignore[operator]
        above = inner.high is not None and outer.high is not None and inner.high > outer.high  # type: ignore[operator]
    except TypeError:
        return True
    return not below and not above


def _find_feed(
    evidence: RebuildEvidence, commits: CommitResolver, *, assumes_fed: bool
) -> tuple[FeedState | None, bool]:
    """Return what a view counts as taken, and whether nobody knows (B6)."""
    if evidence.source_names is None:
        return None, False
    feeds = ((f.log.feed.sequence, not parse_log_key(f.key).is_merged, f) for f in evidence.files if f.log.feed)
    sequence, is_own, file = max(feeds, default=(0, False, None), key=lambda found: found[:2])
    # Only of a feed's own log file it is known that all feeds before it had a lower id.
    state_commit = commit_of(file.key) if file and is_own else ""
    flushes = (c for c, each in commits.attempts.items() if each.kind == "flush" and commits.verdicts[c].basis != NAMED)
    damaged = (commit_of(file.key) for file in evidence.damaged if not file.has_head)
    if file and not any(commit_id > state_commit for commit_id in (*flushes, *damaged)):
        return file.log.feed, False
    if not assumes_fed:
        return None, True
    return FeedState(sequence + 1, tuple(sorted(evidence.source_names))), False
