"""Options made from the fields of a table's configuration, and how what was typed becomes these fields.

The fields of :data:`NAMED_FIELDS` have an option of their own; the others are keys of ``--set KEY=VALUE``.

The name of a field gives the option, its docstring the help, its type and the unit in its name how the text is read:
``…_ms`` is a duration, ``…_bytes`` a number of MiB, ``…_query`` SQL or ``@FILE``, a mapping columns with types. A time
or a query that may be ``None`` takes ``off``; other text may be the name of something. :data:`_FLAGS` has what is
called otherwise. So a new field of :class:`~icedb_log.table.table_config.TableConfig` is a key of ``create --set``
without a line here, and one of ``alter --set`` if it may change.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from icedb_log.changes.table_changes import FREE_FIELDS, RISING_FIELDS
from icedb_log.errors import InvalidRequest
from icedb_log.table.decimals import spell_decimal
from icedb_log.table.promoted_paths import Promotion, add_promotions, parse_promotions, spell_path
from icedb_log.table.table_config import ASKED_FLOORS, TYPE_NAMES, TableConfig
from icedb_log.table.time_columns import TIME_UNITS, parse_ranges
from icedb_log.texts import read_field_docs
from icedb_log.units import MIB, parse_duration

from icedb.cli.output import format_span
from icedb.cli.runner import read_query

OFF: Final = "off"

HIDDEN_FIELDS: Final = frozenset(
    {
        "format_version",
        "name",
        "partition",
        "promoted_below",
        "sort",
        "undropped",
        "dropped",
    }  # not a setting, or named so
    | {"row_group_rows", "seal_age_ms"}  # nobody has had to set them
)
CREATE_FIELDS: Final = tuple(name for name in TableConfig.model_fields if name not in HIDDEN_FIELDS)
ALTER_FIELDS: Final = tuple(
    name for name in CREATE_FIELDS if name in FREE_FIELDS | RISING_FIELDS | {"declared", "times", "promoted"}
)
NAMED_FIELDS: Final = frozenset(
    {"declared", "times", "promoted", "insert_query", "source", "merge_query", "view_of", "view_query", "retention_ms"}
)
"""Fields with an option of their own: what a first table may need. The others tune a table."""

_FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "declared": ("--column", "NAME:TYPE"),
    "times": ("--plausible", "NAME:FROM..TO"),
    "promoted": ("--promote", "PATH"),
    "view_of": ("--from", "TABLE"),
    "view_query": ("--query", "SQL"),
}
"""Options and what they take, where the field's name and type do not give them."""

_HELP: Final[Mapping[str, str]] = {
    "declared": "Declare a column's type, e.g. price:DOUBLE; ts:epoch_ms (epoch_s, epoch_us) is a time that is a "
    "BIGINT, ts:TIMESTAMP(epoch_s) one whose numbers are seconds; price:off takes a declaration back (alter). Types "
    "of other columns are found in the data. Repeat.",
    "times": "Times outside are bad rows, e.g. ts:2020..2030-06-30; ts:off: none are. Sources of partitions of a new "
    "table have 1990..2100. Repeat.",
    "promoted": "A column of a value inside JSON text, e.g. properties.plan, properties.price:DOUBLE or "
    "'context.page.url as page_url'; properties.*: whatever is frequent below; properties.plan:off fills it no more "
    "(alter). Repeat.",
    "source": "A column of _rows with its type, e.g. payload:VARCHAR. Repeat.",
}
"""Help of options that take more than the value of a field."""

_COLUMN: Final = re.compile(
    r"(?P<name>.+)[:=]\s*(?:(?P<decimal>(?i:DECIMAL|NUMERIC|DEC)\s*\([^()]*\))|"
    r"(?P<type>[A-Za-z0-9_]+)\s*(?:\(\s*(?P<unit>\w+)\s*\))?)\s*",
    re.DOTALL,
)
_SHOWN: Final = 80

_MARKUP: Final = re.compile(r"``|\s*\((?:[A-Z]\d+(?:, )?)+\)")
"""What a docstring has for programmers: marks of code, and the protocol's rules."""


def with_settings(
    fields: Iterable[str], *, shows_defaults: bool
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for fields, ``--set`` among them, in place of its parameter ``settings``.

    The command gets ``settings`` as a mapping of fields to what was typed; see :func:`read_settings`.

    Args:
        fields: Of :class:`TableConfig`.
        shows_defaults: Whether the help says what a table gets if the option is not given.
    """
    fields = tuple(fields)
    options = [_make_option(name, shows_default=shows_defaults) for name in fields if name in NAMED_FIELDS]
    names = [option.name for option in options]
    keys = {_key_of(name): name for name in fields if name not in NAMED_FIELDS}
    words = "Set one of the keys below, e.g. data_grace=12h. Repeat."
    kind = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help=words)]
    options.append(inspect.Parameter("tuning", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            typed = {name: given.pop(name) for name in names} | _read_tuning(given.pop("tuning") or (), keys)
            command(settings={name: value for name, value in typed.items() if value is not None}, **given)

        own = inspect.signature(command).parameters.values()
        parameters = [each for one in own for each in (options if one.name == "settings" else (one,))]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer goes by
        shown = [_describe_key(key, name, shows_default=shows_defaults) for key, name in keys.items()]
        run.keys = shown  # type: ignore[attr-defined]  # the help has a section of them
        return run

    return decorate


def read_settings(typed: Mapping[str, Any], *, is_change: bool = False) -> dict[str, Any]:
    """Return the fields of a configuration that options name.

    Args:
        typed: Field to what was typed for it.
        is_change: Whether the table is there, so that something may be taken back.

    Raises:
        InvalidRequest: A text is not understood, or a time is below its floor; names the option.
    """
    fields: dict[str, Any] = {}
    times: dict[str, dict[str, Any]] = {}
    promotions: tuple[Promotion, ...] = ()
    for name, value in typed.items():
        flag = _flag_of(name)[0] if name in NAMED_FIELDS else f"--set {_key_of(name)}"
        if name == "declared":
            fields[name], units = parse_declared(value, option=flag)
            times |= units
        elif name == "promoted":
            promotions = parse_promotions(value, option=flag)
        elif name == "times":
            for column, ends in parse_ranges(value, option=flag).items():
                times[column] = {**times.get(column, {}), **ends}
        elif _can_be_off(name) and str(value).strip().lower() == OFF:
            fields[name] = None
        else:
            fields[name] = _read(name, value, flag)
    fields = {**fields, "times": times} if times else fields
    return add_promotions(fields, promotions, option=_flag_of("promoted")[0], may_end=is_change)


def describe_declared(config: TableConfig, column: str) -> str:
    """Return what is declared of a column, as ``--column``, ``--plausible`` and ``--promote`` take it."""
    text, time, path = config.declared[column], config.times.get(column), config.promoted.get(column)
    if time is not None and time.unit is not None:
        text = time.unit if text == "BIGINT" else f"{text}({time.unit})"
    if path is not None:
        text = f"{spell_path(path)}:{text}" if path else f"{text}, filled no more"
    return text if time is None or time.from_ms is None else f"{text}, {time.describe_range()}"


def _read(name: str, value: Any, flag: str) -> Any:
    if name.endswith("_ms"):
        return parse_duration(value, option=flag, floor_ms=ASKED_FLOORS.get(name, 0))
    if name.endswith("_bytes"):
        return int(value * MIB)
    if name.endswith("_query"):
        return read_query(value, option=flag)
    return parse_columns(value, option=flag) if _type_of(name) == list[str] else value


def _read_tuning(texts: Iterable[str], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return field to value of what ``--set`` was given. Raises InvalidRequest that names the key."""
    typed: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        name = keys.get(key.strip())
        if not sign or name is None:
            raise InvalidRequest(f"--set {text[:_SHOWN]!r}: write KEY=VALUE with one of {', '.join(sorted(keys))}")
        if name in typed:
            raise InvalidRequest(f"--set {key.strip()} is given twice: give it once")
        typed[name] = _convert(value.strip(), _type_of(name), what=f"--set {key.strip()}")
    return typed


def _convert(text: str, kind: Any, *, what: str) -> Any:
    """Return a text as the type of a field. Raises InvalidRequest."""
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise InvalidRequest(f"{what}: {text[:_SHOWN]!r} is not one of {', '.join(get_args(kind))}")
        return text
    try:
        return kind(text)
    except ValueError as error:
        number = "a whole number" if kind is int else "a number"
        raise InvalidRequest(f"{what}: {text[:_SHOWN]!r} is not {number}") from error


def _key_of(name: str) -> str:
    """Return the key of a field for ``--set``."""
    return _flag_of(name)[0].removeprefix("--").replace("-", "_")


def _describe_key(key: str, name: str, *, shows_default: bool) -> tuple[str, str]:
    text, default = _help_of(name), _default_of(name) if shows_default else None
    return f"{key}={_flag_of(name)[1]}", f"{text}  [default: {default}]" if default else text


def _make_option(name: str, *, shows_default: bool) -> inspect.Parameter:
    (flag, metavar), takes = _flag_of(name), _type_of(name)
    default: str | bool = (shows_default and _default_of(name)) or False
    option = typer.Option(flag, metavar=metavar, help=_help_of(name), show_default=default)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[takes, option])


@cache
def _read_docs() -> dict[str, str]:
    """Return the help of each field: parsed for commands that show it, a tenth of the start of those that do not."""
    return read_field_docs(TableConfig)


def _help_of(name: str) -> str:
    text = _HELP.get(name) or _MARKUP.sub("", _read_docs().get(name, "")).replace("None:", "off:")
    if name.endswith("_query"):
        off = ", off takes it back" if name in FREE_FIELDS else ""
        text += f" @FILE reads it from a file{off}. A worker checks it now."
    return text


def _default_of(name: str) -> str | None:
    """Return what a table gets if nothing is said, as it would be typed; ``None`` where that is no number."""
    default = TableConfig.model_fields[name].default
    if not isinstance(default, int | float):
        return None
    if name.endswith("_ms"):
        return format_span(int(default))
    return f"{default / MIB:g}" if name.endswith("_bytes") else str(default)


def _flag_of(name: str) -> tuple[str, str]:
    """Return the option of a field, and what it takes."""
    stem, _, unit = name.rpartition("_")
    takes = {"ms": (stem, "TIME"), "bytes": (f"{stem}_mb", "MIB"), "query": (name, "SQL")}.get(unit)
    if takes is None:
        kind = _type_of(name)
        words = {int: "N", float: "N", list[str]: "NAME:TYPE"}
        takes = name, "POLICY" if get_origin(kind) is Literal else words.get(kind, "TEXT")
    return _FLAGS.get(name, (f"--{takes[0].replace('_', '-')}", takes[1]))


def _type_of(name: str) -> Any:
    """Return what the option of a field is given: text, a number, one of some words, or several texts."""
    kinds = _kinds_of(name)
    if name.endswith(("_ms", "_query")):
        return str
    if name.endswith("_bytes"):
        return float
    return list[str] if get_origin(kinds[0]) is dict else kinds[0]


def _can_be_off(name: str) -> bool:
    """Return whether ``off`` stands for none: of times and queries."""
    return name.endswith(("_ms", "_query")) and type(None) in _kinds_of(name)


def _kinds_of(name: str) -> list[Any]:
    """Return the types that a field may have, ``None`` among them."""
    annotation: Any = TableConfig.model_fields[name].annotation
    kinds = get_args(annotation) if type(None) in get_args(annotation) else (annotation,)
    return [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]


def parse_columns(texts: Iterable[str], *, option: str) -> dict[str, str]:
    """Return columns from texts ``name:TYPE`` or ``name=TYPE``. Raises InvalidRequest."""
    columns = {}
    for name, kind, unit in _read_columns(texts, option=option):
        if unit or kind.lower() in TIME_UNITS:
            raise InvalidRequest(f"{option} {name[:_SHOWN]!r}: write name:TYPE with one of {', '.join(TYPE_NAMES)}")
        columns[name] = kind
    return columns


def parse_declared(texts: Iterable[str], *, option: str) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return columns as :func:`parse_columns`, and what those that are times count.

    ``ts:epoch_s`` is a BIGINT that counts seconds, ``ts:TIMESTAMP(epoch_s)`` a TIMESTAMP that takes such numbers.

    Raises:
        InvalidRequest: A text is not understood.
    """
    columns: dict[str, str] = {}
    times: dict[str, dict[str, Any]] = {}
    for name, kind, given in _read_columns(texts, option=option):
        is_number = kind.lower() in TIME_UNITS
        unit = kind.lower() if is_number else (given or "").lower() or None
        if (is_number and given) or (unit is not None and unit not in TIME_UNITS):
            raise InvalidRequest(
                f"{option} {name[:_SHOWN]!r}: write name:{'|'.join(TIME_UNITS)} for a time that is a BIGINT, or "
                f"name:TIMESTAMP({'|'.join(TIME_UNITS)})"
            )
        columns[name] = "BIGINT" if is_number else kind
        if columns[name] in ("BIGINT", "TIMESTAMP") or unit is not None:
            times[name] = {"unit": unit}
    return columns, times


def _read_columns(texts: Iterable[str], *, option: str) -> list[tuple[str, str, str | None]]:
    found: dict[str, tuple[str, str, str | None]] = {}
    for text in texts:
        match = _COLUMN.fullmatch(text)
        name = match["name"].strip() if match else ""
        if match is None or not name:
            raise InvalidRequest(f"{option} {text[:_SHOWN]!r}: write name:TYPE with one of {', '.join(TYPE_NAMES)}")
        if name in found:
            raise InvalidRequest(f"{option} {name[:_SHOWN]!r} is given twice")
        kind = match["decimal"] and (spell_decimal(match["decimal"]) or match["decimal"])
        found[name] = (name, kind or match["type"].upper(), match["unit"])
    return list(found.values())
