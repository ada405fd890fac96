"""From a schedule that fails to the shortest one that fails in the same way.

A schedule is a record of decisions (:class:`~icedb_sim.simulation.world.Script`). Parts of it are left out as
long as the same rule breaks: actors, faults, steps, waits, changes from one actor to another. What is left is what it
takes. The search ends when no single part can go any more, or when its time is over.
"""

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest

from icedb_sim.simulation.scenario import Mix
from icedb_sim.simulation.schedule import Run, ScheduleFailed, format_line, run_schedule
from icedb_sim.simulation.world import Script, Step, Violation

_STEP: Final = re.compile(r"(?:([0-9]+)\+)?([a-z][a-z0-9.-]*)?(?:\*([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Replay:
    """A schedule to be run again.

    Attributes:
        seed: Of the schedule.
        mix: The scenarios.
        script: What happens.
    """

    seed: int
    mix: Mix
    script: Script


def encode_replay(run: Run) -> str:
    """Return a schedule as text: seed, mix, steps and faults.

    A step is written as ``250+flusher1*3``: 250 ms pass, ``flusher1`` goes on, and this happens three times.
    """
    steps = " ".join(_encode_step(step, len(list(group))) for step, group in groupby(run.script.steps))
    return f"{run.seed}|{run.mix}|{steps}|{';'.join(run.faults)}"


def decode_replay(text: str) -> Replay:
    """Return what :func:`encode_replay` has written.

    Raises:
        InvalidRequest: The text is nothing of the kind.
    """
    parts = text.strip().split("|")
    if len(parts) != 4 or not parts[0].isdecimal():
        raise InvalidRequest(f"a replay is seed|mix|steps|faults, as a failure prints it; not {text[:80]!r}")
    steps: list[Step] = []
    for word in parts[2].split():
        match = _STEP.fullmatch(word)
        if match is None:
            raise InvalidRequest(f"a step is 250+flusher1*3, as a failure prints it; not {word!r}")
        steps += [Step(int(match[1] or 0), match[2] or "")] * int(match[3] or 1)
    faults = frozenset(parts[3].split(";")) - {""}
    return Replay(int(parts[0]), Mix.parse(parts[1]), Script(tuple(steps), faults))


def _encode_step(step: Step, count: int) -> str:
    wait = f"{step.wait_ms}+" if step.wait_ms or not step.actor else ""
    return f"{wait}{step.actor}" + (f"*{count}" if count > 1 else "")


SHRINK_SECONDS: Final = 60.0
_MAX_LINES: Final = 300
_READS: Final = ("get", "head", "list", "folders")
_SHAPES: Final = (
    (re.compile(r"[\w./=-]+/[\w./=-]+"), "KEY"),
    (re.compile(r"\[[^\[\]]+\]"), "[…]"),
    (re.compile(r"[0-9a-f]{8,}[0-9a-f-]*|\d+"), "#"),
)
_SHAPE_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class FailureKind:
    """What two failures have in common that are of the same kind.

    Attributes:
        error: Type of the error.
        shape: Begin of its message, without keys, ids and numbers; and its end, which names the rule.
        place: Function that raised it, unless it is a check of the simulation.
    """

    error: str
    shape: str
    place: str

    @classmethod
    def of(cls, error: Exception) -> "FailureKind":
        """Return the kind of a failure."""
        text = str(error)
        for pattern, instead in _SHAPES:
            text = pattern.sub(instead, text)
        place = "" if isinstance(error, Violation) else traceback.extract_tb(error.__traceback__)[-1].name
        return cls(type(error).__name__, text[:_SHAPE_CHARS] + text[text.rfind("(") :][-_SHAPE_CHARS:], place)


class ShrunkFailure(AssertionError):
    """A schedule that fails, with nothing in it that could be left out. The message explains it.

    Args:
        failure: The short one.
        original: The long one.
        tries: How many schedules were run to find it.
    """

    def __init__(self, failure: ScheduleFailed, *, original: ScheduleFailed, tries: int) -> None:
        self.failure = failure
        self.original = original
        self.tries = tries
        super().__init__("\n".join(self._explain()))

    def _explain(self) -> Iterator[str]:
        run, error = self.failure.run, self.failure.error
        yield f"seed {run.seed}, mix {run.mix}: {type(error).__name__}: {error}"
        yield str(run.settings)
        turns = Counter(step.actor for step in run.script.steps if step.actor)
        yield f"shrunk from {_size(self.original.run)} to {_size(run)}, in {self.tries} schedules"
        yield "actors: " + ", ".join(f"{name} ({count} steps)" for name, count in turns.items())
        yield "faults: " + (", ".join(f"{name} {kind}" for name, kind in run.faults.items()) or "none")
        lines = [line for line in run.trace if line.actor != "-" or line.what not in _READS]
        if len(lines) > _MAX_LINES:
            yield f"  … {len(lines) - _MAX_LINES} lines before"
        yield from map(format_line, lines[-_MAX_LINES:])
        yield "once more: python -m icedb_sim.simulation --replay " + repr(encode_replay(run))


def shrink_failure(failed: ScheduleFailed, *, seconds: float = SHRINK_SECONDS) -> ShrunkFailure:
    """Return the shortest schedule that was found to fail in the same way.

    Args:
        failed: What failed; the code has to be as it was.
        seconds: For how long to look.
    """
    search = _Search(failed, seconds=seconds)
    search.shrink()
    run = search.best.run
    try:
        run_schedule(run.seed, run.mix, script=run.script, trace_tail=None)
    except ScheduleFailed as error:
        return ShrunkFailure(error, original=failed, tries=search.tries)
    return ShrunkFailure(failed, original=failed, tries=search.tries)  # it does not follow from the seed alone


def check_seeds(seeds: Iterable[int], mix: Mix | None = None) -> Counter[str]:
    """Run schedules and return how often what happened.

    Raises:
        ShrunkFailure: One of them broke a rule.
    """
    totals: Counter[str] = Counter()
    for seed in seeds:
        try:
            totals.update(run_schedule(seed, mix).counters)
        except ScheduleFailed as error:
            raise shrink_failure(error) from error
    return totals


class _Search:
    """The shortest failure so far, and what may still be left out of it."""

    def __init__(self, failed: ScheduleFailed, *, seconds: float) -> None:
        self.best = failed
        self.tries = 0
        self._kind = FailureKind.of(failed.error)
        self._clock = SystemClock()
        self._ends_ms = self._clock.monotonic_ms() + int(seconds * 1000)

    @property
    def script(self) -> Script:
        """What the shortest failure does."""
        return self.best.run.script

    def shrink(self) -> None:
        """Leave out what can be left out."""
        size = None
        while size != (size := (_weight(self.script), len(self.script.faults))) and not self._is_over():
            self._drop_actors()
            self._drop_faults()
            self._drop_steps()
            self._drop_switches()
            self._drop_waits()

    def _is_over(self) -> bool:
        return self._clock.monotonic_ms() > self._ends_ms

    def _try(self, script: Script) -> bool:
        """Run a shorter script, and take it if it fails in the same way."""
        if self._is_over():
            return False
        self.tries += 1
        run = self.best.run
        try:
            run_schedule(run.seed, run.mix, script=script)
        except ScheduleFailed as error:
            if FailureKind.of(error.error) == self._kind:
                self.best = error
                return True
        return False

    def _drop_actors(self) -> None:
        """Leave actors out as a whole, and then some of the steps of each one."""
        places = Counter(_place(step) for step in self.script.steps if step.actor)
        for place, _ in places.most_common():
            self._drop_parts(place)

    def _drop_steps(self) -> None:
        self._drop_parts(None)

    def _drop_parts(self, place: str | None) -> None:
        """Leave out all steps, of one actor or of all, then halves, quarters, …, single ones."""
        size = len(self._find(place))
        while size:
            at = 0
            while at < len(found := self._find(place)) and not self._is_over():
                if not self._try(replace(self.script, steps=_without(self.script.steps, found[at : at + size]))):
                    at += size
            size //= 2

    def _find(self, place: str | None) -> list[int]:
        return [n for n, step in enumerate(self.script.steps) if place is None or _place(step) == place]

    def _drop_faults(self) -> None:
        size = len(self.script.faults)
        while size:
            at = 0
            while at < len(faults := list(self.best.run.faults)) and not self._is_over():
                if not self._try(replace(self.script, faults=frozenset(faults[:at] + faults[at + size :]))):
                    at += size
            size //= 2

    def _drop_switches(self) -> None:
        """Let an actor go on at once with what it does later."""
        at = 0
        while at < len(blocks := _blocks(self.script.steps)) and not self._is_over():
            later = next((n for n in range(at + 2, len(blocks)) if blocks[n][0].actor == blocks[at][0].actor), None)
            if later is None:
                at += 1
                continue
            joined = [*blocks[: at + 1], blocks[later], *blocks[at + 1 : later], *blocks[later + 1 :]]
            delayed = [*blocks[:at], *blocks[at + 1 : later], blocks[at], *blocks[later:]]
            if not self._try_blocks(joined) and not self._try_blocks(delayed):
                at += 1

    def _try_blocks(self, blocks: Sequence[Sequence[Step]]) -> bool:
        steps = tuple(step for block in blocks for step in block)
        if len(_blocks(steps)) >= len(_blocks(self.script.steps)):
            return False
        return self._try(replace(self.script, steps=steps))

    def _drop_waits(self) -> None:
        """Let no time pass between steps where none is needed."""
        waits = [n for n, step in enumerate(self.script.steps) if step.wait_ms]
        size = len(waits)
        while size:
            at = 0
            while at < len(waits) and not self._is_over():
                some = set(waits[at : at + size])
                steps = tuple(Step(0, s.actor) if n in some else s for n, s in enumerate(self.script.steps))
                if self._try(replace(self.script, steps=steps)):
                    waits = [n for n in waits if n not in some and n < len(self.script.steps)]
                else:
                    at += size
            size //= 2


def _size(run: Run) -> str:
    acting = [step.actor for step in run.script.steps if step.actor]
    return f"{len(acting)} steps of {len(set(acting))} actors and {len(run.faults)} faults"


def _weight(script: Script) -> int:
    return len(script.steps) + len(_blocks(script.steps)) + sum(1 for step in script.steps if step.wait_ms)


def _place(step: Step) -> str:
    return step.actor.partition(".")[0]


def _blocks(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    return [tuple(block) for _, block in groupby(steps, key=lambda step: step.actor)]


def _without(steps: Sequence[Step], left_out: Sequence[int]) -> tuple[Step, ...]:
    """Leave steps out; the time that passes at them passes at those that follow."""
    gone = set(left_out)
    kept: list[Step] = []
    wait_ms = 0
    for number, step in enumerate(steps):
        wait_ms += step.wait_ms
        if number not in gone:
            kept.append(Step(wait_ms, step.actor))
            wait_ms = 0
    return tuple(kept)
