"""How much one step of a follower may deliver, and what it has delivered."""

from dataclasses import dataclass
from typing import Final

from icedb_log.model import FileMarker


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one step may deliver; at least one file always.

    Attributes:
        max_files: Data files; ``None``: no limit.
        max_bytes: Bytes of data files; ``None``: no limit.
    """

    max_files: int | None = None
    max_bytes: int | None = None


NO_BUDGET: Final = Budget()


class Spent:
    """What a step has delivered, against its budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.file_count = 0
        self._size_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether no file more may be delivered for certain."""
        budget = self._budget
        return (budget.max_files is not None and self.file_count >= budget.max_files) or (
            budget.max_bytes is not None and self._size_bytes >= budget.max_bytes
        )

    def take(self, marker: FileMarker) -> bool:
        """Count a file, if there is room for it."""
        budget = self._budget
        size_bytes = self._size_bytes + marker.size_bytes
        if self.file_count and (
            (budget.max_files is not None and self.file_count >= budget.max_files)
            or (budget.max_bytes is not None and size_bytes > budget.max_bytes)
        ):
            return False
        self.file_count += 1
        self._size_bytes = size_bytes
        return True
