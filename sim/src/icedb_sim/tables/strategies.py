"""Hypothesis strategies for values of the log: everything that the model allows, and the wire can carry."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from icedb_log.log.codec import WIRE_NAMES
from icedb_log.model import FileMarker, LogFile, LogTombstone, Widening
from icedb_log.table.table_config import SQL_TYPES, WIDENINGS

MAX_TIME_MS = 9_999_999_999_999
_OURS = frozenset({"cid", "ids", "h", "seal", "w", "rej", "n", "s", "l"})


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
    names = texts(min_size=1).filter(lambda name: name.casefold() not in WIRE_NAMES and name not in _OURS)
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
    return st.builds(
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
    return st.builds(
        LogTombstone,
        path=texts(min_size=1),
        tombstoned_ms=times_ms(),
        landed_ms=st.none() | times_ms(),
        extra=extras(),
    )


def log_files() -> SearchStrategy[LogFile]:
    """Contents of log files of any kind."""
    logs = st.builds(
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
        extra=extras(),
    )
    return st.builds(_widen, logs, st.integers(0, 15))


def _widen(log: LogFile, chosen: int) -> LogFile:
    """Return a log file in which some of the columns that can are widened: one bit for each."""
    wider = [(column, wide) for column, narrow in log.schema.items() for old, wide in WIDENINGS if old == narrow]
    widened = {column: Widening(wide, chosen) for bit, (column, wide) in enumerate(wider) if chosen >> bit & 1}
    return replace(log, widened=widened)
