"""What long work is doing, and how far it is: for whoever records or follows it; next to no cost where nobody does.

Phases are named and have times. Knows nothing of traces: a service that makes spans of phases does so when the work has
ended, of what is recorded here. Units that run in other processes record their own, and hand them back with their
results. Must never change what the work does, nor raise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final

from icedb_log.clock import Clock

MAX_PHASES: Final = 500
"""Of one recording; those that begin later are left out."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase.

    Attributes:
        name: What is done, in words from a closed set.
        number: In the order in which phases began, from 0.
        parent: Number of the phase that it is a part of; -1: of none.
        started_ms: When, by the clock of the host that did it.
        ended_ms: When it ended.
        error: Kind of the error that ended it; empty: it ended well.
        attributes: Figures.
    """

    name: str
    number: int
    parent: int
    started_ms: int
    ended_ms: int
    error: str = ""
    attributes: Mapping[str, int | str] = field(default_factory=dict)


class Recorder:
    """Phases of one piece of work, those that ended first first. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Final = clock
        self.phases: list[Phase] = []
        self.begun_count = 0
        self.current = -1

    def adopt(self, phases: Sequence[Phase]) -> None:
        """Take phases of a unit for parts of what is being done now."""
        base = self.begun_count
        for phase in phases[: max(0, MAX_PHASES - base)]:
            parent = self.current if phase.parent < 0 else base + phase.parent
            self.phases.append(replace(phase, number=base + phase.number, parent=parent))
        self.begun_count = base + len(phases)


_recorder: ContextVar[Recorder | None] = ContextVar("icedb_phases", default=None)

Follower = Callable[[str, int, int], None]
"""Is told what is being done, how many parts of it are done, and how many there are. May be called by any thread, must
not wait for long, must not raise."""
_follower: ContextVar[Follower | None] = ContextVar("icedb_follower", default=None)


def current_recorder() -> Recorder | None:
    """Return what records this thread; ``None``: nobody does."""
    return _recorder.get()


@contextmanager
def recording(clock: Clock) -> Iterator[Recorder]:
    """Record the phases of a block in this thread."""
    recorder = Recorder(clock)
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


@contextmanager
def phase(name: str, **attributes: int | str) -> Iterator[None]:
    """Name what a block does. Raises what the block raises, and nothing else."""
    recorder = _recorder.get()
    if recorder is None or recorder.begun_count >= MAX_PHASES:
        yield
        return
    number, parent = recorder.begun_count, recorder.current
    recorder.begun_count, recorder.current = number + 1, number
    started_ms, error = recorder.clock.now_ms(), ""
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        recorder.current = parent
        recorder.phases.append(Phase(name, number, parent, started_ms, recorder.clock.now_ms(), error, attributes))


def adopt(phases: Sequence[Phase]) -> None:
    """Take phases of a unit for parts of what this thread is doing now, if somebody records that."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.adopt(phases)


@contextmanager
def following(follower: Follower) -> Iterator[None]:
    """Tell how far the work of a block is, that of this thread and of the units that it waits for."""
    token = _follower.set(follower)
    try:
        yield
    finally:
        _follower.reset(token)


def current_follower() -> Follower | None:
    """Return who follows what this thread does, for a thread that works for it; ``None``: nobody does."""
    return _follower.get()


def tell_progress(what: str, done: int, total: int) -> None:
    """Say how far something is, if somebody follows this thread's work."""
    follower = _follower.get()
    if follower is not None:
        follower(what, done, total)
