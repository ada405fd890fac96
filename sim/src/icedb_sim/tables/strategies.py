"""Hypothesis strategies for values of the log: everything that the model allows, and the wire can carry.

A field of the model that has no strategy here is an error (:func:`_build`): tests would be green without it.
"""

from dataclasses import fields, replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from icedb_log.log.codec import KNOWN_KEYS, WIRE_NAMES
from icedb_log.model import EMPTY, FeedState, FileMarker, LogFile, LogTombstone, Widening
from icedb_log.table.table_config import SQL_TYPES, WIDENINGS

MAX_TIME_MS = 9_999_999_999_999
REQUEST_IDS = ("01889a1b-3f75-7000-8000-00000000000a", "01889a1b-3f75-7000-8000-00000000000b")
_Model = TypeVar("_Model", FileMarker, LogFile, LogTombstone)


def _build(model: type[_Model], **strategies: SearchStrategy[Any]) -> SearchStrategy[_Model]:
    """Return values of a model, of which each field that counts has a strategy."""
    missing = {each.name for each in fields(model) if each.compare} - strategies.keys()
    if missing:
        raise TypeError(f"{model.__name__}: {', '.join(sorted(missing))}: give it a strategy in {__name__}")
    return st.builds(model, **strategies)


def texts(*, min_size: int = 0) -> SearchStrategy[str]:
    """Texts with a UTF-8 form, also with newlines, quotes and control characters."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size, max_size=12)


def json_values() -> SearchStrategy[object]:
    """JSON values that survive a round trip: no infinities, integers of 64 bits."""
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        texts(),
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3), max_leaves=5
    )


def extras() -> SearchStrategy[dict[str, object]]:
    """Fields of a later version: any name but those that are taken."""
    names = texts(min_size=1).filter(lambda name: name.casefold() not in WIRE_NAMES and name not in KNOWN_KEYS)
    return st.dictionaries(names, json_values(), max_size=2)


def times_ms(*, min_value: int = 0) -> SearchStrategy[int]:
    """Unix milliseconds of at most 13 digits."""
    return st.integers(min_value, MAX_TIME_MS)


def schemas() -> SearchStrategy[dict[str, str]]:
    """Schema lines."""
    return st.dictionaries(texts(min_size=1), st.sampled_from(SQL_TYPES), max_size=4)


def file_markers() -> SearchStrategy[FileMarker]:
    """Markers of data files, live and dead."""
    scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), texts())
    stats = st.tuples(scalars, scalars, st.integers(0, 2**40))
    return _build(
        FileMarker,
        path=texts(min_size=1),
        size_bytes=st.integers(0, 2**50),
        created_ms=times_ms(),
        promoted_count=st.sampled_from([0, 0, 1, 256]),
        tombstoned_ms=st.none() | times_ms(min_value=1),
        row_count=st.none() | st.integers(0, 2**40),
        stats=st.dictionaries(texts(), stats, max_size=2),
        landed_ms=st.none() | times_ms(),
        extra=extras(),
    )


def log_tombstones() -> SearchStrategy[LogTombstone]:
    """Log tombstones."""
    return _build(
        LogTombstone,
        path=texts(min_size=1),
        tombstoned_ms=times_ms(),
        landed_ms=st.none() | times_ms(),
        extra=extras(),
    )


def log_files() -> SearchStrategy[LogFile]:
    """Contents of log files of any kind."""
    logs = _build(
        LogFile,
        time_ms=times_ms(),
        schema=schemas(),
        promoted_count=st.integers(0, 256),
        markers=st.lists(file_markers(), max_size=4).map(tuple),
        log_tombstones=st.lists(log_tombstones(), max_size=3).map(tuple),
        commit_id=st.none() | texts(min_size=1),
        batch_ids=st.lists(texts(), max_size=3).map(tuple),
        refused_ids=st.lists(texts(), max_size=3).map(tuple),
        horizon_ms=st.none() | times_ms(),
        is_seal=st.booleans(),
        feed=st.none() | _feeds(),
        inexact=st.none() | st.dictionaries(texts(), st.booleans(), max_size=2),
        change=st.none() | texts(min_size=1),
        rebuilt=st.none() | texts(min_size=1),
        requests=st.dictionaries(st.sampled_from(REQUEST_IDS), _outcomes()),
        widened=st.just(EMPTY),  # by the columns that are there
        contents=st.just(EMPTY),  # by the batches
        extra=extras(),
    )
    return st.builds(_fill, logs, st.integers(0, 15))


def _feeds() -> SearchStrategy[FeedState]:
    places = st.lists(st.integers(0, 2**40), max_size=3).map(tuple)
    names = st.lists(texts(), max_size=2).map(tuple)
    return st.builds(
        FeedState,
        st.integers(1, 2**40),
        names,
        refused=st.dictionaries(texts(), texts(), max_size=2),
        backfilled=places,
    )


def _outcomes() -> SearchStrategy[dict[str, object]]:
    figures = st.dictionaries(texts(), st.integers(0, 2**40) | texts(), max_size=2)
    return st.builds(lambda more, of, log: {**more, "of": of, "log": log}, figures, texts(), texts())


def _fill(log: LogFile, chosen: int) -> LogFile:
    """Return a log file in which some columns that can are widened, and some contents known: one bit for each."""
    wider = [(column, wide) for column, narrow in log.schema.items() for old, wide in WIDENINGS if old == narrow]
    widened = {column: Widening(wide, chosen) for bit, (column, wide) in enumerate(wider) if chosen >> bit & 1}
    contents = {batch_id: "0f" * 16 for bit, batch_id in enumerate(log.batch_ids) if chosen >> bit & 1}
    return replace(log, widened=widened, contents=contents)
