"""The rules of the protocol, each switched off in the real code: the simulation has to notice.

A mutation replaces a few words in the source of one function and puts the result in its place, so it breaks
loudly when that code changes. The invariants that a commit checks are switched off where they would notice first;
the tests check, too, that they do notice.
"""

import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from types import ModuleType
from typing import Any, Final

import icedb_log
from icedb_log.errors import InvariantViolated

from icedb_sim.rules.switches import Switch, answers, switched

INVARIANTS: Final = ("require_append", "require_merge", "require_same_live", "require_strip")


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes to the source of one function.

    Attributes:
        function: ``module:function`` or ``module:Class.method``, below ``icedb_log`` or with its package.
        changes: Pairs of a text that occurs exactly once in it, and of what stands there instead.
    """

    function: str
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule switched off.

    Attributes:
        rule: Id in ``docs/protocol.md``.
        name: What the code does instead.
        edits: How.
        is_harmless: The simulation does not notice, since another rule stands behind this one, or since nothing is
            built on it; ``docs/internals/simulation.md`` says which.
        cast: Who has to play for it to be noticed, as ``Cast.parse`` takes it.
        mood: In which mood it is missed most; three of four schedules have it.
    """

    rule: str
    name: str
    edits: tuple[Edit | Switch, ...]
    is_harmless: bool = False
    cast: str = "plain"
    mood: str = ""


def played_by(cast: str, *rules: Mutation) -> tuple[Mutation, ...]:
    """Return mutations that only a certain cast notices."""
    return tuple(replace(rule, cast=cast) for rule in rules)


def edit(function: str, *changes: tuple[str, str]) -> Edit:
    """Return changes to one function."""
    return Edit(function, changes)


def breaks(rule: str, name: str, *edits: Edit | Switch | tuple[Switch, ...]) -> Mutation:
    """Return a mutation that the simulation notices."""
    return Mutation(rule, name, _flat(edits))


def keeps(rule: str, name: str, *edits: Edit | Switch | tuple[Switch, ...]) -> Mutation:
    """Return a mutation that is harmless."""
    return Mutation(rule, name, _flat(edits), is_harmless=True)


def _flat(edits: Iterable[Edit | Switch | tuple[Switch, ...]]) -> tuple[Edit | Switch, ...]:
    return tuple(each for edit in edits for each in (edit if isinstance(edit, tuple) else (edit,)))


def code(*lines: str) -> str:
    """Return lines of code as one text."""
    return "\n".join(lines)


@contextmanager
def mutated(mutation: Mutation, *, with_invariants: bool = False, beside: Iterable[ModuleType] = ()) -> Iterator[None]:
    """Run with a rule switched off.

    Args:
        mutation: The rule.
        with_invariants: Keep the checks at each commit.
        beside: Modules outside the library that have imported from it, too.
    """
    beside = tuple(beside)
    with ExitStack() as stack:
        if not with_invariants:
            for name in INVARIANTS:
                stack.enter_context(switched(answers(f"log.invariants:{name}", None), beside=beside))
        for edit in mutation.edits:
            stack.enter_context(switched(edit, beside=beside) if isinstance(edit, Switch) else _edited(edit, beside))
        yield


def edited_source(edit: Edit, original: Callable[..., Any] | None = None) -> str:
    """Return the source of a function with its changes.

    Raises:
        InvariantViolated: They do not fit any more.
    """
    if original is None:
        module_name, _, qualified = edit.function.partition(":")
        original = attrgetter(qualified)(_import(module_name))
    source = textwrap.dedent(inspect.getsource(original))
    for old, new in edit.changes:
        if source.count(old) != 1:
            raise InvariantViolated(f"{edit.function}: {old!r} occurs {source.count(old)} times: mend the mutation")
        source = source.replace(old, new)
    return source


def _import(name: str) -> ModuleType:
    return importlib.import_module(name if name.startswith("icedb_") else f"icedb_log.{name}")


@contextmanager
def _edited(edit: Edit, beside: Iterable[ModuleType]) -> Iterator[None]:
    module_name, _, qualified = edit.function.partition(":")
    module = _import(module_name)
    owner_name, _, name = qualified.rpartition(".")
    owner: Any = getattr(module, owner_name) if owner_name else module
    original = getattr(owner, name)
    scope: dict[str, Any] = {}
    exec(compile(edited_source(edit, original), f"<mutated {edit.function}>", "exec"), module.__dict__, scope)
    changed = scope[name]
    if owner_name:
        setattr(owner, name, changed)
        try:
            yield
        finally:
            setattr(owner, name, original)
    else:
        with _replaced(original, changed, beside):
            yield


@contextmanager
def _replaced(
    original: Callable[..., Any], changed: Callable[..., Any], beside: Iterable[ModuleType]
) -> Iterator[None]:
    """Put a function in the place of another one wherever it was imported to."""
    for found in pkgutil.walk_packages(icedb_log.__path__, "icedb_log."):
        if not found.name.startswith("icedb_log.store.s3"):
            importlib.import_module(found.name)
    ours = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(("icedb_log.", "icedb_sim.")) and not name.startswith("icedb_sim.rules.")
    ]
    places = [
        (module, name) for module in (*ours, *beside) for name, value in list(vars(module).items()) if value is original
    ]
    for module, name in places:
        setattr(module, name, changed)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, original)
