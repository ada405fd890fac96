"""The rules of the protocol, each switched off in the real code: somebody has to notice.

A rule stands in one named place of the product, and a function of this package stands in for it
(:mod:`~icedb_sim.rules.switches`). The invariants that a commit checks are switched off where they would notice first;
the tests check, too, that they do notice.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final

from icedb_sim.rules.switches import Switch, answers, switched

INVARIANTS: Final = ("require_append", "require_merge", "require_same_live", "require_strip")


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule switched off.

    Attributes:
        rule: Id in ``docs/protocol.md``.
        name: What the code does instead.
        switches: How.
        is_harmless: The simulation does not notice, since another rule stands behind this one, or since nothing is
            built on it; ``docs/internals/simulation.md`` says which.
        mix: Who has to play for it to be noticed, as ``Mix.parse`` takes it.
        profile: In which profile it is missed most; three of four schedules have it.
        by: The test that notices it, for a history that few schedules play, or none.
    """

    rule: str
    name: str
    switches: tuple[Switch, ...]
    is_harmless: bool = False
    mix: str = "plain"
    profile: str = ""
    by: str = ""


def seen_with(mix: str, *rules: Mutation) -> tuple[Mutation, ...]:
    """Return mutations that only a certain mix notices."""
    return tuple(replace(rule, mix=mix) for rule in rules)


def breaks(rule: str, name: str, *switches: Switch | tuple[Switch, ...], profile: str = "", by: str = "") -> Mutation:
    """Return a mutation that schedules notice, of a profile if there is one; or a test, by default of the log's."""
    path = by if not by or "/" in by else f"libs/icedb_log/tests/{by}"
    return Mutation(rule, name, tuple(_flat(switches)), profile=profile, by=path)


def keeps(rule: str, name: str, *switches: Switch | tuple[Switch, ...]) -> Mutation:
    """Return a mutation that is harmless."""
    return Mutation(rule, name, tuple(_flat(switches)), is_harmless=True)


def _flat(switches: Iterable[Switch | tuple[Switch, ...]]) -> Iterator[Switch]:
    for each in switches:
        yield from each if isinstance(each, tuple) else (each,)


@contextmanager
def mutated(mutation: Mutation, *, with_invariants: bool = False, beside: Iterable[ModuleType] = ()) -> Iterator[None]:
    """Run with a rule switched off.

    Args:
        mutation: The rule.
        with_invariants: Keep the checks at each commit.
        beside: Modules outside the library that have imported from it, too.

    Raises:
        InvariantViolated: A place is gone, or what stands in for it does not fit.
    """
    beside = tuple(beside)
    unchecked = () if with_invariants else (answers(f"log.invariants:{name}", None) for name in INVARIANTS)
    with ExitStack() as stack:
        for switch in (*unchecked, *mutation.switches):
            stack.enter_context(switched(switch, beside=beside))
        yield
