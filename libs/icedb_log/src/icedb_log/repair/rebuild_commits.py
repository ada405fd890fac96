"""Which commits landed, as far as data files can tell (rule B1). Pure.

The footers of one commit's data files say which data files its job had read. Such a file was live at that time, so the
commit that had made it certainly landed. Jobs that replace files have one fence: of those that read the same file only
the one that came last can have landed, because it read a log in which the file was still live.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Final, Literal

from icedb_log.errors import CorruptLog
from icedb_log.keys import file_time_ms, parse_log_key
from icedb_log.repair.footers import Footer, FooterKind
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.store.object_store import ObjectInfo

Side = Literal["inputs", "outputs"]
"""What is live when nobody can tell whether a commit landed: the files that its job read, or those that it wrote."""

Basis = Literal[
    "named in the log",
    "replaced by a later commit",
    "named by a pin",
    "record of an erasure",
    "a fence says that it landed",
    "what it replaced is gone",
    "the same rows either way",
    "older than any orphan",
    "young, and nothing tells",
    "decided",
    "a later commit replaced the same files",
    "another commit replaced the same files",
    "the log names another end of what it replaced",
    "cut off while it wrote",
]
"""How it is known, or why it is taken so."""

MAX_SEAL_BYTES: Final = 128
"""No seal is larger."""

CLOCK_SKEW_MS: Final = 60_000
"""So far may the clocks of the hosts be apart that named two files."""

PROVEN: Final[frozenset[Basis]] = frozenset(
    (
        "named in the log",
        "replaced by a later commit",
        "named by a pin",
        "record of an erasure",
        "a fence says that it landed",
    )
)


@dataclass(frozen=True)
class Attempt:
    """The data files that were written for one commit, and what they were made from.

    Attributes:
        commit_id: Its id; sorts by time.
        kind: Which job.
        groups: The outputs by the inputs they were made from; a flush has one group without inputs.
    """

    commit_id: str
    kind: FooterKind
    groups: Mapping[tuple[str, ...], tuple[Footer, ...]]

    @cached_property
    def outputs(self) -> tuple[Footer, ...]:
        """All its data files that exist."""
        return tuple(footer for outputs in self.groups.values() for footer in outputs)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """All data files that it was to replace, as far as it says."""
        return frozenset(key for inputs in self.groups for key in inputs)

    @property
    def output_rows(self) -> int:
        """Rows of its data files that exist."""
        return sum(footer.row_count for footer in self.outputs)


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that the files cannot tell, and how it is decided.

    Attributes:
        what: ``commit``: whether a deletion, a rewrite or a merge by a query landed; ``leftover``: whether a file that
            something may have kept is dead, and its rows are in another file.
        commit_id: Of the commit; for a leftover, of the one that wrote the file.
        kind: Which job wrote ``outputs``, or the leftover.
        inputs: Files that are live if it is decided for ``inputs``.
        outputs: Files that are live if it is decided for ``outputs``; of a leftover, the one that may have its rows.
        input_rows: Rows of ``inputs``; ``None``: one of them cannot be read.
        output_rows: Rows of ``outputs``.
        likely: What the evidence speaks for.
        decided: What is done.
        why: In words.
    """

    what: Literal["commit", "leftover"]
    commit_id: str
    kind: FooterKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_rows: int | None
    output_rows: int
    likely: Side
    decided: Side
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an attempt.

    Attributes:
        has_landed: Whether its files count as committed.
        basis: How that is known.
        choice: What was decided, if it is not known.
    """

    has_landed: bool
    basis: Basis
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of all attempts.

    Attributes:
        attempts: By commit id.
        by_commit: The verdict of each.
        dead: Data files that a commit replaced which landed.
        contradictions: Commits that replaced the same file and are both proven to have landed.
    """

    attempts: Mapping[str, Attempt]
    by_commit: Mapping[str, Verdict]
    dead: frozenset[str]
    contradictions: tuple[tuple[str, str], ...] = field(default=())


def group_attempts(footers: Iterable[Footer]) -> dict[str, Attempt]:
    """Return what was written for each commit. All footers are of this table's own data files."""
    groups: dict[str, dict[tuple[str, ...], list[Footer]]] = defaultdict(lambda: defaultdict(list))
    kinds: dict[str, FooterKind] = {}
    for footer in footers:
        groups[footer.origin.commit_id][footer.origin.inputs].append(footer)
        kinds[footer.origin.commit_id] = footer.origin.kind
    return {
        commit_id: Attempt(commit_id, kinds[commit_id], {inputs: tuple(outputs) for inputs, outputs in parts.items()})
        for commit_id, parts in groups.items()
    }


def find_verdicts(evidence: RebuildEvidence, attempts: Mapping[str, Attempt], *, decided: Side | None) -> Verdicts:
    """Find out which commits landed (B1).

    Args:
        evidence: What is left of the table.
        attempts: What was written for each commit.
        decided: What a person says of commits that nobody can tell of; ``None``: as is likely.
    """
    return _Court(evidence, attempts, decided).judge()


class _Court:
    """One call of :func:`find_verdicts`."""

    def __init__(self, evidence: RebuildEvidence, attempts: Mapping[str, Attempt], decided: Side | None) -> None:
        self._evidence = evidence
        self._attempts = attempts
        self._decided = decided
        self._takers: dict[str, list[str]] = defaultdict(list)
        for commit_id in sorted(attempts):
            for key in attempts[commit_id].inputs:
                self._takers[key].append(commit_id)
        self._heads = {
            file.head.commit_id for file in evidence.log.damaged if file.head is not None and file.head.commit_id
        }
        # Its name is that of one commit (W2), whatever became of its content, unless it was a seal.
        self._heads |= {_named_commit(file.key) for file in evidence.log.damaged if file.size_bytes > MAX_SEAL_BYTES}
        self._heads |= {file.log.commit_id for file in evidence.log.view.files if file.log.commit_id}
        # WARN: a seal is no proof that a commit did not land. Whoever takes a fence after its log file got lost puts
        # one there (F1): the next flush, or this very rebuild.
        self._looks: dict[Hashable, set[str]] = defaultdict(set)
        for attempt in attempts.values():
            for footer in attempt.outputs if attempt.kind == "flush" else ():
                self._looks[_look(footer)].add(attempt.commit_id)
        self._sealed = {parse_log_key(file.key).commit_id for file in evidence.log.view.files if file.log.is_seal}
        self._landed = {_named_commit(f"{name}.jsonl") for name in evidence.landed}
        self._has_whole_logs = any(not file.log.is_seal for file in evidence.log.view.files)
        self._is_log_sound = False

    def judge(self) -> Verdicts:
        proven: dict[str, Verdict] = {}
        for commit_id, attempt in self._attempts.items():
            basis = self._find_proof(attempt)
            if basis is not None:
                proven[commit_id] = Verdict(True, basis)
        self._is_log_sound = self._has_whole_logs and not self._evidence.log.damaged and self._names_all_of(proven)
        doubtful: dict[str, Verdict] = {}
        for commit_id in sorted((self._landed & self._attempts.keys()) - proven.keys(), reverse=True):
            verdict = self._judge_landed(self._attempts[commit_id], proven.keys())
            if verdict is not None:
                (proven if verdict.choice is None else doubtful)[commit_id] = verdict
        by_commit = proven | doubtful
        proven_ids = frozenset(proven)
        for commit_id, attempt in self._attempts.items():
            if commit_id not in by_commit:
                by_commit[commit_id] = self._judge_unproven(attempt, proven_ids)
        dead = {
            key
            for commit_id, verdict in by_commit.items()
            if verdict.has_landed
            for key in self._attempts[commit_id].inputs
        }
        contradictions = {
            (first, second)
            for takers in self._takers.values()
            if len(takers) > 1
            for place, first in enumerate(takers)
            for second in takers[place + 1 :]
            if first in proven and second in proven
        }
        return Verdicts(self._attempts, by_commit, frozenset(dead), tuple(sorted(contradictions)))

    def _find_proof(self, attempt: Attempt) -> Basis | None:
        """Return what proves that a commit landed: all of it did, or nothing."""
        evidence = self._evidence
        keys = [footer.info.key for footer in attempt.outputs]
        if attempt.commit_id in self._heads or any(key in evidence.markers for key in keys):
            return "named in the log"
        if any(key in self._takers for key in keys):
            return "replaced by a later commit"
        if any(key in evidence.pinned for key in keys):
            return "named by a pin"
        return "record of an erasure" if evidence.deletions.get(attempt.commit_id) else None

    def _judge_landed(self, attempt: Attempt, proven: Collection[str]) -> Verdict | None:
        """Judge an attempt that landed for certain (F5), and of which no log file says anything any more.

        ``None``: others replaced the same files since, which they can have done only after it was lost.
        """
        rivals = self._find_rivals(attempt)
        if not rivals.isdisjoint(proven):
            if all(self._evidence.is_there(key) for key in attempt.inputs):
                return None
            why = "it landed and was lost, and another commit replaced some of the same files since; others are gone"
            return self._decide(attempt, (why, "outputs"))
        twin = self._find_twin(attempt) if attempt.kind == "flush" else ""
        if twin > attempt.commit_id:
            why = (
                f"it landed and was lost, and a later flush ({twin}) wrote files that are alike: of the same batches, "
                "if their producer sent them again after the loss, or of others with the same content"
            )
            return self._decide(attempt, (why, "outputs"))
        return Verdict(True, "a fence says that it landed")

    def _names_all_of(self, commits: Iterable[str]) -> bool:
        """Whether the log names whatever is there of some commits, and of what they replaced."""
        evidence = self._evidence
        attempts = [self._attempts[commit_id] for commit_id in commits]
        keys = (key for each in attempts for key in (*each.inputs, *(footer.info.key for footer in each.outputs)))
        return all(key in evidence.markers or not evidence.is_there(key) for key in keys)

    def _judge_unproven(self, attempt: Attempt, proven: frozenset[str]) -> Verdict:
        evidence = self._evidence
        refutation = self._find_refutation(attempt, proven)
        if refutation is not None:
            return Verdict(False, refutation)
        newest_ms = max(footer.info.modified_ms for footer in attempt.outputs)
        is_old = evidence.is_swept(newest_ms)
        if attempt.kind == "flush":
            doubt = self._find_doubt(attempt, is_old=is_old)
            if doubt is not None:
                return self._decide(attempt, doubt)
            return Verdict(True, "older than any orphan" if is_old else "young, and nothing tells")
        if not all(evidence.is_there(key) for key in attempt.inputs):
            return Verdict(True, "what it replaced is gone")
        return self._judge_whole(attempt, is_old=is_old)

    def _find_refutation(self, attempt: Attempt, proven: frozenset[str]) -> Basis | None:
        """Return what speaks for certain against a commit that nothing proves."""
        evidence = self._evidence
        if evidence.deletions.get(attempt.commit_id) is False:
            return "record of an erasure"
        rivals = self._find_rivals(attempt)
        if rivals & proven:
            return "another commit replaced the same files"
        # WARN: only the last of them can have landed. The one before it would have made the file dead, and the last one
        # read the log after it had the fence (F2).
        if any(rival > attempt.commit_id for rival in rivals):
            return "a later commit replaced the same files"
        # M1: the log file that has the tombstone of an input has the outputs, too, as long as they are live.
        is_elsewhere = not attempt.inputs.isdisjoint(evidence.dead_in_whole_logs)
        return "the log names another end of what it replaced" if is_elsewhere else None

    def _find_rivals(self, attempt: Attempt) -> set[str]:
        """Return the other commits that were to replace some of the same files."""
        return {rival for key in attempt.inputs for rival in self._takers[key]} - {attempt.commit_id}

    def _find_twin(self, attempt: Attempt) -> str:
        """Return the last flush whose files look like those of a flush; mostly itself."""
        return max(set.intersection(*(self._looks[_look(footer)] for footer in attempt.outputs)))

    def _find_doubt(self, attempt: Attempt, *, is_old: bool) -> tuple[str, Side] | None:
        """Return what speaks against a flush, in words, and what is likely; ``None``: nothing does."""
        if self._is_younger_than_fence(attempt):
            text = (
                "its files are younger than the last write of the fence, and a commit comes before one: it was under "
                "way, or cut off, and another flush commits its batches. (Or the fence was restored with an old time)"
            )
            return text, "inputs"
        twin = self._find_twin(attempt)
        if twin > attempt.commit_id:
            return f"a later flush ({twin}) wrote files that are alike: of the same batches, it seems", (
                "outputs" if is_old else "inputs"  # an orphan sweep would have deleted what is old and was cut off
            )
        if attempt.commit_id not in self._sealed:
            what = "no fence says that it landed" if self._landed else "nothing shows that log files were lost"
            text = f"{what}: its own log file was lost, or it was cut off, and another flush did the same"
            return (text, "outputs") if self._is_log_sound else None
        text = (
            "a seal stands where its log file would be: it was cut off and its batches were committed by another "
            "flush, or its log file got lost and was sealed later"
        )
        # A flush that was cut off leaves its batches staged (I2), for another one.
        return text, "inputs" if self._has_whole_logs or self._evidence.staged_count else "outputs"

    def _decide(self, attempt: Attempt, doubt: tuple[str, Side]) -> Verdict:
        """Decide about an attempt as a person says, or as is likely."""
        why, likely = doubt
        side = self._decided or likely
        choice = Choice(
            what="commit",
            commit_id=attempt.commit_id,
            kind=attempt.kind,
            inputs=tuple(sorted(attempt.inputs)),
            outputs=tuple(sorted(footer.info.key for footer in attempt.outputs)),
            input_rows=self._rows(attempt.inputs),
            output_rows=attempt.output_rows,
            likely=likely,
            decided=side,
            why=why,
        )
        return Verdict(side == "outputs", "decided", choice)

    def _judge_whole(self, attempt: Attempt, *, is_old: bool) -> Verdict:
        """Judge an attempt of which all inputs and some outputs are there, and nothing else is known."""
        counts = [(self._rows(inputs), sum(f.row_count for f in outputs)) for inputs, outputs in attempt.groups.items()]
        if attempt.kind == "merge":
            if all(read == written for read, written in counts):
                return Verdict(True, "the same rows either way")
            if self._evidence.config.merge_query is None and all(read is not None for read, _ in counts):
                return Verdict(False, "cut off while it wrote")
        input_rows = self._rows(attempt.inputs)
        is_plausible = attempt.kind != "delete" or all(read is None or 0 < written <= read for read, written in counts)
        has_intent = attempt.commit_id in self._evidence.fences.commits
        # An attempt this old whose inputs nobody has vacuumed, though nothing keeps them, has hardly landed.
        is_stale = is_old and not self._evidence.holds_dead_files
        is_stale = is_stale or (attempt.commit_id in self._sealed and self._has_whole_logs)
        is_stale = is_stale or self._is_younger_than_fence(attempt)
        likely: Side = "outputs" if is_plausible and (has_intent or not is_stale) else "inputs"
        if attempt.kind == "merge":
            likely = "inputs"  # complete for certain; the next merge runs the query again
        side = self._decided or likely
        choice = Choice(
            what="commit",
            commit_id=attempt.commit_id,
            kind=attempt.kind,
            inputs=tuple(sorted(attempt.inputs)),
            outputs=tuple(sorted(footer.info.key for footer in attempt.outputs)),
            input_rows=input_rows,
            output_rows=attempt.output_rows,
            likely=likely,
            decided=side,
            why=_describe(attempt, has_intent=has_intent),
        )
        return Verdict(side == "outputs", "decided", choice)

    def _is_younger_than_fence(self, attempt: Attempt) -> bool:
        """Whether a commit had not even been announced when a rebuild took the fence: data files come before that (F3).

        By the store's clock; and by the time in a file's name, because the objects of a copied table are younger than
        all that was committed.
        """
        written_ms = self._evidence.fences.written_ms.get("ingest" if attempt.kind == "flush" else "merge")
        return written_ms is not None and any(
            footer.info.modified_ms > written_ms and (file_time_ms(footer.info.key) or 0) + CLOCK_SKEW_MS > written_ms
            for footer in attempt.outputs
        )

    def _rows(self, keys: Iterable[str]) -> int | None:
        found = [self._evidence.footers.get(key) for key in keys]
        known = [footer.row_count for footer in found if footer is not None]
        return sum(known) if len(known) == len(found) else None


def _named_commit(log_key: str) -> str:
    try:
        return parse_log_key(log_key).commit_id
    except CorruptLog:
        return ""


def find_alike(footers: Iterable[Footer]) -> list[ObjectInfo]:
    """Return the files of flushes that look like one of another flush, by what is known of them so far."""
    by_look: dict[Hashable, list[Footer]] = defaultdict(list)
    for footer in footers:
        if footer.origin.kind == "flush":
            by_look[_look(footer)].append(footer)
    alike = (group for group in by_look.values() if len({footer.origin.commit_id for footer in group}) > 1)
    return [footer.info for group in alike for footer in group]


def _look(footer: Footer) -> Hashable:
    """Return what files of the same rows have in common; of one without bounds nothing that another one has."""
    known = [(name, each.low, each.high) for name, each in footer.bounds.items() if each.is_exact]
    if not known:
        return footer.info.key
    return footer.origin.partition, footer.row_count, footer.info.size_bytes, tuple(sorted(known, key=itemgetter(0)))


def _describe(attempt: Attempt, *, has_intent: bool) -> str:
    what = {"delete": "a deletion", "rewrite": "a rewrite"}.get(attempt.kind, "a merge by a query")
    written = "all of its files were written" if has_intent else "it may have been cut off while it wrote"
    return f"nothing tells whether {what} was committed: what it read is still there, and {written}"
