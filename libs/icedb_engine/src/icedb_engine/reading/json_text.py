"""Columns of JSON text, cut from lines that are objects: one value for each line and key."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.json_text import GIVEN_UP, compact, cut_object

_NULL: Final = b"null"
_UNNAMED: Final = re.compile(r'["\\\x00-\x1f]')
_NESTED: Final = (b"{", b"[")
_MAY_CHANGE: Final = r"[ \t\r\n\\]"
"""What text of objects and arrays has in it if it is not compact; their strings may have it, too."""
_SPARSE: Final = 2
"""Where the first line has fewer than one of so many keys, values are gone through line by line, not key by key."""


def cut_objects(lines: pa.StringArray, keys: Collection[str]) -> list[pa.StringArray]:
    """Return the text of some keys' values in JSON objects that the engine takes.

    Args:
        lines: An object each; none has a key twice.
        keys: Any number of them.

    Returns:
        For each key a column: null where the value is null, or not there.
    """
    if len(lines) and keys and len(keys) <= _SPARSE * len(cut_object(lines[0].as_py())):
        few = cut_few(b"\n".join(lines.cast(pa.binary()).to_pylist()), tuple(keys))
        if few is not None:
            return few
    found: dict[str, tuple[list[int], list[bytes]]] = {key: ([], []) for key in keys}
    for row, line in enumerate(lines.to_pylist()):
        for key, value in cut_object(line):
            text = bytes(value)
            if text != _NULL and key in found:
                rows, texts = found[key]
                rows.append(row)
                texts.append(compact(text) if text.startswith(_NESTED) else text)
    return [_spread(rows, texts, len(lines)) for rows, texts in found.values()]


def cut_few(lines: bytes | memoryview, keys: tuple[str, ...]) -> list[pa.StringArray] | None:
    """Do as :func:`cut_objects` for a few keys of lines in one text, passing over the others; None if it gives up."""
    if any(map(_UNNAMED.search, keys)):  # the decoder looks for names as they stand in the text
        return None
    names, decoder = _make_decoder(keys)
    try:
        events = decoder.decode_lines(lines)
    except GIVEN_UP:
        return None
    return [_read_column([getattr(event, name) for event in events]) for name in names]


@lru_cache(maxsize=64)
def _make_decoder(keys: tuple[str, ...]) -> tuple[list[str], Any]:
    names = [f"f{place}" for place in range(len(keys))]
    fields = [(name, msgspec.Raw, msgspec.UNSET) for name in names]
    event = msgspec.defstruct("Event", fields, rename=dict(zip(names, keys, strict=True)), gc=False)
    return names, msgspec.json.Decoder(event)


def _read_column(values: list[Any]) -> pa.StringArray:
    """Return the texts of one key's values, for the whole column at once: that is faster than value by value."""
    texts = [None if value is msgspec.UNSET else bytes(value) for value in values]
    column = _to_strings(texts)
    if any(pc.any(pc.starts_with(column, bracket)).as_py() for bracket in _NESTED):
        for row in pc.indices_nonzero(pc.match_substring_regex(column, _MAY_CHANGE)).to_pylist():
            texts[row] = compact(texts[row] or b"")
        column = _to_strings(texts)
    return pc.if_else(pc.equal(column, _NULL), None, column)


def _spread(rows: list[int], texts: list[bytes], count: int) -> pa.StringArray:
    """Return texts as a column of so many rows, in the rows that are named."""
    if len(rows) == count:
        return _to_strings(texts)
    places: list[int | None] = [None] * count
    for place, row in enumerate(rows):
        places[row] = place
    return _to_strings(texts).take(pa.array(places, pa.int32()))


def _to_strings(texts: list[bytes] | list[bytes | None]) -> pa.StringArray:
    return pa.array(texts, pa.binary()).cast(pa.string())
