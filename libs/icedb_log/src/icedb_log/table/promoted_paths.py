"""Promoted paths: columns whose values are taken out of the JSON text of another column. Pure.

A path is the name of the column that has the text, then the keys that lead to the value. As people write it, keys stand
behind dots (``context.page.url``); a key with a dot, a colon, a double quote or white space is written as JSON writes a
string (``properties."utm.source"``). Which column, and of which type: ``PATH[:TYPE] [as NAME]``. With a star as the
last key (``properties.*``) paths below are promoted by themselves, as far as they are frequent.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from icedb_log.errors import InvalidRequest
from icedb_log.table.decimals import spell_decimal
from icedb_log.table.time_columns import TIME_UNITS, TimeUnit

MAX_PROMOTED: Final = 256
"""Promoted columns of a table."""
PROMOTE_SHARE: Final = 0.1
"""In which part of the rows a path stands that is promoted by itself."""
PROMOTE_LIMIT: Final = 64
"""From so many promoted columns on none comes by itself."""
MAX_KEYS: Final = 32
MAX_KEY_BYTES: Final = 255
OFF: Final = "OFF"
"""In the place of a type: nothing fills the column any more."""
STAR: Final = "*"
SEPARATOR: Final = "__"
"""Between the keys of a path in the name that its column has by default."""
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_KEY: Final = re.compile(rf'{_QUOTED}|[^.":\s]+')
_TEXT: Final = re.compile(
    rf"(?P<path>(?:{_KEY.pattern})(?:\.(?:{_KEY.pattern}))*)"
    r"(?:\s*:\s*(?P<type>[A-Za-z]\w*)\s*(?:\(\s*(?P<of>[^()]*?)\s*\))?)?"
    r"(?:\s+(?i:as)\s+(?P<name>\S.*?))?\s*",
    re.DOTALL,
)
_SHOWN: Final = 120


@dataclass(frozen=True, slots=True)
class Promotion:
    """A promoted path as it was asked for.

    Attributes:
        column: Name of its column.
        path: Name of the column that has the text, then the keys; a star as the last: whatever is frequent below.
        sql_type: Type of its column.
        unit: What numbers count, if it is a time.
    """

    column: str
    path: tuple[str, ...]
    sql_type: str = "VARCHAR"
    unit: TimeUnit | None = None

    @classmethod
    def parse(cls, text: str, *, option: str) -> Self:
        """Parse the text form. Raises InvalidRequest with the forms that there are."""
        match = _TEXT.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError("not understood")
            path = tuple(json.loads(key) if key.startswith('"') else key for key in _KEY.findall(match["path"]))
            has_star = len(path) > 1 and path[-1] == STAR
            problem = find_path_problem((*path[:-1], "key") if has_star else path)
            if problem is not None:
                raise ValueError(problem)
            sql_type, unit = _read_type(match["type"] or "VARCHAR", match["of"])
            if has_star and (match["name"] or sql_type not in (OFF, "VARCHAR")):
                raise ValueError("what is promoted by itself has names and types of its own")
        except ValueError as error:
            raise InvalidRequest(
                f"{option} {text[:_SHOWN]!r}: {error}; write PATH[:TYPE] [as NAME], e.g. properties.plan, "
                "properties.price:DOUBLE or 'context.page.url as page_url'"
            ) from error
        return cls(match["name"] or SEPARATOR.join(path), path, sql_type, unit)


def parse_promotions(texts: Iterable[str], *, option: str) -> tuple[Promotion, ...]:
    """Return promoted paths from their text forms. Raises InvalidRequest: one is not understood, or a column twice."""
    found: dict[str, Promotion] = {}
    for text in texts:
        promotion = Promotion.parse(text, option=option)
        other = found.setdefault(promotion.column, promotion)
        if other is not promotion:
            raise InvalidRequest(
                f"{option} {text[:_SHOWN]!r}: column {promotion.column!r} is that of {spell_path(other.path)} already: "
                "give one of them another name, … as NAME"
            )
    return tuple(found.values())


def add_promotions(
    fields: Mapping[str, Any], promotions: Collection[Promotion], *, option: str, may_end: bool = False
) -> dict[str, Any]:
    """Return the fields of a table's configuration with promoted paths: columns, types, what numbers count.

    Args:
        fields: The fields besides.
        promotions: The paths.
        option: How they were given.
        may_end: Whether some may be those that are filled no more.

    Raises:
        InvalidRequest: A column of them is declared besides, or one is to be filled no more that is not there.
    """
    if not promotions:
        return dict(fields)
    declared, times, promoted = (dict(fields.get(name) or {}) for name in ("declared", "times", "promoted"))
    below: dict[tuple[str, ...], bool] = {}
    for each in promotions:
        if each.column in (fields.get("declared") or {}):
            raise InvalidRequest(
                f"column {each.column!r} is declared besides {option}: give its type there, "
                f"'{spell_path(each.path)}:{declared[each.column]}'"
            )
        if each.path[-1] == STAR:
            is_on = below[each.path[:-1]] = each.sql_type != OFF
            if is_on:
                declared.setdefault(each.path[0], "VARCHAR")
            elif not may_end:
                raise InvalidRequest(f"{option} '{spell_path(each.path)}:off': a new table promotes nothing by itself")
            continue
        if each.sql_type == OFF and may_end:
            promoted[each.column] = ()
            continue
        declared.setdefault(each.path[0], "VARCHAR")
        declared[each.column], promoted[each.column] = each.sql_type, each.path
        if each.unit is not None:
            times[each.column] = {**times.get(each.column, {}), "unit": each.unit}
    added = {"declared": declared, "times": times, "promoted": promoted}
    return {**fields, **added, **({"promoted_below": below if may_end else tuple(below)} if below else {})}


def spell_path(path: Sequence[str]) -> str:
    """Return a path as people write it."""
    return ".".join(key if _KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path)


def find_path_problem(path: Sequence[str]) -> str | None:
    """Return why a path cannot be promoted; ``None`` if it can."""
    if len(path) < 2:  # noqa: PLR2004 - a column, and a key
        return "a path is the name of a column and at least one key, column.key"
    if len(path) > MAX_KEYS:
        return f"{len(path)} keys; at most {MAX_KEYS}"
    for key in path[1:]:
        if key == "*":
            return "a path names one value: * stands for none"
        if not key or not key.isprintable() or len(key.encode()) > MAX_KEY_BYTES:
            return f"key {key[:80]!r}: use 1 to {MAX_KEY_BYTES} bytes of printable characters"
    return None


def _read_type(word: str, of: str | None) -> tuple[str, TimeUnit | None]:
    """Return a type, and what its numbers count; whether there is such a type, the configuration says."""
    if word.lower() in TIME_UNITS and of is None:
        return "BIGINT", cast("TimeUnit", word.lower())
    sql_type = word.upper()
    if of is None:
        return sql_type, None
    if sql_type == "TIMESTAMP" and of.lower() in TIME_UNITS:
        return sql_type, cast("TimeUnit", of.lower())
    decimal = spell_decimal(f"{word}({of})")
    if decimal is None:
        raise ValueError(f"type {word}({of}) is unknown")
    return decimal, None
