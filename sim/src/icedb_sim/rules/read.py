"""How the rules of reading are switched off: the log as it is read and folded, and what a snapshot service answers."""

from dataclasses import replace
from typing import Any, Final

from icedb_log.errors import CorruptLog
from icedb_log.keys import parse_log_key
from icedb_log.model import LogFile
from icedb_log.serving.batch_commits import look_for_batch

from icedb_sim.rules.mutations import answers, around, breaks, instead, keeps, seen_with

_READER: Final = "log.reader:ConsistentReader."
_CACHE: Final = "serving.table_cache:"


def _skip_malformed(original: Any, key: str, body: bytes, **kwargs: Any) -> LogFile:
    try:
        return original(key, body, **kwargs)  # type: ignore[no-any-return]
    except CorruptLog:
        return LogFile(time_ms=parse_log_key(key).time_ms, is_seal=True)


READ_RULES: Final = (
    breaks(
        "S3",
        "a log file that cannot be understood is skipped",
        around("log.codec:decode_log_file", _skip_malformed),
        by="test_reader.py::test_s3_a_malformed_log_file_is_never_skipped",
    ),
    breaks(
        "R1",
        "no second look after a listing of many pages",
        instead(_READER + "_look_again", lambda reader, listing: listing),
        profile="sleepypages",
    ),
    breaks(
        "R1",
        "a dead log file behind the listing is overlooked",
        answers("log.reader:LogReader._misses_a_dead_log_file", False),
        profile="sleepypages",
    ),
    breaks(
        "R1",
        "log files are read without If-Match",
        instead("log.reader:LogReader._fetch_body", lambda reader, info: reader._store.get(info.key).body),
        profile="sleepyfetchers",
        by="test_reader.py::test_r1_a_log_file_that_is_replaced_between_list_and_get_starts_the_read_again",
    ),
    breaks(
        "R1",
        "the cache is kept by key alone",
        instead("log.reader:_is_current", lambda file, info: file is not None),
    ),
    breaks("R2", "a slow refresh is taken", answers(_READER + "_takes_too_long", False)),
    breaks("R3", "no time is refused", answers("log.fold:_require_readable", None)),
    breaks(
        "R3",
        "the horizon ignores log files that are gone without a strip",
        answers("log.fold:_vanished_ms", []),
        profile="losses",
        by="test_fold.py::test_r3_between_delete_and_strip_the_horizon_follows_from_what_vanished",
    ),
    breaks(
        "S2",
        "a log file that says nothing of its values proves that they are exact",
        instead("log.fold:_is_all_exact", lambda log: not log.inexact),
        by="test_exact_values.py::test_s2_where_another_writer_said_nothing_data_files_are_looked_at",
    ),
    breaks(
        "S2",
        "a log file that says nothing of its values proves that footers of a DOUBLE can be believed",
        around(
            "log.widening:columns_to_prove",
            lambda columns, schema: {name for name in columns(schema) if schema[name] != "DOUBLE"},
        ),
        by="test_exact_values.py::"
        "test_s2_readers_hear_of_a_double_of_which_nobody_said_anything_until_a_merge_has_written_it_anew",
    ),
    breaks(
        "S2",
        "a reader believes the footers of each DOUBLE",
        around(
            "log.fold:Snapshot.narrow_types",
            lambda narrow, snapshot: {name: kind for name, kind in narrow(snapshot).items() if kind != "FLOAT"},
        ),
        by="tests/integration/reads/test_edge_numbers.py::test_s2_no_history_makes_a_condition_find_other_rows",
    ),
)


# What a snapshot service answers


def _call_it_new(original: Any, cached: Any) -> Any:
    return replace(original(cached), started_ms=cached._clock.monotonic_ms())


def _gone_but_deleted(state: Any, current: Any) -> Any:
    return [file for key, file in state._files.items() if key in current and current[key].etag != file.etag]


def _read_and_look(table: Any, batch_id: str, read: Any) -> Any:
    state = read()
    return look_for_batch(table, batch_id), state


SERVING_RULES: Final = seen_with(
    "servers:2",
    breaks(
        "R4",
        "who comes during a read gets its answer",
        instead(_CACHE + "CachedTable._next_read", lambda cached: (cached._ended or (0,))[0] + 1),
    ),
    breaks("R4", "a state is as old as the end of its read", around(_CACHE + "CachedTable._read_now", _call_it_new)),
    breaks(
        "R4",
        "a state that is too old is served",
        instead(_CACHE + "_is_fresh", lambda state, arrived_ms, max_staleness_ms: max_staleness_ms > 0),
    ),
    breaks(
        "S1",
        "a log file that went is taken for one that is still there",
        instead("log.state:LogState._gone", _gone_but_deleted),
    ),
    breaks(
        "S1",
        "a new file is live although a tombstone of it is there",
        instead("log.live_files:is_live", lambda live_count, dead_count: live_count > 0),
    ),
    keeps("R3", "folds of the past outlive their log files", answers(_CACHE + "_versions", frozenset())),
    breaks(
        "R5",
        "a batch is looked for after the log was read",
        instead("serving.batch_commits:_look_and_read", _read_and_look),
    ),
    breaks(
        "R5",
        "any batch that is not staged counts as committed",
        answers("serving.batch_commits:refuse_if_lost", None),
    ),
    breaks(
        "R6",
        "changes leave out what is in a chunk that looks the same",
        instead("log.live_files:LiveChunk.is_same", lambda chunk, other: chunk.first == other.first),
    ),
)
