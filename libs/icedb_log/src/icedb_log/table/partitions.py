"""Partitions: how their values stand in a key, and which of them somebody means. Pure.

**Values.** The wire allows only ``A-Z a-z 0-9 - _ .`` in a partition value, without ``%``, ``+`` or space (existing
readers split and compare the text as it is). So each other character becomes ``_`` and two lower-case hex digits for
each of its UTF-8 bytes: ``São`` is ``S_c3_a3o``. Two texts never share one form:

* a literal ``_`` stays, unless two lower-case hex digits follow it: then it becomes ``_5f``;
* the empty text is ``_``, and the text ``_`` is ``_5f``;
* ``__HIVE_DEFAULT_PARTITION__``, which Hive readers take for null, gets its first ``_`` escaped.

**Filters** are conditions on values, for who reads. Here is their meaning and their text form; the snapshot service and
the client both prune with them, so that an answer over the wire and one read straight from the log are the same. A
filter that cannot be understood is refused: to ignore it would return the wrong files.

**Globs** are held against paths, for who removes or rewrites. A glob has one part for each level of the path, split at
``/``: ``d=2023-06-*`` or ``d=2023-06-01/u=*``. It is held against the path as it stands in the keys and with its values
decoded, level by level, so that both ``c=S_c3_a3o`` and ``c=São`` are found. One with fewer levels than the path means
everything below. In a part, ``*`` is any text, ``?`` any character, ``[ab]`` and ``[!ab]`` one of these and none of
these; ``*`` never reaches beyond its level. Whoever names partitions in order to remove them must not be understood
half: a glob that finds nothing is an error, and so is one that finds everything, unless that was asked for.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from os.path import commonprefix
from typing import Final, Self

from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.transforms import VALUE_SHAPES, read_time_span
from icedb_log.texts import is_text

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_EMPTY: Final = "_"
_ESCAPED_UNDERSCORE: Final = "_5f"
_TO_ESCAPE: Final = re.compile(r"_(?=[0-9a-f]{2})|[^A-Za-z0-9._-]")
_ESCAPES: Final = re.compile(rb"_([0-9a-f]{2})")

MAX_FILTERS: Final = 64
MAX_VALUES_PER_FILTER: Final = 10_000
MAX_VALUE_BYTES: Final = 1024
MAX_GLOBS: Final = 1000
MAX_GLOB_BYTES: Final = 4096

_TEXT: Final = re.compile(r"\s*(?P<field>[A-Za-z0-9_]{1,64})\s*(?P<op>>=|<=|=|>|<|~)(?P<value>.*)", re.DOTALL)
_NULL_TEXT: Final = re.compile(r"\s*(?P<field>[A-Za-z0-9_]{1,64})\s+is\s+(?P<negated>not\s+)?null\s*", re.IGNORECASE)
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_FORMS: Final = (
    "write field=value, field>=value, field>value, field<=value, field<value, field~glob or 'field is [not] null'"
)

_WILDCARD: Final = re.compile(r"[*?\[]")
_NEAREST: Final = 3


def encode_partition_value(value: str) -> str:
    """Return the form of a partition value that a key may hold. Injective; never empty.

    Args:
        value: Any text that has a UTF-8 form (no lone surrogates).
    """
    if value in ("", "_"):
        return _ESCAPED_UNDERSCORE if value else _EMPTY
    encoded = _TO_ESCAPE.sub(_escape, value)
    return _ESCAPED_UNDERSCORE + encoded[1:] if encoded == HIVE_NULL else encoded


def decode_partition_value(encoded: str) -> str:
    """Return the value behind an encoded form.

    A form that :func:`encode_partition_value` does not produce (a table written by another v3 writer) stands for
    itself, so that every key can be read.
    """
    if encoded == _EMPTY:
        return ""
    try:
        value = _ESCAPES.sub(lambda match: bytes.fromhex(match[1].decode()), encoded.encode()).decode()
    except UnicodeDecodeError:
        return encoded
    return value if encode_partition_value(value) == encoded else encoded


def parse_partition_path(path: str) -> tuple[tuple[str, str], ...]:
    """Split a Hive partition path such as ``d=2023-06-07/u=a`` into names and decoded values; empty for ``""``.

    Raises:
        InvalidRequest: A component is not ``name=value``; the message names path and component.
    """
    values = []
    for component, name, encoded in _split(path):
        if not name:
            raise InvalidRequest(
                f"partition path {path[:120]!r}: {component[:80]!r} is not name=value; "
                "data files must lie in Hive partitions"
            )
        values.append((name, decode_partition_value(encoded)))
    return tuple(values)


def read_partition_values(path: str) -> dict[str, str | None]:
    """Return the decoded values of a Hive partition path by field name, ``None`` for null; empty for ``""``.

    Components that are not ``name=value`` (other writers of the log format) are left out: what a path does not
    say, no filter holds against it.
    """
    return {
        name: None if encoded == HIVE_NULL else decode_partition_value(encoded)
        for _, name, encoded in _split(path)
        if name
    }


def decode_partition(path: str) -> str:
    """Return a partition path for people: its values decoded. Not to be parsed."""
    return "/".join(
        f"{name}={decode_partition_value(encoded)}" if name else part for part, name, encoded in _split(path)
    )


def _split(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each component with the name and the encoded value in it; no name: it is not ``name=value``."""
    for component in path.split("/") if path else ():
        name, separator, encoded = component.partition("=")
        yield component, name if separator else "", encoded


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_{byte:02x}" for byte in match[0].encode())


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """One condition on one partition field. All parts that are set must hold.

    Attributes:
        field: Name of a partition field.
        any_of: The value is one of these.
        is_null: The value is (True) or is not (False) null.
        at_least: Inclusive lower bound. A null value lies in no range.
        above: Exclusive lower bound.
        at_most: Inclusive upper bound.
        below: Exclusive upper bound.
        glob: The value's text matches this pattern, case and all: ``*`` any characters, ``?`` one, ``[a-z]`` one of
            these, ``[!a-z]`` one of the others. A null value matches nothing.
    """

    field: str
    any_of: frozenset[str] | None = None
    is_null: bool | None = None
    at_least: str | None = None
    above: str | None = None
    at_most: str | None = None
    below: str | None = None
    glob: str | None = None

    @classmethod
    def equals(cls, field: str, *values: str) -> Self:
        """Return the condition that the value is one of ``values``."""
        return cls(field, any_of=frozenset(values))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form, e.g. ``d=2026-01-31`` or ``d>=2026-01-01`` or ``d is null``.

        Raises:
            InvalidRequest: Not understood; the message names all forms.
        """
        null = _NULL_TEXT.fullmatch(text)
        if null is not None:
            return cls(null["field"], is_null=null["negated"] is None)
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidRequest(f"partition filter {text[:80]!r} is not understood: {_FORMS}")
        value = match["value"].strip()
        if match["op"] == "=":
            return cls.equals(match["field"], value)
        bound = {">=": "at_least", ">": "above", "<=": "at_most", "<": "below", "~": "glob"}[match["op"]]
        return cls(match["field"], **{bound: value})  # type: ignore[arg-type]  # only str fields are named above

    def bounds(self) -> tuple[str, ...]:
        """Return the range bounds that are set."""
        return tuple(b for b in (self.at_least, self.above, self.at_most, self.below) if b is not None)


def parse_partition_filters(texts: Iterable[str]) -> tuple[PartitionFilter, ...]:
    """Parse several text forms; several ``field=value`` of one field mean any of these values.

    Raises:
        InvalidRequest: One of them is not understood.
    """
    filters: list[PartitionFilter] = []
    values: dict[str, set[str]] = {}
    for text in texts:
        parsed = PartitionFilter.parse(text)
        if parsed.any_of is None:
            filters.append(parsed)
        else:
            values.setdefault(parsed.field, set()).update(parsed.any_of)
    return (*(PartitionFilter(field, any_of=frozenset(some)) for field, some in values.items()), *filters)


class PartitionMatcher:
    """Filters, checked against a table's partition spec and ready to use.

    Args:
        filters: All of them must hold; none keep everything.
        config: The table's configuration.

    Raises:
        InvalidRequest: A filter names no partition field, is empty, too large, or a value has the wrong form.
    """

    def __init__(self, filters: Iterable[PartitionFilter], config: TableConfig) -> None:
        self._filters = tuple(filters)
        if len(self._filters) > MAX_FILTERS:
            raise InvalidRequest(f"table {config.name}: {len(self._filters)} partition filters; at most {MAX_FILTERS}")
        fields = {field.name: field for field in config.partition}
        self._numeric: dict[str, bool] = {}
        self._globs: dict[str, re.Pattern[str]] = {}
        for condition in self._filters:
            field = fields.get(condition.field)
            if field is None:
                known = ", ".join(str(field) for field in config.partition) or "none: it is not partitioned"
                raise InvalidRequest(
                    f"table {config.name}: no partition field {condition.field[:80]!r}; "
                    f"its partition fields are {known}"
                )
            self._numeric[field.name] = _is_numeric(field, config)
            self._check(condition, field, config)

    @property
    def keeps_all(self) -> bool:
        """Whether there is no condition."""
        return not self._filters

    def matches(self, values: Mapping[str, str | None]) -> bool:
        """Say whether a partition meets every condition.

        Args:
            values: Decoded value (``None``: null) of each partition field. One that is missing is unknown, and
                what is unknown is kept: an answer never lacks rows silently.
        """
        return all(
            condition.field not in values or self._holds(condition, values[condition.field])
            for condition in self._filters
        )

    def _holds(self, condition: PartitionFilter, value: str | None) -> bool:
        if condition.is_null is not None and condition.is_null != (value is None):
            return False
        if value is None:
            return condition.any_of is None and condition.glob is None and not condition.bounds()
        if condition.glob is not None and not self._globs[condition.glob].match(value):
            return False
        if condition.any_of is not None and value not in condition.any_of:
            return False
        if not condition.bounds():
            return True
        key = self._order(condition.field, value)
        return not (
            (condition.at_least is not None and key < self._order(condition.field, condition.at_least))
            or (condition.above is not None and key <= self._order(condition.field, condition.above))
            or (condition.at_most is not None and key > self._order(condition.field, condition.at_most))
            or (condition.below is not None and key >= self._order(condition.field, condition.below))
        )

    def _order(self, field: str, value: str) -> tuple[int, str]:
        if self._numeric[field] and _INTEGER.fullmatch(value):
            return (int(value), "")
        return (0, value)

    def _check(self, condition: PartitionFilter, field: PartitionField, config: TableConfig) -> None:
        values = (*(condition.any_of or ()), *condition.bounds())
        if condition.glob is not None:
            self._globs[condition.glob] = _compile_glob(condition.glob, field, config)
        if not values and condition.is_null is None and condition.glob is None:
            raise InvalidRequest(f"table {config.name}: the filter on partition field {field.name} has no condition")
        if len(values) > MAX_VALUES_PER_FILTER:
            raise InvalidRequest(
                f"table {config.name}: {len(values)} values for partition field {field.name}; "
                f"at most {MAX_VALUES_PER_FILTER}: use a range"
            )
        shape, example = VALUE_SHAPES.get(
            field.transform, (_INTEGER if self._numeric[field.name] else None, "a whole number")
        )
        if field.transform == "year":
            shape = _INTEGER  # a year may be any number: ranges compare it as one
        is_time = field.transform in TIME_TRANSFORMS and field.transform != "year"
        for value in values:
            what = f"table {config.name}: partition field {field}: value {value[:80]!r}"
            if not is_text(value):
                raise InvalidRequest(f"{what} has half a character (a lone surrogate): give text in UTF-8")
            if len(value.encode()) > MAX_VALUE_BYTES:
                raise InvalidRequest(f"{what} is longer than {MAX_VALUE_BYTES} bytes")
            is_off = shape is not None and not shape.fullmatch(value)
            if is_off or (is_time and read_time_span(field.transform, value) is None):
                raise InvalidRequest(f"{what} is not {example}")


def _compile_glob(glob: str, field: PartitionField, config: TableConfig) -> re.Pattern[str]:
    if not glob or len(glob.encode(errors="replace")) > MAX_VALUE_BYTES:
        raise InvalidRequest(
            f"table {config.name}: partition field {field}: a glob has 1 to {MAX_VALUE_BYTES} bytes, e.g. 2026-01-*"
        )
    return re.compile(translate(glob))


def _is_numeric(field: PartitionField, config: TableConfig) -> bool:
    if field.transform in ("bucket", "year"):
        return True
    return field.transform in ("identity", "truncate") and config.declared.get(field.column) == "BIGINT"


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
            level.match(component) or level.match(decode_partition(component))
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
            "--force if that is what you want"
        )
    return frozenset(selected)


def _describe_nearest(glob: PartitionGlob, partitions: Iterable[str]) -> str:
    literal = _WILDCARD.split(glob.text, maxsplit=1)[0]
    paths = [decode_partition(path) for path in partitions]
    # Of characters, not of components: what was misspelt begins like the right one.
    near = sorted(paths, key=lambda path: (-len(commonprefix([path, literal])), path))[:_NEAREST]  # noqa: RUF071
    return f"the nearest are {', '.join(near)}" if near else "the table has no live data files"
