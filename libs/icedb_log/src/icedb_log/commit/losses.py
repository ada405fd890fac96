"""Owners of a fence that ended without a word, and what they may have read (I5): a part of the fence's state. Pure.

A process that a batch ends cannot say so. What is known of it stands in the fence: how many owners were lost in a row,
until when they may have read anything, and, before one reads a part of that, which part.
"""

from dataclasses import dataclass, replace
from typing import Final

from icedb_log.batch_ids import parse_batch_id_ms


@dataclass(frozen=True, slots=True)
class Losses:
    """What is known of owners lost in a row.

    Attributes:
        count: How many ended without a word before they committed.
        last_ms: LastModified of the last write of the last one among them that read no part: none of them has read what
            was staged later.
        first: Least batch id of the part that the last one read; empty: no part.
        last: The greatest.
        alone_count: How many ended while they read one batch, that of ``first``, and nothing else.
        is_mixed: Whether one ended over other batches than those that were suspected then.
        reads: Least and greatest batch id of what the owner of ``epoch`` reads.
        epoch: That ownership; a later one may read something else.
        read_count: How many flushes have read what they took since the last one of them was lost.
    """

    count: int = 0
    last_ms: int = 0
    first: str = ""
    last: str = ""
    alone_count: int = 0
    is_mixed: bool = False
    reads: tuple[str, str] = ("", "")
    epoch: int = 0
    read_count: int = 0

    def add(self, *, epoch: int, modified_ms: int) -> "Losses":
        """Count one more owner: the one of ``epoch``, which wrote the fence for the last time at ``modified_ms``."""
        count = self.count + 1
        if self.epoch != epoch:
            return Losses(count, modified_ms, is_mixed=self.count > 0)
        first, last = self.reads
        is_again = (first, last) == (self.first, self.last)
        alone_count = (self.alone_count if is_again else 0) + (first == last)
        return replace(self, count=count, first=first, last=last, alone_count=alone_count, read_count=0)

    def read_part(self, first: str, last: str, *, epoch: int) -> "Losses":
        """Name the part that the owner of ``epoch`` reads, by its least and greatest batch id."""
        return replace(self, reads=(first, last), epoch=epoch)

    def note_read(self) -> "Losses":
        """Count one more flush that has read what it took."""
        return replace(self, read_count=self.read_count + 1) if self.count else self

    def names(self, batch_id: str) -> bool:
        """Whether a batch is of the part that the last one read."""
        return bool(self.first) and self.first <= batch_id <= self.last

    def may_have_read(self, batch_id: str) -> bool:
        """Whether one of them may have read a batch, by the time of its id or by the part that it named."""
        return self.names(batch_id) or parse_batch_id_ms(batch_id) <= self.last_ms


NO_LOSSES: Final = Losses()
