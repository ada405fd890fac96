"""Globs over partition paths: which partitions somebody means. Pure.

A glob has one part for each level of the path, split at ``/``: ``d=2023-06-*`` or ``d=2023-06-01/u=*``. It is held
against the path as it stands in the keys and with its values decoded, level by level, so that both ``c=S_c3_a3o`` and
``c=São`` are found. One with fewer levels than the path means everything below. In a part, ``*`` is any text, ``?``
any character, ``[ab]`` and ``[!ab]`` one of these and none of these; ``*`` never reaches beyond its level.

Whoever names partitions in order to remove them must not be understood half: a glob that finds nothing is an error,
and so is one that finds everything, unless that was asked for.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from itertools import takewhile
from typing import Final, Self

from icedb_log.errors import InvalidRequest
from icedb_log.table.partition_path import decode_partition_value

MAX_GLOBS: Final = 1000
MAX_GLOB_BYTES: Final = 4096

_WILDCARD: Final = re.compile(r"[*?\[]")
_NEAREST: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionGlob:
    """One glob.

    Attributes:
        text: As it was written.
        levels: One expression for each level.
    """

    text: str
    levels: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a glob.

        Raises:
            InvalidRequest: A level is neither ``name=value`` nor ``*``, or the glob is too long.
        """
        if len(text.encode(errors="replace")) > MAX_GLOB_BYTES:
            raise InvalidRequest(f"partition glob of {len(text)} characters: at most {MAX_GLOB_BYTES} bytes")
        parts = text.split("/")
        for part in parts:
            name, separator, _ = part.partition("=")
            if part != "*" and not (name and separator):
                raise InvalidRequest(
                    f"partition glob {text[:120]!r}: {part[:80]!r} is not name=value; write for example "
                    "'d=2023-06-*' or 'd=2023-06-01/u=a*'"
                )
        return cls(text, tuple(re.compile(translate(part)) for part in parts))

    def matches(self, path: str) -> bool:
        """Say whether an encoded partition path, or its beginning, fits."""
        components = path.split("/") if path else []
        return len(components) >= len(self.levels) and all(
            level.match(component) or level.match(_decode(component))
            for level, component in zip(self.levels, components, strict=False)
        )


def select_partitions(
    table: str, globs: Sequence[str], partitions: Collection[str], *, may_match_all: bool = False
) -> frozenset[str]:
    """Return the partitions that at least one of some globs means.

    Args:
        table: Name of the table, for messages.
        globs: At least one.
        partitions: Encoded paths of all partitions with live data files.
        may_match_all: Whether everything may be meant.

    Raises:
        InvalidRequest: A glob is wrong, finds nothing, or all together find everything.
    """
    if not globs or len(globs) > MAX_GLOBS:
        raise InvalidRequest(f"table {table}: give 1 to {MAX_GLOBS} partition globs, not {len(globs)}")
    if set(partitions) == {""}:
        raise InvalidRequest(f"table {table} is not partitioned; delete rows with `icedb delete {table} --where ...`")
    selected: set[str] = set()
    for text in globs:
        glob = PartitionGlob.parse(text)
        found = [path for path in partitions if glob.matches(path)]
        if not found:
            raise InvalidRequest(
                f"table {table}: no partition fits {text[:120]!r}; {_describe_nearest(glob, partitions)}"
            )
        selected.update(found)
    if not may_match_all and len(selected) == len(partitions):
        raise InvalidRequest(
            f"table {table}: {', '.join(globs)[:120]} means all {len(partitions)} partitions of the table; say so with "
            "--all if that is what you want"
        )
    return frozenset(selected)


def decode_partition(path: str) -> str:
    """Return a partition path for people: its values decoded. Not to be parsed."""
    return "/".join(_decode(component) for component in path.split("/"))


def _decode(component: str) -> str:
    name, separator, encoded = component.partition("=")
    return f"{name}={decode_partition_value(encoded)}" if separator else component


def _describe_nearest(glob: PartitionGlob, partitions: Iterable[str]) -> str:
    literal = _WILDCARD.split(glob.text, maxsplit=1)[0]
    paths = [decode_partition(path) for path in partitions]
    near = sorted(paths, key=lambda path: (-_common_length(path, literal), path))[:_NEAREST]
    return f"the nearest are {', '.join(near)}" if near else "the table has no live data files"


def _common_length(left: str, right: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
