"""Owners of a fence that ended without a word, and what they may have read (I5): a part of the fence's state. Pure.

A process that a batch ends cannot say so. What is known of it stands in the fence: how many owners were lost in a row,
until when they may have read anything, and, before one reads a single batch alone, which one that is.
"""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Losses:
    """What is known of owners lost in a row.

    Attributes:
        count: How many ended without a word before they committed, among several batches or while nobody knows which.
        last_ms: LastModified of the last write of the last one among them: none has read what was staged later.
        alone: Batch that was read alone last for that; empty: none.
        alone_count: How many ended while they read that batch and nothing else; ``count`` has them not.
        alone_epoch: Ownership that read it; the next one may read others first.
    """

    count: int = 0
    last_ms: int = 0
    alone: str = ""
    alone_count: int = 0
    alone_epoch: int = 0

    def add(self, *, epoch: int, modified_ms: int) -> "Losses":
        """Count one more owner: the one of ``epoch``, which wrote the fence for the last time at ``modified_ms``."""
        if self.alone and self.alone_epoch == epoch:
            return replace(self, alone_count=self.alone_count + 1)
        return replace(self, count=self.count + 1, last_ms=modified_ms)

    def read_alone(self, batch_id: str, *, epoch: int) -> "Losses":
        """Name the batch that the owner of ``epoch`` reads alone; another batch begins to count anew."""
        known = self.alone_count if batch_id == self.alone else 0
        return replace(self, alone=batch_id, alone_count=known, alone_epoch=epoch)

    def may_have_read(self, batch_id: str, *, staged_ms: int) -> bool:
        """Whether one of them may have read a batch."""
        return staged_ms <= self.last_ms or batch_id == self.alone


NO_LOSSES: Final = Losses()
