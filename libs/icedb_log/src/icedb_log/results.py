"""The form in which every operation says what it did, from the run to the result of a task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


class Result(Protocol):
    """What a run did."""

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do."""
        ...

    def details(self) -> dict[str, Any]:
        """Return it as the result of a task: names to JSON values; counts are of everything, lists may be cut."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What an operation that ended well did.

    Attributes:
        is_idle: There was nothing to do.
        details: Figures for the result and the log: names to JSON scalars, lists or objects.
    """

    is_idle: bool
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result, **more: Any) -> Self:
        """Return the work of a run; ``more`` are further details."""
        return cls(result.is_idle, {**more, **result.details()})
