"""Which paths stand in some JSON texts, in how many of them, and of which type their values are. Pure.

What it holds is bounded by the texts, and below one parent by :data:`MAX_KEYS`: a parent with more different keys is a
map, of which the keys are data (ids, dates), and no path leads through it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from icedb_log.table.promoted_paths import MAX_KEYS as MAX_DEPTH
from icedb_log.table.promoted_paths import find_path_problem

MAX_KEYS: Final = 1000
"""Different keys below one parent that is no map."""
_INTEGERS: Final = range(-(2**63), 2**63)
_TYPES: Final[Mapping[frozenset[type], str]] = {
    frozenset({str}): "VARCHAR",
    frozenset({bool}): "BOOLEAN",
    frozenset({int}): "BIGINT",
    frozenset({float}): "DOUBLE",
    frozenset({int, float}): "DOUBLE",
}


@dataclass(frozen=True, slots=True)
class PathShare:
    """A path below a column of JSON text.

    Attributes:
        path: The column, then keys.
        share: Part of the rows that have a value there, 0 to 1; null is none.
        sql_type: Of a column that takes all of the values; ``None``: they are objects, arrays, or of several types.
    """

    path: tuple[str, ...]
    share: float
    sql_type: str | None


@dataclass(slots=True)
class _Node:
    count: int = 0
    kinds: set[type] = field(default_factory=set)
    below: dict[str, "_Node"] = field(default_factory=dict)
    is_map: bool = False

    def add(self, value: Any, depth: int) -> None:
        self.count += 1
        kind = type(value)
        self.kinds.add(object if kind is int and value not in _INTEGERS else kind)
        if kind is not dict or self.is_map or depth == MAX_DEPTH:
            return
        for key, each in value.items():
            if each is not None:
                node = self.below.get(key)
                if node is None:
                    if len(self.below) == MAX_KEYS:
                        self.below, self.is_map = {}, True
                        return
                    node = self.below[key] = _Node()
                node.add(each, depth + 1)

    def walk(self, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], "_Node"]]:
        for key, node in self.below.items():
            yield (*path, key), node
            yield from node.walk((*path, key))


def find_path_shares(column: str, texts: Iterable[str | None]) -> tuple[PathShare, ...]:
    """Return the paths in texts that could be promoted, the most frequent first.

    Args:
        column: That has the texts.
        texts: One for each row; what is no JSON object has no paths.
    """
    root, row_count = _Node(), 0
    for text in texts:
        row_count += 1
        try:
            value = orjson.loads(text or "null")
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            root.add(value, 1)
    found = (
        PathShare(path, node.count / row_count, _TYPES.get(frozenset(node.kinds)))
        for path, node in root.walk((column,))
        if find_path_problem(path) is None
    )
    return tuple(sorted(found, key=lambda each: (-each.share, each.path)))
