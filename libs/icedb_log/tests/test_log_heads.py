"""Heads of log files: the same ids and the same schema as the whole log, for one small read of each."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog, HaltError, SchemaConflict, Unavailable
from icedb_log.log import reader as reader_module
from icedb_log.log.codec import decode_log_file, decode_log_head, encode_log_file
from icedb_log.log.fold import union_schema
from icedb_log.log.reader import HEAD_BYTES
from icedb_log.model import LogFile, LogHead
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.log_views import PATHS, listed, live, log_key
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.strategies import log_files

IDS = tuple(f"01889a1b-3f75-7000-8000-{number:012x}" for number in range(1000))


def head_of(log):
    return LogHead(**{field.name: getattr(log, field.name) for field in fields(LogHead)})


def put_log(table, time_ms, *markers, **fields):
    log = LogFile(time_ms, fields.pop("schema", {"a": "BIGINT"}), markers, commit_id="00", **fields)
    body = encode_log_file(log)
    table.store.inner.put(log_key(time_ms), body)
    return body


def many(count):
    return [live(f"{number:032x}") for number in range(count)]


@settings(max_examples=50)
@given(log_files(), st.integers(0, 400))
def test_a_head_says_what_the_whole_log_file_says(log, more):
    body = encode_log_file(log)
    assert decode_log_head("k", body) == head_of(log)
    ends = [at for at, byte in enumerate(body) if byte == ord("\n")]
    assert decode_log_head("k", body[: ends[1] + 1 + more] if len(ends) > 1 else body) == head_of(log)


@settings(max_examples=50)
@given(
    log_files().map(encode_log_file),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_whatever_the_whole_reader_takes_the_head_reader_takes_alike(body, edits):
    for position, inserted, removed in edits:
        at = position % (len(body) + 1)
        body = body[:at] + inserted + body[at + removed :]
    try:
        log = decode_log_file("k", body)
    except HaltError:
        try:
            decode_log_head("k", body)
        except HaltError as error:
            assert str(error).startswith("k: line ")
    else:
        assert decode_log_head("k", body) == head_of(log)


STEPS = {
    "append": lambda table, n: table.append(n),
    "widen": lambda table, n: (table.stage([{"id": n, "p": "b", "w": n / 2}]), table.flush()),
    "column": lambda table, n: (table.stage([{"id": n, "p": "b", f"c{n % 4}": n, "w": n}]), table.flush()),
    "refuse": lambda table, n: (table.stage([{"id": "x", "p": "b"}]), table.flush()),
    "merge": lambda table, n: table.merge(full=n % 2 == 0),
    "vacuum": lambda table, n: table.vacuum(),
    "time": lambda table, n: table.clock.advance(15_000),
}


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=25), st.sampled_from([40, 100, HEAD_BYTES]))
def test_heads_give_the_ids_and_the_schema_of_the_whole_log_whatever_happened(history, head_bytes):
    table = SmallTable(evolution="widen")
    reader = table.reader(page_size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "HEAD_BYTES", head_bytes)
        for number, step in enumerate(history):
            STEPS[step](table, number)
            view, heads = reader.read(), reader.heads.read()
            assert [(f.key, f.etag, f.size_bytes, f.modified_ms) for f in heads.files] == [
                (f.key, f.etag, f.size_bytes, f.modified_ms) for f in view.files
            ]
            assert [file.log for file in heads.files] == [head_of(file.log) for file in view.files]
            assert union_schema("t", heads.files) == union_schema("t", view.files)


def test_the_log_file_of_a_large_merge_costs_its_first_part(table):
    put_log(table, 5, *many(10_000), batch_ids=IDS)
    (file,) = table.reader().heads.read().files
    assert file.size_bytes > 5 * HEAD_BYTES
    assert file.log.batch_ids == IDS
    assert [(call.method, call.key) for call in table.store.calls if "/_log/0" in call.key] == [
        ("get_range", log_key(5))
    ]


def test_a_long_head_is_read_in_growing_parts(table):
    schema = {f"column_{number:05}": "VARCHAR" for number in range(20_000)}
    body = put_log(table, 5, *many(20), schema=schema, batch_ids=IDS)
    parts = []
    inner = table.store.inner.get_range
    table.store.inner.get_range = lambda key, *, start, length, if_match: (
        parts.append((start, length)),
        inner(key, start=start, length=length, if_match=if_match),
    )[1]
    (file,) = table.reader().heads.read().files
    assert (file.log.batch_ids, dict(file.log.schema)) == (IDS, schema)
    assert parts == [
        (0, HEAD_BYTES),
        (HEAD_BYTES, HEAD_BYTES),
        (2 * HEAD_BYTES, 2 * HEAD_BYTES),
        (4 * HEAD_BYTES, 4 * HEAD_BYTES),
    ]
    assert len(body) < 8 * HEAD_BYTES


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_log_file_of_just_the_size_of_a_part(table, extra):
    pad = HEAD_BYTES - len(put_log(table, 5, extra={"pad": ""})) + extra
    assert len(put_log(table, 5, extra={"pad": "x" * pad})) == HEAD_BYTES + extra
    (file,) = table.reader().heads.read().files
    assert dict(file.log.schema) == {"a": "BIGINT"}


def test_a_log_file_is_fetched_once(table):
    reader = table.reader()
    table.append(1)
    reader.heads.read()
    table.append(2)
    table.store.calls.clear()
    assert len(reader.heads.read().files) == 2
    assert len(table.store.keys_of("get_range")) == 1
    assert len(reader.heads.read().files) == 2
    assert len(table.store.keys_of("get_range")) == 1


def test_r1_a_log_file_that_changes_while_it_is_read_is_read_again(table):
    put_log(table, 5, batch_ids=("old",))
    table.store.script = [Fault("get_range", None, before=lambda: put_log(table, 5, batch_ids=("new",)))]
    (file,) = table.reader().heads.read().files
    assert file.log.batch_ids == ("new",)


def test_r1_pages_that_contradict_each_other_are_read_again(table):
    for number in (1, 2, 3):
        put_log(table, number)
    table.store.script = [
        Fault("list_page", None),
        Fault("list_page", None, before=lambda: table.store.inner.delete([log_key(1)])),
    ]
    assert [file.key for file in table.reader(page_size=1).heads.read().files] == [log_key(2), log_key(3)]


def test_r2_a_slow_refresh_is_thrown_away(table):
    put_log(table, 5)
    table.store.script = [Fault("get_range", None, before=lambda: table.clock.advance(10**7))] * 10
    with pytest.raises(Unavailable, match="longer than"):
        table.reader().heads.read()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "line 0"),
        (b'{"v":1,"t":5,"sch":1,"f":2}', "line 0: sch is 1"),
        (b'{"v":1,"t":5,"sch":1,"f":2}\n[]', "line 1"),
        (b'{"v":1,"t":5,"sch":1,"f":2,"rej":"x"}\n{}', "rej is not a list"),
        (b'{"v":1,"t":6,"sch":1,"f":2,"cid":"00"}\n{}', "its name says 5"),
        (b'{"v":2,"t":5,"sch":1,"f":2}\n{}', "upgrade"),
        (b"x" * 3 * HEAD_BYTES, "line 0"),
    ],
)
def test_s3_a_malformed_head_halts(table, body, words):
    table.store.inner.put(log_key(5), body)
    with pytest.raises(HaltError, match=words):
        table.reader().heads.read()


def test_s3_what_stands_behind_a_head_is_left_to_readers_of_the_whole(table):
    table.store.inner.put(log_key(5), b'{"v":1,"t":5,"sch":1,"f":2}\n{}\nnonsense')
    assert len(table.reader().heads.read().files) == 1
    with pytest.raises(CorruptLog, match="line 2"):
        table.reader().read()


def test_s2_two_types_of_a_column_conflict_in_heads_too():
    files = [listed(1, schema={"a": "BIGINT"}), listed(2, schema={"a": "DOUBLE"})]
    with pytest.raises(SchemaConflict, match=PATHS.log_prefix):
        union_schema("t", files)
