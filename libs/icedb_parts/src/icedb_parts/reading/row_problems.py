"""What is wrong with a batch, and which of its rows it is about."""

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch cannot be taken as it is.

    Attributes:
        reason: In words for its producer: what, where, the remedy.
        find_rows: Finds the numbers of the rows that are at fault; None if it is the batch as a whole.
    """

    reason: str
    find_rows: Callable[[], Collection[int]] | None = None
