"""Which commits landed, as far as anything that is left can tell (rules B1 and B3). Pure.

The footers of one commit's data files say which data files its job had read. Such a file was live at that time, so the
commit that had made it certainly landed. Jobs that replace files have one fence: of those that read the same file only
the one that came last can have landed, because it read a log in which the file was still live.

:class:`CommitResolver` decides for each commit by the first rule that answers: what proves it; then what fences
remember; then what speaks against it; then what is likely, which a person may decide otherwise.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Final

from icedb_log.clock import uuid7_hex_ms
from icedb_log.errors import CorruptLog
from icedb_log.keys import file_time_ms, parse_log_key
from icedb_log.log.fence import MAX_SEAL_BYTES
from icedb_log.parquet.footer import Footer, FooterKind
from icedb_log.repair.rebuild_evidence import RebuildEvidence, look_of
from icedb_log.repair.rebuild_record import Choice, Side
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.units import MINUTE_MS

NAMED: Final = "named in the log"
GONE: Final = "what it replaced is gone"
OLD: Final = "older than any orphan"
YOUNG: Final = "young, and nothing tells"

CLOCK_SKEW_MS: Final = MINUTE_MS
"""So far may the clocks of the hosts be apart that named two files."""

_LAST_ID: Final = "~"
_WORDS: Final = {"delete": "a deletion", "rewrite": "a rewrite", "merge": "a merge by a query"}


@dataclass(frozen=True)
class Attempt:
    """The data files that were written for one commit, as far as they exist; commit ids sort by time."""

    commit_id: str
    outputs: tuple[Footer, ...]

    @property
    def kind(self) -> FooterKind:
        """Which job."""
        return self.outputs[-1].origin.kind

    @cached_property
    def output_keys(self) -> tuple[str, ...]:
        """Keys of its data files, ascending."""
        return tuple(sorted(footer.info.key for footer in self.outputs))

    @cached_property
    def inputs(self) -> frozenset[str]:
        """All data files that it was to replace, as far as it says."""
        return frozenset(key for footer in self.outputs for key in footer.origin.inputs)

    @cached_property
    def written_ms(self) -> tuple[int, int]:
        """When its first and its last data file were written, by the store's clock."""
        times = [footer.info.modified_ms for footer in self.outputs]
        return min(times), max(times)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an attempt.

    Attributes:
        has_landed: Whether its files count as committed.
        basis: How that is known, in words.
        choice: What was decided, if it is not known.
        is_proven: Whether it certainly landed.
    """

    has_landed: bool
    basis: str
    choice: Choice | None = None
    is_proven: bool = False


def commit_of(log_key: str) -> str:
    """Return the commit id in the name of an object below ``_log``; the highest there can be if there is none."""
    try:
        return parse_log_key(log_key).commit_id
    except CorruptLog:
        return _LAST_ID


class CommitResolver:
    """Finds out which commits landed (B1).

    Args:
        evidence: What is left of the table.
        footers: Of the table's own data files.
        decided: What a person says of commits that nobody can tell of; ``None``: as is likely.

    Attributes:
        attempts: What was written for each commit.
        verdicts: What became of each.
        replaced: Data files that some job had read: they were live once.
    """

    def __init__(self, evidence: RebuildEvidence, footers: Iterable[Footer], *, decided: Side | None) -> None:
        self._evidence = evidence
        self._decided: Side | None = decided
        written: dict[str, list[Footer]] = defaultdict(list)
        for footer in footers:
            written[footer.origin.commit_id].append(footer)
        self.attempts: Final = {commit_id: Attempt(commit_id, tuple(own)) for commit_id, own in sorted(written.items())}
        self._takers: dict[str, list[str]] = defaultdict(list)
        self._looks: dict[Hashable, set[str]] = defaultdict(set)
        for commit_id, attempt in self.attempts.items():
            for key in attempt.inputs:
                self._takers[key].append(commit_id)
            for footer in attempt.outputs if attempt.kind == "flush" else ():
                self._looks[look_of(footer)].add(commit_id)
        self.replaced: Final = frozenset(self._takers)
        files = (*evidence.view.files, *evidence.damaged)
        named = {file.log.commit_id for file in files}
        # Its name is that of one commit (W2), whatever became of its content, unless it was a seal.
        named |= {commit_of(file.key) for file in evidence.damaged if file.size_bytes > MAX_SEAL_BYTES}
        # WARN: a seal is no proof that a commit did not land. Whoever takes a fence after its log file got lost puts
        # one there (F1): the next flush, or this very rebuild.
        self._sealed = {commit_of(file.key) for file in evidence.view.files if file.log.is_seal}
        self._landed = {commit_of(evidence.paths.named_log_key(name)) for name in evidence.landed}
        self._proofs: tuple[tuple[str, Container[str | None]], ...] = (
            (NAMED, named),
            (NAMED, evidence.markers),
            ("replaced by a later commit", self.replaced),
            ("named by a pin", evidence.pinned),
            ("record of an erasure", {commit_id for commit_id, landed in evidence.deletions.items() if landed}),
        )
        self.verdicts: Final[dict[str, Verdict]] = {}
        self._apply(self._find_proof)
        self._is_log_sound = evidence.has_commits and not evidence.damaged and self._names_what_is_proven()
        self._apply(self._recall)
        self._apply(self._weigh)

    def dead(self, *, proven_only: bool = False) -> set[str]:
        """Return the data files that a commit replaced which landed."""
        landed = (c for c, each in self.verdicts.items() if each.has_landed and (each.is_proven or not proven_only))
        return {key for commit_id in landed for key in self.attempts[commit_id].inputs}

    def find_contradictions(self) -> list[tuple[str, str]]:
        """Return the commits that replaced the same file and are both proven to have landed."""
        pairs = (pair for takers in self._takers.values() for pair in combinations(takers, 2))
        return sorted({pair for pair in pairs if all(self.verdicts[each].is_proven for each in pair)})

    def find_odd_times(self) -> list[str]:
        """Return the data files of jobs whose order by commit ids (B1) the store's times do not bear out.

        Those of a host that was ahead: the id is later than what was written for it. And of jobs that read the same
        file, where the one that counts as later wrote everything before the other one wrote anything: one of both
        clocks was off, or the other one slept. Decides nothing.
        """
        attempts = self.attempts
        odd = {c for c, each in attempts.items() if (uuid7_hex_ms(c) or 0) > each.written_ms[0] + MAX_STORE_GAP_MS}
        for earlier, later in (pair for takers in self._takers.values() for pair in pairwise(takers)):
            if attempts[earlier].written_ms[0] > attempts[later].written_ms[1] + MAX_STORE_GAP_MS:
                odd |= {earlier, later}
        return sorted(key for commit_id in odd for key in attempts[commit_id].output_keys)

    def _apply(self, rule: Callable[[Attempt], Verdict | None]) -> None:
        """Ask a rule about each commit that nothing was said of, the newest first."""
        for commit_id in sorted(self.attempts.keys() - self.verdicts.keys(), reverse=True):
            verdict = rule(self.attempts[commit_id])
            if verdict is not None:
                self.verdicts[commit_id] = verdict

    def _find_proof(self, attempt: Attempt) -> Verdict | None:
        """Return what proves that a commit landed: all of it did, or nothing."""
        for basis, known in self._proofs:
            if any(name in known for name in (attempt.commit_id, *attempt.output_keys)):
                return Verdict(True, basis, is_proven=True)
        return None

    def _names_what_is_proven(self) -> bool:
        """Whether the log names whatever is there of the commits that landed, and of what they replaced."""
        proven = [self.attempts[commit_id] for commit_id in self.verdicts]
        keys = (key for each in proven for key in (*each.inputs, *each.output_keys))
        return all(key in self._evidence.markers or not self._evidence.is_there(key) for key in keys)

    def _recall(self, attempt: Attempt) -> Verdict | None:
        """Judge an attempt that landed for certain (F5), and of which no log file says anything any more.

        ``None``: no fence says so, or others replaced the same files since, which they can have done only after it was
        lost.
        """
        if attempt.commit_id not in self._landed:
            return None
        if self._has_proven_rival(attempt):
            why = "it landed and was lost, and another commit replaced some of the same files since; others are gone"
            return None if self._has_inputs(attempt) else self._decide(attempt, why, "outputs")
        if twin := self._find_later_twin(attempt):
            why = (
                f"it landed and was lost, and a later flush ({twin}) wrote files that are alike: of the same batches, "
                "if their producer sent them again after the loss, or of others with the same content"
            )
            return self._decide(attempt, why, "outputs")
        return Verdict(True, "a fence says that it landed", is_proven=True)

    def _weigh(self, attempt: Attempt) -> Verdict:
        """Judge an attempt that nothing proves: by what speaks against it, by its age, by its rows."""
        if refutation := self._find_refutation(attempt):
            return Verdict(False, refutation)
        is_old = self._evidence.is_swept(attempt.written_ms[1])
        if attempt.kind == "flush":
            doubt = self._find_doubt(attempt, is_old=is_old)
            return self._decide(attempt, *doubt) if doubt else Verdict(True, OLD if is_old else YOUNG)
        return self._weigh_whole(attempt, is_old=is_old) if self._has_inputs(attempt) else Verdict(True, GONE)

    def _find_refutation(self, attempt: Attempt) -> str:
        """Return what speaks for certain against a commit that nothing proves; empty: nothing."""
        if self._evidence.deletions.get(attempt.commit_id) is False:
            return "record of an erasure"
        if self._has_proven_rival(attempt):
            return "another commit replaced the same files"
        # WARN: only the last of them can have landed. The one before it would have made the file dead, and the last one
        # read the log after it had the fence (F2).
        if any(rival > attempt.commit_id for rival in self._rivals(attempt)):
            return "a later commit replaced the same files"
        # M1: the log file that has the tombstone of an input has the outputs, too, as long as they are live.
        is_elsewhere = not attempt.inputs.isdisjoint(self._evidence.dead)
        return "the log names another end of what it replaced" if is_elsewhere else ""

    def _find_doubt(self, attempt: Attempt, *, is_old: bool) -> tuple[str, Side] | None:
        """Return what speaks against a flush, in words, and what is likely; ``None``: nothing does."""
        if self._is_younger_than_fence(attempt):
            return (
                "its files are younger than the last write of the fence, and a commit comes before one: it was under "
                "way, or cut off, and another flush commits its batches. (Or the fence was restored with an old time)"
            ), "inputs"
        if twin := self._find_later_twin(attempt):
            # An orphan sweep would have deleted what is old and was cut off.
            return f"a later flush ({twin}) wrote files that are alike: of the same batches, it seems", (
                "outputs" if is_old else "inputs"
            )
        if attempt.commit_id in self._sealed:
            # A flush that was cut off leaves its batches staged (I2), for another one.
            may_be_repeated = self._evidence.has_commits or self._evidence.staged_count
            return (
                "a seal stands where its log file would be: it was cut off and its batches were committed by another "
                "flush, or its log file got lost and was sealed later"
            ), "inputs" if may_be_repeated else "outputs"
        if self._is_log_sound:
            what = "no fence says that it landed" if self._landed else "nothing shows that log files were lost"
            return f"{what}: its own log file was lost, or it was cut off, and another flush did the same", "outputs"
        return None

    def _weigh_whole(self, attempt: Attempt, *, is_old: bool) -> Verdict:
        """Judge an attempt of which all inputs and some outputs are there, and nothing else is known."""
        evidence = self._evidence
        written: dict[tuple[str, ...], int] = defaultdict(int)
        for footer in attempt.outputs:
            written[footer.origin.inputs] += footer.row_count
        counts = [(self._rows(inputs), rows) for inputs, rows in written.items()]
        has_intent = attempt.commit_id in evidence.fences.commits
        is_likely = False  # a merge by a query is complete for certain; the next one runs the query again
        if attempt.kind == "merge":
            if all(read == rows for read, rows in counts):
                return Verdict(True, "the same rows either way")
            if evidence.config.merge_query is None and all(read is not None for read, _ in counts):
                return Verdict(False, "cut off while it wrote")
        elif attempt.kind != "delete" or all(read is None or 0 < rows <= read for read, rows in counts):
            # An attempt this old whose inputs nobody has vacuumed, though nothing keeps them, has hardly landed.
            is_stale = (
                (is_old and not evidence.holds_dead_files)
                or (attempt.commit_id in self._sealed and evidence.has_commits)
                or self._is_younger_than_fence(attempt)
            )
            is_likely = has_intent or not is_stale
        state = "all of its files were written" if has_intent else "it may have been cut off while it wrote"
        what = _WORDS[attempt.kind]
        why = f"nothing tells whether {what} was committed: what it read is still there, and {state}"
        return self._decide(attempt, why, "outputs" if is_likely else "inputs")

    def _decide(self, attempt: Attempt, why: str, likely: Side) -> Verdict:
        """Decide about an attempt as a person says, or as is likely."""
        choice = Choice(
            what="commit",
            commit_id=attempt.commit_id,
            kind=attempt.kind,
            inputs=tuple(sorted(attempt.inputs)),
            outputs=attempt.output_keys,
            input_rows=self._rows(attempt.inputs),
            output_rows=sum(footer.row_count for footer in attempt.outputs),
            likely=likely,
            decided=self._decided or likely,
            why=why,
        )
        return Verdict(choice.decided == "outputs", "decided", choice)

    def _rivals(self, attempt: Attempt) -> set[str]:
        """Return the other commits that were to replace some of the same files."""
        return {rival for key in attempt.inputs for rival in self._takers[key]} - {attempt.commit_id}

    def _has_proven_rival(self, attempt: Attempt) -> bool:
        """Whether another commit that certainly landed replaced some of the same files."""
        return any(self.verdicts[rival].is_proven for rival in self._rivals(attempt) & self.verdicts.keys())

    def _find_later_twin(self, attempt: Attempt) -> str:
        """Return the last later flush whose files look like those of a flush; empty: there is none."""
        if attempt.kind != "flush":
            return ""
        twin = max(set.intersection(*(self._looks[look_of(footer)] for footer in attempt.outputs)))
        return twin if twin > attempt.commit_id else ""

    def _is_younger_than_fence(self, attempt: Attempt) -> bool:
        """Whether a commit had not even been announced when a rebuild took the fence: data files come before that (F3).

        The fence says so, if it was written meanwhile (F6). Else by the store's clock; and by the time in a file's
        name, because the objects of a copied table are younger than all that was committed.
        """
        if attempt.commit_id in self._evidence.fences.working:
            return True
        written_ms = self._evidence.fences.written_ms.get("ingest" if attempt.kind == "flush" else "merge")
        return written_ms is not None and any(
            footer.info.modified_ms > written_ms and (file_time_ms(footer.info.key) or 0) + CLOCK_SKEW_MS > written_ms
            for footer in attempt.outputs
        )

    def _has_inputs(self, attempt: Attempt) -> bool:
        return all(self._evidence.is_there(key) for key in attempt.inputs)

    def _rows(self, keys: Iterable[str]) -> int | None:
        """Return how many rows some files have; ``None``: one of them cannot be read."""
        found = [self._evidence.footers.get(key) for key in keys]
        known = [footer.row_count for footer in found if footer is not None]
        return sum(known) if len(known) == len(found) else None
