"""The record of a schedule as a line of text: what a failure prints, and what ``--replay`` takes."""

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from icedb_log.errors import InvalidRequest

from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import Run
from icedb_sim.simulation.world import Script, Step

_STEP: Final = re.compile(r"(?:([0-9]+)\+)?([a-z][a-z0-9.-]*)?(?:\*([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Replay:
    """A schedule to be run again.

    Attributes:
        seed: Of the schedule.
        cast: Who plays.
        script: What happens.
    """

    seed: int
    cast: Cast
    script: Script


def encode_replay(run: Run) -> str:
    """Return a schedule as text: seed, cast, steps and faults.

    A step is written as ``250+flusher1*3``: 250 ms pass, ``flusher1`` goes on, and this happens three times.
    """
    steps = " ".join(_encode_step(step, len(list(group))) for step, group in groupby(run.script.steps))
    return f"{run.seed}|{run.cast}|{steps}|{';'.join(run.faults)}"


def decode_replay(text: str) -> Replay:
    """Return what :func:`encode_replay` has written.

    Raises:
        InvalidRequest: The text is nothing of the kind.
    """
    parts = text.strip().split("|")
    if len(parts) != 4 or not parts[0].isdecimal():
        raise InvalidRequest(f"a replay is seed|cast|steps|faults, as a failure prints it; not {text[:80]!r}")
    steps: list[Step] = []
    for word in parts[2].split():
        match = _STEP.fullmatch(word)
        if match is None:
            raise InvalidRequest(f"a step is 250+flusher1*3, as a failure prints it; not {word!r}")
        steps += [Step(int(match[1] or 0), match[2] or "")] * int(match[3] or 1)
    faults = frozenset(parts[3].split(";")) - {""}
    return Replay(int(parts[0]), Cast.parse(parts[1]), Script(tuple(steps), faults))


def _encode_step(step: Step, count: int) -> str:
    wait = f"{step.wait_ms}+" if step.wait_ms or not step.actor else ""
    return f"{wait}{step.actor}" + (f"*{count}" if count > 1 else "")
