"""Files that look live and may be dead: something kept them when what replaced them was vacuumed (B3). Pure.

A pin or a view keeps a dead data file for longer than the files that replaced it (a lease keeps both). Then no
footer names it: its rows are in a file that was made from one that is gone. Such pairs are looked for, by partition.
"""

from collections import defaultdict
from typing import Final

from icedb_log.repair.footers import ColumnBounds, Footer
from icedb_log.repair.rebuild_commits import CLOCK_SKEW_MS, Choice, Side, Verdicts
from icedb_log.repair.rebuild_evidence import RebuildEvidence

_HEX_MS: Final = 12
_ID_LENGTH: Final = 32


def find_leftovers(
    evidence: RebuildEvidence, verdicts: Verdicts, live: set[str], *, decided: Side | None
) -> tuple[Choice, ...]:
    """Return the live files that may be dead, each with a live file that may have its rows.

    Args:
        evidence: What is left of the table.
        verdicts: Which commits landed.
        live: The data files that are live if there are no leftovers.
        decided: What a person says; ``None``: as is likely.
    """
    suspects = [key for key in live if _may_be_kept(evidence, verdicts, key)]
    if not suspects:
        return ()
    gone_ms = _Ancestors(evidence)
    heirs: dict[str, list[Footer]] = defaultdict(list)
    for key in live:
        footer = evidence.footers.get(key)
        if footer is not None and gone_ms.newest_ms(key) > 0:
            heirs[evidence.paths.partition_of(key)].append(footer)
    found: list[Choice] = []
    for key in sorted(suspects):
        footer = evidence.footers.get(key)
        if footer is None:
            continue
        for heir in heirs.get(evidence.paths.partition_of(key), ()):
            if heir.info.key != key and _may_hold(evidence, heir, footer, newest_ms=gone_ms.newest_ms(heir.info.key)):
                found.append(_choose(evidence, footer, heir, decided))
                break
    return tuple(found)


def find_unsure_merges(evidence: RebuildEvidence, verdicts: Verdicts, live: set[str]) -> list[str]:
    """Return the live files, ascending, that are taken for their age alone although another one may have their rows.

    What they replaced is gone, which another commit may have done that replaced the same; and a live file of the same
    partition comes from one that is gone and was made later.
    """
    ancestors = _Ancestors(evidence)
    newest: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for key in live:
        made_ms = ancestors.newest_ms(key)
        if made_ms > 0:
            partition = evidence.paths.partition_of(key)
            newest[partition] = sorted((*newest[partition], (made_ms, key)), reverse=True)[:2]
    return sorted(
        key
        for key in live & evidence.footers.keys()
        if _is_taken_for_age(evidence, verdicts, key)
        and any(
            other != key and made_ms + CLOCK_SKEW_MS >= (id_ms(key) or evidence.footers[key].info.modified_ms)
            for made_ms, other in newest[evidence.paths.partition_of(key)]
        )
    )


def _is_taken_for_age(evidence: RebuildEvidence, verdicts: Verdicts, key: str) -> bool:
    footer = evidence.footers[key]
    verdict = verdicts.by_commit.get(footer.origin.commit_id)
    is_unproven = verdict is not None and verdict.basis == "what it replaced is gone"
    return is_unproven and evidence.is_swept(footer.info.modified_ms)


def _may_be_kept(evidence: RebuildEvidence, verdicts: Verdicts, key: str) -> bool:
    """Whether a live file may be dead for longer than a grace period, or was never committed at all."""
    if key in evidence.pinned or evidence.holds_single_files:
        return True
    footer = evidence.footers.get(key)
    verdict = None if footer is None else verdicts.by_commit.get(footer.origin.commit_id)
    if footer is None or verdict is None or verdict.basis != "what it replaced is gone":
        return False
    return not evidence.is_swept(footer.info.modified_ms)


def _may_hold(evidence: RebuildEvidence, heir: Footer, footer: Footer, *, newest_ms: int) -> bool:
    """Whether a file's rows can have come into another one by way of a file that is gone."""
    if (heir.info.modified_ms, heir.info.key) <= (footer.info.modified_ms, footer.info.key):
        return False  # what has its rows was written later; so no two files are left out for each other's sake
    made_ms = id_ms(footer.info.key) or footer.info.modified_ms
    if newest_ms + CLOCK_SKEW_MS < made_ms:
        return False
    if heir.origin.kind != "merge" or evidence.config.merge_query is not None:
        return True  # rows were changed on the way: nothing can be compared
    return footer.row_count <= heir.row_count and all(
        _lies_within(bounds, heir.bounds.get(name)) for name, bounds in footer.bounds.items()
    )


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


def _choose(evidence: RebuildEvidence, footer: Footer, heir: Footer, decided: Side | None) -> Choice:
    is_kept = footer.info.key in evidence.pinned or evidence.holds_single_files
    likely: Side = "outputs" if is_kept else "inputs"
    why = (
        "a pin or a view may have kept it after it was replaced"
        if is_kept
        else "it is young, and what it replaced is gone: it was committed, or cut off before another run did the same"
    )
    return Choice(
        what="leftover",
        commit_id=footer.origin.commit_id,
        kind=footer.origin.kind,
        inputs=(footer.info.key,),
        outputs=(heir.info.key,),
        input_rows=footer.row_count,
        output_rows=heir.row_count,
        likely=likely,
        decided=decided or likely,
        why=f"{why}; its rows can be in the other file, which was made from files that are gone. Compare the two",
    )


class _Ancestors:
    """When the newest file was made that a data file has rows of, and that is gone."""

    def __init__(self, evidence: RebuildEvidence) -> None:
        self._evidence = evidence
        self._known: dict[str, int] = {}

    def newest_ms(self, key: str) -> int:
        """Return unix ms by the clock of the host that named the file; 0 if nothing is gone."""
        stack = [key]
        while stack:
            current = stack[-1]
            inputs = self._inputs(current)
            waiting = [each for each in inputs if self._evidence.is_there(each) and each not in self._known]
            if waiting and current not in self._known:
                self._known[current] = 0  # footers that name each other in a circle end here
                stack += waiting
                continue
            stack.pop()
            self._known[current] = max((self._age(each) for each in inputs), default=0)
        return self._known[key]

    def _inputs(self, key: str) -> tuple[str, ...]:
        footer = self._evidence.footers.get(key)
        return () if footer is None else footer.origin.inputs

    def _age(self, key: str) -> int:
        return self._known.get(key, 0) if self._evidence.is_there(key) else id_ms(key)


def id_ms(key: str) -> int:
    """Return the time in the name of a data file, unix ms; 0 if its name is no id of ours."""
    name = key.rpartition("/")[2].removesuffix(".parquet")
    try:
        return int(name[:_HEX_MS], 16) if len(name) == _ID_LENGTH else 0
    except ValueError:
        return 0
