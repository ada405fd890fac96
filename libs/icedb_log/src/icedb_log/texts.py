"""What counts as text where people send some, how it is written in SQL, and what people are told of mistakes."""

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, ValidationError

_MEANT = ("Candidate bindings:", "Did you mean")
_NESTED = re.compile(r"Cannot extract field '(.*)' from expression \"(.*)\" because it is not a struct")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNITS = {"_ms": "milliseconds", "_mb": "MiB", "_kb": "KiB", "_bytes": "bytes"}


def is_text(value: str) -> bool:
    """Whether a string has a UTF-8 form: arguments of a command, and escapes of JSON, may hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_text(value: str) -> str:
    if not is_text(value):
        raise ValueError("it has half a character (a lone surrogate), so that it cannot be written down")
    return value


Text: TypeAlias = Annotated[str, AfterValidator(_require_text)]
"""A field of a model that is written down as JSON."""


def read_field_docs(kind: type) -> dict[str, str]:
    """Return what stands below each field of a class of ours, and of those of ours that it extends, in one line.

    Read from the source when somebody asks: pydantic's ``use_attribute_docstrings`` reads it at each import.
    """
    found = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("icedb"):
            (tree,) = ast.parse(dedent(inspect.getsource(each))).body
            for field, below in pairwise(tree.body):  # type: ignore[attr-defined]  # it is a class
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        found[name] = " ".join(words.split())
    return found


def quote_name(name: str) -> str:
    """Return ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return ``text`` as SQL: a string literal, or several where a NUL stands, which no literal can hold."""
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.55) -> str:
    """Return ``; did you mean events?`` with up to three names that are close, case and hyphens aside; or nothing.

    Args:
        name: What somebody wrote.
        known: What they may write.
        cutoff: How close a name has to be, up to 1: the ratio of :mod:`difflib`.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only for what is wrong

    plain = {each.lower().replace("-", "_"): each for each in known}
    close = get_close_matches(name.lower().replace("-", "_"), plain, cutoff=cutoff)
    return f"; did you mean {' or '.join(plain[each] for each in close)}?" if close else ""


def first_line(said: object) -> str:
    """Return the first line of a text, or of what an error says (its kind if nothing), at most 500 characters.

    With it come the names that DuckDB thinks are meant, without its drawing of where, and how a nested value is read.
    """
    first, *more = str(said).strip().splitlines() or [type(said).__name__]
    line = " ".join([first, *(line.strip() for line in more if line.startswith(_MEANT))])[:500]
    nested = _NESTED.search(line)
    if nested is None:
        return line
    field = nested[1].replace("''", "'")
    return f"{line}; {describe_nested(column=nested[2], field=field)}"


def describe_nested(*, column: str, field: str) -> str:
    """Return how SQL reads a field of a nested value, for who writes ``column.field``: it is kept as JSON text."""
    name = column if _PLAIN_NAME.fullmatch(column) else quote_name(column)
    value = f"{name}->>{quote_text(field)}"
    return f"nested values are JSON text: write {value}, or ({value})::DOUBLE for a number"


def describe_problem(problem: Mapping[str, Any]) -> str:
    """Return what pydantic says is wrong with a setting; with the unit, where a number is written another way."""
    if problem["type"] in ("int_parsing", "int_from_float"):
        field = str(problem["loc"][0])
        unit = next((f" of {words}" for ending, words in _UNITS.items() if field.endswith(ending)), "")
        return f"write a whole number{unit}, digits alone"
    if problem["type"] == "float_parsing":
        return "write a number, e.g. 0.25"
    return str(problem["msg"]).removeprefix("Value error, ")


def first_message(error: ValueError) -> str:
    """Return the first thing that a model says is wrong, and where."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    return str(error)
