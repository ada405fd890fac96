"""Bytes of log files: what is decoded says the same when it is encoded again, and the rest is CorruptLog (S3)."""

import json
import math

from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.log.codec import decode_log_file, decode_log_head, encode_log_file
from icedb_log.repair.fsck_log import find_wire_problems
from icedb_sim.tables.profiles import fuzz_examples
from icedb_sim.tables.strategies import log_files

PATHS = TablePaths("t", "wh/t")
TIME_MS = 1_700_000_000_000
KEY = PATHS.log_key(time_ms=TIME_MS, commit_id="0c", is_merged=True)
DATA = "wh/t/_data/d=2026-01-01/u=a.b"
PLAIN = [
    {"v": 1, "t": TIME_MS, "sch": 1, "tmb": 2, "f": 3, "cid": "0c", "ids": ["x"], "rej": ["y"], "h": 4, "w": {"id": ["DOUBLE", 5]}},
    {"id": "BIGINT", "ts": "TIMESTAMP"},
    {"p": "wh/t/_log/1699999999999_00.jsonl", "t": TIME_MS, "l": 5},
    {"p": f"{DATA}/f1.parquet", "b": 10, "t": 1, "n": 3, "s": {"id": [1, 2, 0]}},
    {"p": f"{DATA}/f2.parquet", "b": 20, "t": 2, "tmb": 5, "l": 6, "later": {"x": [1.5, None]}},
]  # fmt: skip
FED = [
    {
        "v": 1,
        "t": TIME_MS,
        "sch": 1,
        "f": 2,
        "fed": {"seq": 3, "log": ["1_00"], "bf": [2, 4], "rej": {"2_00": "no"}},
        "req": {"0190b0f5-0000-7000-8000-000000000000": {"of": "ab", "log": "1_m_cd", "rows_read": 7}},
    },
    {"c": "DATE"},
]
SEAL = [{"v": 1, "t": TIME_MS, "sch": 1, "f": 2, "cid": "0c", "seal": True}, {}]

NAMES = ["v", "t", "sch", "f", "tmb", "cid", "ids", "rej", "h", "w", "fed", "req", "chg", "seal", "p", "b", "n", "s", "l", "T", "tMb", "K", "\u017fch", "", "later", "id"]  # fmt: skip
DEPTHS = st.sampled_from([3, 200, 253, 254, 260, 500, 900, 1000, 1020, 1030, 5000])
VALUES = st.one_of(
    st.sampled_from([
        b"0", b"1", b"2", b"3", b"-1", b"-0", b"1.0", b"1e0", b"1e308", b"1e400", b"1E-400", b"01", b"+1", b"1_0",
        b"9223372036854775807", b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"1" * 5000,
        b"null", b"true", b"false", b"NaN", b"Infinity", b"[]", b"{}", b'""', b'"1"', b'"\\ud800"', b'"\\ud83d\\ude00"',
        b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b"[1,2,0]", b'["a","a",0]', b'["a","b",-1]', b"[null,null,0]",
        b'{"id":[1,2,0]}', b'{"id":[[],2,0]}', b'{"id":"DOUBLE"}', b'{"ts":"DATE"}', b'{"seq":1,"log":[]}', b'"BIGINT"', b'{"is":1}',
        b'{"seq":1,"log":["x"],"rej":{"x":"y"}}', b'{"a":1,"a":2}', b'["x"]', b"[1]", b'"x"',
        b'{"seq":1,"log":["x"],"bf":[0,2]}', b'{"0190b0f5-0000-7000-8000-000000000000":{"of":"a","log":"b","n":1}}',
    ]),
    st.builds(lambda depth: b"[" * depth + b"]" * depth, DEPTHS),
    st.builds(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth, DEPTHS),
)  # fmt: skip


def encode_lines(lines):
    return b"\n".join(json.dumps(line).encode() for line in lines)


BODIES = st.one_of(
    st.sampled_from([encode_lines(lines) for lines in (PLAIN, FED, SEAL)]), log_files().map(encode_log_file)
)


@st.composite
def field_edits(draw):
    """A field of a line, set to a value as it stands, or written a second time."""
    return draw(st.integers(0, 8)), draw(st.sampled_from(NAMES)), draw(VALUES), draw(st.booleans())


def edit_field(body, edit):
    number, name, value, is_added = edit
    lines = body.split(b"\n")
    at = number % len(lines)
    try:
        fields = json.loads(lines[at])
    except (ValueError, RecursionError):
        return body
    if not isinstance(fields, dict):
        return body
    if not is_added:
        fields.pop(name, None)
    inner = json.dumps(fields).encode()[1:-1]
    lines[at] = b"{" + inner + (b"," if inner else b"") + json.dumps(name).encode() + b":" + value + b"}"
    return b"\n".join(lines)


def edit_lines(body, edit):
    kind, first, second = edit
    lines = body.split(b"\n")
    first, second = first % len(lines), second % len(lines)
    if kind == "swap":
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == "copy":
        lines.insert(second, lines[first])
    else:
        del lines[first]
    return b"\n".join(lines)


def edit_bytes(body, edit):
    position, inserted, removed = edit
    at = position % (len(body) + 1)
    return body[:at] + inserted + body[at + removed :]


EDITS = st.one_of(
    st.tuples(st.just(edit_field), field_edits()),
    st.tuples(st.just(edit_lines), st.tuples(st.sampled_from(["swap", "copy", "cut"]), st.integers(0, 9), st.integers(0, 9))),
    st.tuples(st.just(edit_bytes), st.tuples(st.integers(0, 10**6), st.binary(max_size=3), st.integers(0, 4))),
)  # fmt: skip


def apply_edits(body, edits):
    for edit, arguments in edits:
        body = edit(body, arguments)
    return body


MUTATED = st.builds(apply_edits, BODIES, st.lists(EDITS, min_size=1, max_size=3))


def decode(body, **options):
    """Return the log file; ``None`` if it is refused, as it has to be: with key and line."""
    try:
        return decode_log_file(KEY, body, **options)
    except CorruptLog as error:
        assert str(error).startswith(f"{KEY}: line "), error
    except UnsupportedFormat as error:
        assert "log format version" in str(error)
    return None


def number(text):
    """Integers of 64 bits as they are; others, as JSON allows, as the double that is nearest."""
    value = int(text) if len(text) < 40 else float(text)
    return value if -(2**63) <= value < 2**64 else float(value)


def what_it_says(body):
    """Return the meaning of a log file, read with Python's own JSON and without the library."""
    lines = [json.loads(line, parse_int=number) for line in body.split(b"\n")]
    lines[0]["v"] = int(lines[0]["v"])
    for at, line in enumerate(lines):
        for name in ("cid", "h", "w", "fed", "req") if at == 0 else ("n", "s", "l") if at >= lines[0]["f"] else ("l",):
            if at != 1 and line.get(name, "") is None:
                del line[name]
        for name in ("ids", "rej", "w", "req") if at == 0 else ("s",):
            if at != 1 and line.get(name, "") in ([], {}):
                del line[name]
    if lines[0].get("seal") is False:
        del lines[0]["seal"]
    if "fed" in lines[0]:  # what a later version may say in it is not carried
        fed = lines[0]["fed"]
        lines[0]["fed"] = {"seq": fed["seq"], "log": fed.get("log", []), "rej": fed.get("rej", {})}
        lines[0]["fed"] |= {"bf": fed["bf"]} if fed.get("bf") else {}
    return lines


def check(body):
    log = decode(body)
    head = None
    try:
        head = decode_log_head(KEY, body)
    except (CorruptLog, UnsupportedFormat):
        assert log is None, "a log file has no head"
    compact = decode(body, is_compact=True)
    assert (log is None) == (compact is None)
    if log is None:
        event("refused")
        return None
    event("decoded")
    assert tuple(compact.markers) == tuple(log.markers)
    assert (head.time_ms, head.schema, head.commit_id, head.batch_ids, head.refused_ids, head.widened, head.feed) == (
        log.time_ms, log.schema, log.commit_id, log.batch_ids, log.refused_ids, log.widened, log.feed,
    )  # fmt: skip
    again = encode_log_file(log)
    assert decode_log_file(KEY, again) == log
    assert what_it_says(again) == what_it_says(body)
    return log


@fuzz_examples(150)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\n")
@example(b"[]\n[]")
def test_any_bytes_are_refused_with_key_and_line(body):
    check(body)


@fuzz_examples(200)
@given(MUTATED)
@example(encode_lines(PLAIN))
@example(encode_lines(FED))
@example(encode_lines(SEAL))
@example(edit_field(encode_lines(PLAIN), (4, "later", b"[" * 300 + b"]" * 300, False)))
@example(edit_field(encode_lines(PLAIN), (3, "p", b"[" * 1010 + b"]" * 1010, False)))
def test_what_is_decoded_says_the_same_when_it_is_encoded_again(body):
    check(body)


OURS = ("cid", "ids", "rej", "seal", "fed", "req", "w", "h", "n", "l", "s", "statistics")
"""What the strict reader does not look at."""


@fuzz_examples(300)
@given(st.builds(apply_edits, st.just(encode_lines(PLAIN)), st.lists(EDITS, min_size=1, max_size=3)))
def test_both_readers_agree(strict_reader, body):
    log = decode(body)
    problems = find_wire_problems(PATHS, KEY, body)
    try:
        table = strict_reader.read_strict(PATHS.prefix, [(KEY, body)])
    except (strict_reader.WireError, RecursionError):
        assert problems or log is None, "fsck does not find what other readers refuse"
        return
    if log is None:
        try:
            decode_log_file(KEY, body)
        except (CorruptLog, UnsupportedFormat) as error:
            reason = str(error).removeprefix(f"{KEY}: line ")
        assert any(f" {each}" in reason for each in (*OURS, "deep", "nested", "not JSON", "overwrites")), reason
        return
    # Stricter than that reader: two fields of a name that it does not know, and what it would not read itself.
    assert all(any(word in each.message for word in ("nested", "JSON", "twice")) for each in problems), problems
    dead = {marker.path for marker in log.markers if not marker.is_live}
    last = {marker.path: marker for marker in log.markers}
    assume(all((path in dead) == (not marker.is_live) for path, marker in last.items()))  # S1 and the last marker
    assert table.live == {path for path in last if path not in dead}
    assert table.schema == dict(log.schema)
    counts = [last[path].row_count for path in table.live]
    assert table.row_count == (None if None in counts else sum(counts))
    assert not math.isnan(table.row_count or 0)
