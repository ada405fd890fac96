"""A rule of the protocol switched off in the real code: a function of this package stands in for one of the product.

A place is a function, a method, a property or a constant that says the rule, ``holds.guards:Death.died_ms``, below
``icedb_log`` or with its package. What stands in for it takes the same parameters: that is compared before anything
runs, so that a place that is gone, or that takes something else by now, is an error and no proof. The invariants that a
commit checks are switched off where they would notice first; the tests check, too, that they do notice.

A module that only imports a name is a place, too: ``holds.tags:_require_free`` is replaced wherever it was
imported to, ``clean.vacuum:check_store_clock`` for vacuums alone, since it is not theirs.
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, wraps
from types import ModuleType
from typing import Any, Final

import icedb_log
from icedb_log.errors import InvariantViolated
from icedb_log.store.table_store import TableStore

BROKEN: Final = (AttributeError, NameError, TypeError)
"""What Python raises where a stand-in does not fit what is around it: that proves nothing about the rule."""

_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
UNASKED: Final = object()
"""What is asked early, and was not."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One place in the product, and what stands there instead.

    Attributes:
        place: ``module:name`` or ``module:Class.name``.
        stand_in: A function; for a constant its value.
        gets_original: Whether the function takes the original as its first argument.
        asked_first: Of a function that is called with some of the place's arguments: compared with them as well.
    """

    place: str
    stand_in: Any
    gets_original: bool = False
    asked_first: Callable[..., Any] | None = None


def instead(place: str, stand_in: Callable[..., Any]) -> Switch:
    """Let a function do what the place does."""
    return Switch(place, stand_in)


def around(place: str, stand_in: Callable[..., Any]) -> Switch:
    """Let a function do what the place does, given the original as its first argument."""
    return Switch(place, stand_in, gets_original=True)


def answers(place: str, value: object) -> Switch:
    """Let the place do nothing and return a value."""
    return instead(place, lambda *_, **__: value)


def is_now(place: str, value: object) -> Switch:
    """Let a constant have another value, in its own module."""
    return Switch(place, value)


def with_arguments(place: str, **changed: object) -> Switch:
    """Let the place be called with other arguments, whatever it is called with."""

    def call(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.arguments.update(changed)
        return original(*bound.args, **bound.kwargs)

    return Switch(place, call, gets_original=True, asked_first=_takes(*changed))


def inside(outer: str, switch: Switch) -> tuple[Switch, ...]:
    """Put something in its place only within calls of a function."""
    depth: ContextVar[int] = ContextVar(outer, default=0)

    def enter(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        token = depth.set(depth.get() + 1)
        try:
            return original(*args, **kwargs)
        finally:
            depth.reset(token)

    def call(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        if not depth.get():
            return original(*args, **kwargs)
        return switch.stand_in(*([original] if switch.gets_original else []), *args, **kwargs)

    return around(outer, enter), replace(switch, stand_in=call, gets_original=True)


def early(outer: str, inner: str, ask: Callable[..., Any]) -> tuple[Switch, ...]:
    """Let what a function asks in its course be asked at its beginning: an order is turned round.

    Args:
        outer: The function that holds the order.
        inner: What it calls late. Within a call of the outer one its first answer is what was found at the beginning.
        ask: Finds that. Takes some of the outer function's parameters, by their names; may return :data:`UNASKED`.
    """
    found: ContextVar[Any] = ContextVar(inner, default=UNASKED)
    wanted = inspect.signature(ask).parameters

    def begin(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        token = found.set(ask(**{name: arguments.get(name) for name in wanted}))
        try:
            return original(*args, **kwargs)
        finally:
            found.reset(token)

    def answer(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        known = found.get()
        if known is UNASKED:
            return original(*args, **kwargs)
        found.set(UNASKED)
        return known

    return Switch(outer, begin, gets_original=True, asked_first=ask), around(inner, answer)


def repeats(outer: str, inner: str) -> tuple[Switch, ...]:
    """Let a function go by what it asked first: within a call of it, what it asks again gives the same answer."""
    first: ContextVar[dict[int, Any] | None] = ContextVar(inner, default=None)

    def begin(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        token = first.set({})
        try:
            return original(*args, **kwargs)
        finally:
            first.reset(token)

    def answer(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        known = first.get()
        if known is None:
            return original(*args, **kwargs)
        asked = id(args[0]) if is_method(inner) else 0
        if asked not in known:
            known[asked] = original(*args, **kwargs)
        return known[asked]

    return around(outer, begin), around(inner, answer)


class Other:
    """Something as it is, but for some of its methods.

    Args:
        thing: What it is.
        methods: What it does instead, by name.
    """

    def __init__(self, thing: object, **methods: Callable[..., Any]) -> None:
        self._thing = thing
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        """Do all else as it does."""
        return getattr(self._thing, name)


def with_store(place: str, change: Callable[[Any], object]) -> Switch:
    """Let a function, or a method of what has a ``_table`` or a ``_store``, work with another store.

    Args:
        place: The function; its first argument is the store, a table, or has one.
        change: Makes another store of it, such as :func:`careless`.
    """

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
        first, rest = args[0], args[1:]
        if isinstance(first, TableStore):
            return original(_with_other_store(first, change), *rest, **kwargs)
        name = next((name for name in ("_table", "_store") if hasattr(first, name)), None)
        if name is None:
            return original(change(first), *rest, **kwargs)
        held = getattr(first, name)
        setattr(first, name, _with_other_store(held, change) if name == "_table" else change(held))
        try:
            return original(*args, **kwargs)
        finally:
            setattr(first, name, held)

    return around(place, call)


def _with_other_store(table: TableStore, change: Callable[[Any], object]) -> TableStore:
    other = copy(table)
    object.__setattr__(other, "store", change(table.store))
    return other


def careless(store: Any) -> object:
    """Return a store that writes over whatever is there."""

    def put(key: str, body: bytes, **_: object) -> object:
        return store.put(key, body)

    return Other(store, put_if_match=put, put_if_absent=put)


def _takes(*names: str) -> Callable[..., Any]:
    """Return a function that has these parameters, for a comparison."""
    function: Callable[..., Any] = lambda **_: None  # noqa: E731 - only its signature counts
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


# Putting them in place


@contextmanager
def switched(switch: Switch, *, beside: Iterable[ModuleType] = ()) -> Iterator[None]:
    """Run with something else in a place.

    Args:
        switch: The place, and what stands there instead.
        beside: Modules outside the library that have imported from it, too.

    Raises:
        InvariantViolated: The place is gone, or what stands in for it does not fit.
    """
    owner, name, original = find_place(switch.place)
    require_fit(switch)
    changed = _stand_in(switch, original)
    homes: list[tuple[Any, str]] = [(owner, name)]
    if isinstance(owner, ModuleType) and getattr(original, "__module__", None) == owner.__name__:
        homes = [home for module in (*_modules(), *beside) for home in _names_of(module, original)]
    with ExitStack() as stack:
        for home, own_name in homes:
            stack.callback(setattr, home, own_name, original)
            setattr(home, own_name, changed)
        yield


def find_place(place: str) -> tuple[Any, str, Any]:
    """Return where something stands, its name there, and itself: of a property or a static method, that.

    Raises:
        InvariantViolated: It is gone.
    """
    module_name, _, qualified = place.partition(":")
    owner_name, _, name = qualified.rpartition(".")
    try:
        module = importlib.import_module(
            module_name if module_name.startswith("icedb_") else f"icedb_log.{module_name}"
        )
        owner: Any = getattr(module, owner_name) if owner_name else module
        return owner, name, vars(owner)[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise InvariantViolated(f"{place}: there is no such place any more: mend the rule") from error


def require_fit(switch: Switch) -> None:
    """Check that a stand-in takes what the place takes: parameters by name, kind and default.

    What it passes on as ``*args`` and ``**kwargs`` it need not name. A method's own first parameter may have any name.

    Raises:
        InvariantViolated: It does not.
    """
    _, _, original = find_place(switch.place)
    function = _function_of(original)
    if function is None or not callable(switch.stand_in):
        if type(original) is not type(switch.stand_in):
            raise InvariantViolated(f"{switch.place}: is no {type(switch.stand_in).__name__} any more: mend the rule")
        return
    there = list(inspect.signature(function).parameters.values())
    mine = list(inspect.signature(switch.stand_in).parameters.values())[switch.gets_original :]
    if is_method(switch.place) and not isinstance(original, staticmethod):
        there, mine = there[1:], [each for each in mine[:1] if each.kind in _VARIADIC] + mine[1:]
    named = {each.name: (each.kind, each.default) for each in mine if each.kind not in _VARIADIC}
    known = {each.name: (each.kind, each.default) for each in there}
    asked = {} if switch.asked_first is None else inspect.signature(switch.asked_first).parameters
    taken = inspect.signature(function).parameters.keys()
    is_whole = len(named) < len(mine) or named.keys() == known.keys()
    if not (is_whole and named.items() <= known.items() and asked.keys() <= taken):
        raise InvariantViolated(
            f"{switch.place}: takes {inspect.signature(function)}, and its stand-in "
            f"{inspect.signature(switch.asked_first or switch.stand_in)}: mend the rule"
        )


def is_method(place: str) -> bool:
    """Whether a place is a method or a property."""
    return "." in place.partition(":")[2]


def _function_of(original: Any) -> Callable[..., Any] | None:
    """Return what is called in a place; ``None``: it is a constant."""
    if isinstance(original, property):
        return original.fget
    if isinstance(original, staticmethod | classmethod):
        return original.__func__
    return original if inspect.isfunction(original) else None


def _stand_in(switch: Switch, original: Any) -> Any:
    function, changed = _function_of(original), switch.stand_in
    if function is None:
        return changed
    if switch.gets_original:

        @wraps(function)
        def changed(*args: object, **kwargs: object) -> object:
            return switch.stand_in(function, *args, **kwargs)

    if isinstance(original, property):
        return property(changed)
    return type(original)(changed) if isinstance(original, staticmethod | classmethod) else changed


def _modules() -> list[ModuleType]:
    """Return the modules that may have imported something of the library."""
    _import_all()
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(("icedb_log.", "icedb_sim.")) and not name.startswith("icedb_sim.rules.")
    ]


@cache
def _import_all() -> None:
    for found in pkgutil.walk_packages(icedb_log.__path__, "icedb_log."):
        if not found.name.startswith("icedb_log.store.s3"):
            importlib.import_module(found.name)


def _names_of(module: ModuleType, original: object) -> list[tuple[Any, str]]:
    return [(module, name) for name, value in list(vars(module).items()) if value is original]


INVARIANTS: Final = ("require_append", "require_merge", "require_promoted", "require_same_live", "require_strip")


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
    unchecked = () if with_invariants else (answers(f"commit.invariants:{name}", None) for name in INVARIANTS)
    with ExitStack() as stack:
        for switch in (*unchecked, *mutation.switches):
            stack.enter_context(switched(switch, beside=beside))
        yield
