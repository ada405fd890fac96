"""What a rebuilt log says: which data files are live, which are dead, and what could not be decided (B1 to B3). Pure.

The order of what is believed: log files that are left, then what data files say of each other, then records of imports
and erasures, then ages. A row is never taken twice or left out without the plan naming the file.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from icedb_log.keys import parse_log_key
from icedb_log.model import FeedState
from icedb_log.parquet.footer import Footer
from icedb_log.repair.rebuild_commits import (
    NAMED,
    OLD,
    YOUNG,
    CommitResolver,
    Leftovers,
    commit_of,
    find_odd_times,
)
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_record import LeftOut, Note, RebuildReport, Side

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
    found = _Findings(evidence, decided=decided, takes_foreign=takes_foreign)
    live, dead, gone = found.live, found.dead, found.gone
    live_by_log = evidence.named - evidence.dead
    # What a log file says that is whole is no change.
    agreed = (live & live_by_log) | (dead & evidence.dead)
    changed = "\n".join(sorted(live - agreed)) + "\0" + "\n".join(sorted((dead | gone) - agreed))
    footers = [evidence.footers[key] for key in live if key in evidence.footers]
    infos = [footer.info for footer in footers]
    infos += [evidence.unreadable[key].info for key in live if key in evidence.unreadable]
    report = RebuildReport(
        table=evidence.paths.name,
        made_ms=evidence.view.store_now_ms,
        damage=tuple(found.find_damage()),
        whole_log_files=len(evidence.view.files),
        damaged=tuple(file.entry for file in evidence.damaged),
        live_files=len(live),
        live_bytes=sum(info.size_bytes for info in infos),
        live_rows=sum(footer.row_count for footer in footers),
        dead_files=sum(evidence.is_there(key) for key in dead | gone),
        choices=tuple(sorted(found.choices, key=lambda choice: (choice.commit_id, choice.inputs))),
        notes=tuple(found.find_notes()),
        left_out=tuple(found.left_out[key] for key in sorted(found.left_out)),
        digest=hashlib.blake2b(changed.encode(), digest_size=16).hexdigest(),
    )
    feed, lacks_feed = _find_feed(evidence, found.commits, assumes_fed=assumes_fed)
    return RebuildPlan(report, frozenset(live), frozenset(dead | gone), feed, lacks_feed)


class _Findings:
    """What is found of each data file.

    Attributes:
        commits: Which commits landed.
        live: Data files that are live.
        dead: Data files that are dead, as far as they exist or a log file names them.
        gone: Data files that are live by the log, and are not there.
        left_out: Data files that are not named, by key.
        choices: What nobody can tell, and how it is decided.
    """

    def __init__(self, evidence: RebuildEvidence, *, decided: Side | None, takes_foreign: bool) -> None:
        self.evidence = evidence
        self.takes_foreign = takes_foreign
        self.outsiders = {key: why for key, f in evidence.footers.items() if (why := self._find_outsider(f))}
        own = {key: footer for key, footer in evidence.footers.items() if key not in self.outsiders}
        self.commits = CommitResolver(evidence, own.values(), decided=decided)
        self.verdicts = {key: self.commits.verdicts[footer.origin.commit_id] for key, footer in own.items()}
        # What something names which only names what was live once.
        self.witnessed = {*evidence.markers, *evidence.imported, *self.commits.replaced, *evidence.pinned}
        # WARN: with what an erasure rewrote. Its targets are written down after its commit: a log that is lost in
        # between brings rows back that the certificate says are gone.
        dead = self.commits.dead() | evidence.rewritten | (evidence.erased - (evidence.named - evidence.dead))
        dead |= {path for path, marker in evidence.markers.items() if not marker.is_live}
        self.dead = {key for key in dead if evidence.is_there(key) or key in evidence.markers}
        self.gone = {path for path in evidence.markers if not evidence.is_there(path)} - dead
        self.live: set[str] = set()
        self.left_out: dict[str, LeftOut] = {}
        for key in {*evidence.footers, *evidence.unreadable} - dead:
            reason, is_held = self._find_objection(key)
            if reason is None:
                self.live.add(key)
            else:
                self._leave_out(key, reason, is_held=is_held)
        leftovers = Leftovers(evidence, self.commits.verdicts, self.live)
        self.choices = list(leftovers.find(decided))
        for choice in self.choices:
            if choice.decided == "outputs":
                self.live.discard(choice.inputs[0])
                self._leave_out(choice.inputs[0], "its rows seem to be in another file", is_held=True)
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

    def _find_objection(self, key: str) -> tuple[str | None, bool]:
        """Return why a data file is not live that nothing says is dead, and whether a person should look at it."""
        verdict = self.verdicts.get(key)
        if verdict is not None:
            return None if verdict.has_landed else f"not committed: {verdict.basis}", verdict.choice is not None
        if key in self.evidence.unreadable:
            # What the log names is live: a reader will say what is wrong with it.
            return None if key in self.evidence.markers else self.evidence.unreadable[key].reason, True
        reason = self.outsiders[key]
        return None if key in self.witnessed or (self.takes_foreign and reason == _FOREIGN) else reason, True

    def _leave_out(self, key: str, reason: str, *, is_held: bool) -> None:
        found = self.evidence.footers.get(key) or self.evidence.unreadable[key]
        rows = found.row_count if isinstance(found, Footer) else None
        self.left_out[key] = LeftOut(
            key=key, size_bytes=found.info.size_bytes, row_count=rows, reason=reason, is_held=is_held
        )

    def find_damage(self) -> Iterator[str]:
        """Yield what is certainly wrong. A young file that nobody names is not: it may be about to be committed."""
        evidence, live = self.evidence, self.live
        for file in evidence.damaged:
            yield f"{file.key}: {file.entry.problem}"
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
            "clocks": find_odd_times(self.commits.attempts),
        }
        is_always = {"removals": True, "batch_ids": True, "views": bool(evidence.views)}
        values = {
            "staged": evidence.staged_count,
            "grace_s": evidence.config.data_grace_ms // 1000,
            "views": ", ".join(evidence.views),
        }
        for kind, keys in about.items():
            if keys or is_always.get(kind):
                # As far as their footers, or the log, say.
                known = evidence.markers if kind in ("gone", "unreadable") else evidence.footers
                yield Note(
                    kind=kind,
                    text=NOTES[kind].format(**values),
                    file_count=len(keys),
                    row_count=sum(known[key].row_count or 0 for key in keys if key in known),
                    files=tuple(sorted(keys)[:MAX_NAMES]),
                )
        for first, second in self.commits.find_contradictions():
            yield Note(kind="contradiction", text=NOTES["contradiction"].format(first=first, second=second))


def _find_feed(
    evidence: RebuildEvidence, commits: CommitResolver, *, assumes_fed: bool
) -> tuple[FeedState | None, bool]:
    """Return what a view counts as taken, and whether nobody knows (B6)."""
    if evidence.source_names is None:
        return None, False
    feeds = [(feed.sequence, not parse_log_key(key).is_merged, key, feed) for key, feed in evidence.feeds]
    newest = max(feeds, default=None, key=lambda found: found[:2])
    # Only of a feed's own log file it is known that all feeds before it had a lower id.
    state_commit = "" if newest is None or not newest[1] else commit_of(newest[2])
    flushes = (c for c, each in commits.attempts.items() if each.kind == "flush" and commits.verdicts[c].basis != NAMED)
    damaged = (commit_of(file.key) for file in evidence.damaged if file.head is None)
    if newest is not None and not any(commit_id > state_commit for commit_id in (*flushes, *damaged)):
        return newest[3], False
    if not assumes_fed:
        return None, True
    sequence = 1 if newest is None else newest[0] + 1
    return FeedState(sequence, tuple(sorted(evidence.source_names))), False
