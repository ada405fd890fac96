"""Access control for Celery tasks: a bearer token in the headers of a message.

A task that does only what the periodic sweep would do anyway needs no token: its message says "look", and the work
stands in the store. One that says what to do needs the verb for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from icedb_service.access.guard import AccessGuard
from icedb_service.access.verbs import Verb

HEADER: Final = "authorization"
MAX_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Need:
    """What a message asks for.

    Attributes:
        verb: What is done.
        table: With which table.
    """

    verb: Verb
    table: str


Needs = Callable[[Mapping[str, Any]], Sequence[Need]]
"""From a task's arguments by name to what they ask for; nothing: the sweep would do it anyway."""


def needs_nothing(_arguments: Mapping[str, Any]) -> Sequence[Need]:
    """Return nothing: the task does what the sweep does."""
    return ()


def needs(verb: Verb) -> Needs:
    """Return the needs of a task that always does this with its table."""

    def of(arguments: Mapping[str, Any]) -> Sequence[Need]:
        return (Need(verb, str(arguments.get("table"))),)

    return of


def needs_if(verb: Verb, *names: str) -> Needs:
    """Return the needs of a task that a sweep sends, too: this verb, if one of these arguments is set."""

    def of(arguments: Mapping[str, Any]) -> Sequence[Need]:
        is_asked = any(arguments.get(name) for name in names)
        return (Need(verb, str(arguments.get("table"))),) if is_asked else ()

    return of


class TaskAccess:
    """Asks the guard for tasks.

    Args:
        guard: Decides.
    """

    def __init__(self, guard: AccessGuard) -> None:
        self._guard = guard.at("task")

    @property
    def is_enforced(self) -> bool:
        """Whether there is a policy."""
        return self._guard.is_enforced

    def require(self, request: Any, wanted: Sequence[Need]) -> None:
        """Return if the message's sender may have all of this.

        Args:
            request: Celery's request of the running task.
            wanted: What it asks for.

        Raises:
            IceDBError: As :meth:`AccessGuard.identify` and :meth:`AccessGuard.require`.
        """
        if not wanted or not self._guard.is_enforced:
            return
        identity = self._guard.identify(authorization=header_of(request))
        for need in wanted:
            self._guard.require(identity, need.verb, need.table)


def header_of(request: Any) -> str | None:
    """Return the authorization that a message carries."""
    headers = getattr(request, "headers", None)
    value = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return value if isinstance(value, str) else None
