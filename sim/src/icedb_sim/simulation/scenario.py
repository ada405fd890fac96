"""What goes on in a schedule: scenarios, which bring actors beside those that are always there.

A :class:`Scenario` brings in one place what belongs to a kind of extra work: its actors, its changes of the settings,
who watches the store for it, what is worked off at rest, and what must be true in the end. A :class:`Mix` says which
scenarios run, and how large each one is.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Self

from icedb_log.errors import InvalidRequest

from icedb_sim.simulation.actors import Simulation
from icedb_sim.simulation.model import SimModel
from icedb_sim.simulation.settings import Settings
from icedb_sim.simulation.world import Actor

Body = Callable[[Simulation, Actor], None]
"""What an actor does, for ever."""

_PLAIN: Final = "plain"
_ENTRY: Final = re.compile(r"([a-z]+):([1-9][0-9]?)")


class Part(NamedTuple):
    """Actors of one kind in a scenario.

    Attributes:
        kind: Of the actors.
        size: How many.
        body: What each of them does.
    """

    kind: str
    size: int
    body: Body


class Surroundings(NamedTuple):
    """What a scenario may know of the schedule before it begins.

    Attributes:
        settings: Of the schedule, as all of its scenarios have changed them.
        model: The oracle.
        store_now_ms: The store's clock.
        exists: Whether an object is in the store.
    """

    settings: Settings
    model: SimModel
    store_now_ms: Callable[[], int]
    exists: Callable[[str], bool]


class Scenario:
    """What a kind of extra work brings into one schedule. A subclass says what it has; the rest does nothing.

    Args:
        surroundings: What there is of the schedule.
    """

    name: ClassVar[str]
    """In mixes."""

    runs_alone: ClassVar[bool] = False
    """Whether a seed lets no other scenario run with it."""

    drops_tables: ClassVar[bool] = False
    """Whether others may find no table."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Return the settings of a schedule in which this scenario runs."""
        del seed
        return settings

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the actors of a scenario of this size."""
        del count
        return ()

    def arrange(self, sim: Simulation) -> None:
        """Change who does what, when all scenarios have brought their actors, and before any of them begins."""

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written, before the oracle does. Raises Violation."""

    def on_delete(self, key: str) -> None:
        """Take note of an object that is about to be deleted, before the oracle does. Raises Violation."""

    def calm(self, sim: Simulation) -> None:
        """Bring about that the table can come to rest: the faults are over, and nothing is in flight any more."""

    def rest(self, sim: Simulation) -> None:
        """Work off what is left: the faults are over. Called once in each round of the quiet."""

    def check(self, sim: Simulation) -> None:
        """Check what must be true in the end. Raises Violation."""

    def counters(self) -> dict[str, int]:
        """Return how often what happened."""
        return {}


@dataclass(frozen=True, slots=True)
class Mix:
    """Which scenarios run besides what always does, and how large each one is.

    Attributes:
        sizes: Name and size of each scenario.
    """

    sizes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Self:
        """Return a mix of scenarios with these sizes."""
        return cls(tuple(sorted(sizes.items())))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mix that ``str`` gave this text: ``erasers:2,lessees:1``, or ``plain``.

        Raises:
            InvalidRequest: It is no such text.
        """
        if text == _PLAIN:
            return cls()
        found = [_ENTRY.fullmatch(entry) for entry in text.split(",")]
        sizes = {match[1]: int(match[2]) for match in found if match is not None}
        if len(sizes) != len(found):
            raise InvalidRequest(f"a mix is written as erasers:2,lessees:1, or {_PLAIN}; not as {text!r}")
        return cls.of(sizes)

    def __str__(self) -> str:
        """Return the text that :meth:`parse` takes."""
        return ",".join(f"{name}:{size}" for name, size in self.sizes) or _PLAIN


PLAIN: Final = Mix()
"""Only what always runs."""
