"""What the demo promises, checked: each promise is one line that holds or does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MAX_DIFFERENCES: Final = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One promise.

    Attributes:
        name: What is promised, in a few words.
        holds: Whether it does.
        detail: The figures behind it; for a broken promise what was expected and what was found.
    """

    name: str
    holds: bool
    detail: str


class CheckBook:
    """All checks of a run, in order."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def add(self, name: str, *, holds: bool, detail: str) -> Check:
        """Record one check."""
        check = Check(name, holds, detail)
        self.checks.append(check)
        return check

    def add_equal(self, name: str, *, found: int, expected: int, what: str = "rows") -> Check:
        """Record that a count is exact."""
        detail = f"{found:,} {what}"
        if found != expected:
            detail = f"{found:,} {what} found, {expected:,} expected ({found - expected:+,})"
        return self.add(name, holds=found == expected, detail=detail)

    def add_equal_counts(self, name: str, *, found: Mapping[str, int], expected: Mapping[str, int], what: str) -> Check:
        """Record that counts by key are exact; a key that is missing counts as 0."""
        wrong = [
            f"{key}: {found.get(key, 0):,} found, {expected.get(key, 0):,} expected"
            for key in sorted(found.keys() | expected.keys())
            if found.get(key, 0) != expected.get(key, 0)
        ]
        detail = "; ".join(wrong[:MAX_DIFFERENCES]) or f"{len(expected):,} {what}"
        if len(wrong) > MAX_DIFFERENCES:
            detail += f"; and {len(wrong) - MAX_DIFFERENCES} more"
        return self.add(name, holds=not wrong, detail=detail)

    @property
    def is_ok(self) -> bool:
        """Whether everything holds."""
        return bool(self.checks) and all(check.holds for check in self.checks)
