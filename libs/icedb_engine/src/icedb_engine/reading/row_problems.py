"""What is wrong with a batch, and with which of its rows."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

MAX_OWN_REASONS: Final = 10
"""Rows of a batch that are described one by one; the others are counted by what is wrong with them."""
MAX_COUNTED_REASONS: Final = 10
"""Reasons by which the others are counted, the most frequent first."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one row.

    Attributes:
        what: In words that other rows of the same fault share, with the remedy.
        reason: The same with the row's number and value; empty for a row that is only counted.
    """

    what: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch cannot be taken as it is.

    Attributes:
        reason: In words for its producer: what, where, the remedy; of the first row if it is about rows.
        find_rows: Finds the numbers of the rows that are at fault; None if it is the batch as a whole.
        what: What is wrong with each of them, without number and value.
        explain: Returns the reason of one of them.
    """

    reason: str
    find_rows: Callable[[], Collection[int]] | None = None
    what: str = ""
    explain: Callable[[int], str] | None = None

    def find_faults(self) -> dict[int, Fault]:
        """Return the rows that are at fault, ascending, with what is wrong: the first ones each in its own words."""
        numbers = sorted(self.find_rows()) if self.find_rows is not None else []
        faults = dict.fromkeys(numbers, Fault(self.what or self.reason))
        if self.explain is not None:
            faults |= {number: Fault(self.what, self.explain(number)) for number in numbers[:MAX_OWN_REASONS]}
        return faults


def number_fault(noun: str, what: str, number: int) -> str:
    """Return what is wrong with one row that is told by its number alone."""
    return f"{noun} {number}: {what}"


def describe_faults(faults: Mapping[int, Fault]) -> str:
    """Return the reason of a batch's bad rows: the first ones each on a line of its own, the others by count.

    Args:
        faults: By number of the row, ascending; at least one.
    """
    rest = iter(faults.values())
    lines = [fault.reason or fault.what for fault in islice(rest, MAX_OWN_REASONS)]
    counts = Counter(fault.what for fault in rest).most_common()
    if counts:
        shown = [f"{count:,} rows: {what}" for what, count in counts[:MAX_COUNTED_REASONS]]
        if len(counts) > MAX_COUNTED_REASONS:
            shown.append(f"{sum(count for _, count in counts[MAX_COUNTED_REASONS:]):,} rows: other reasons")
        lines += [f"and {len(faults) - MAX_OWN_REASONS:,} more rows:", *shown]
    return "\n".join(lines)
