"""The codec: what is written comes back, unknown fields included, and whatever is malformed is named (S3)."""

import gc
import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog, HaltError, InvariantViolated, UnsupportedFormat
from icedb_log.log import codec
from icedb_log.log.codec import MARKER_KEYS, WIRE_NAMES, decode_log_file, encode_log_file
from icedb_log.log.markers import paused_gc
from icedb_log.model import FileMarker, LogFile, LogTombstone, Widening
from icedb_sim.tables.strategies import log_files

KEY = "wh/t/_log/0000000000007_00.jsonl"

GOOD = [
    {"v": 1, "t": 7, "sch": 1, "tmb": 2, "f": 4, "cid": "00", "ids": ["a"], "h": 3, "seal": False},
    {"c": "VARCHAR"},
    {"p": "wh/t/_log/0000000000001_00.jsonl", "t": 5, "l": 6},
    {"p": "wh/t/_log/0000000000002_00.jsonl", "t": 5},
    {"p": "wh/t/_data/a.parquet", "b": 1, "t": 1, "n": 2, "s": {"c": ["a", "b", 0]}},
    {"p": "wh/t/_data/b.parquet", "b": 1, "t": 1, "tmb": 5, "l": 6},
]


def encode_lines(lines):
    return b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)


def changed(number, **fields):
    """GOOD with fields of one line set, or removed where the value is ``...``."""
    lines = [dict(line) for line in GOOD]
    lines[number].update(fields)
    lines[number] = {name: value for name, value in lines[number].items() if value is not ...}
    return encode_lines(lines)


def replaced(number, line):
    return encode_lines([*GOOD[:number], line, *GOOD[number + 1 :]])


@given(log_files())
def test_what_is_encoded_is_decoded(log):
    assert decode_log_file(KEY, encode_log_file(log)) == log


@pytest.mark.parametrize("bounds", [(-0.0, 0.0), (1, 1.0), (0, False), ("a", "a"), (None, None)])
def test_bounds_that_are_equal_keep_their_types_and_signs(bounds):
    """Only text is kept once where both are the same: other values may be equal and yet differ."""
    log = LogFile(1, markers=(FileMarker("wh/t/_data/x.parquet", 1, 1, stats={"c": (*bounds, 0)}),))
    (marker,) = decode_log_file(KEY, encode_log_file(log)).markers
    assert repr(marker.stats["c"]) == repr((*bounds, 0))


def test_a_large_log_file_is_decoded_without_the_search_for_cycles_which_goes_on_afterwards():
    markers = tuple(FileMarker(f"wh/t/_data/{number:080d}.parquet", 1, 1) for number in range(11_000))
    body = encode_log_file(LogFile(1, markers=markers))
    assert len(body) > 1 << 20
    before = gc.get_stats()[0]["collections"]
    assert decode_log_file(KEY, body).markers == markers
    assert gc.get_stats()[0]["collections"] <= before + 2
    assert gc.isenabled()
    with pytest.raises(CorruptLog):
        decode_log_file(KEY, body + b"\n")
    assert gc.isenabled()
    with paused_gc(), paused_gc():
        assert not gc.isenabled()
    assert gc.isenabled()


@given(log_files())
def test_encoding_is_deterministic_and_has_no_newline_at_the_end(log):
    body = encode_log_file(log)
    assert body == encode_log_file(decode_log_file(KEY, body))
    assert not body.endswith(b"\n")
    assert body.count(b"\n") == 1 + len(log.log_tombstones) + len(log.markers)


def test_the_good_file_of_the_matrix_is_good():
    log = decode_log_file(KEY, encode_lines(GOOD))
    assert (len(log.log_tombstones), len(log.markers), log.batch_ids) == (2, 2, ("a",))


def test_unknown_fields_are_carried_forward_on_every_kind_of_line():
    body = encode_lines(
        [
            {"v": 1, "t": 7, "sch": 1, "tmb": 2, "f": 3, "new": {"x": [1]}},
            {},
            {"p": "log", "t": 5, "why": "x"},
            {"p": "data", "b": 1, "t": 1, "codec": "zstd"},
        ]
    )
    log = decode_log_file(KEY, body)
    assert log.extra == {"new": {"x": [1]}}
    assert log.log_tombstones[0].extra == {"why": "x"}
    assert log.markers[0].extra == {"codec": "zstd"}
    assert decode_log_file(KEY, encode_log_file(log)) == log


def test_a_version_in_quotes_is_version_one():
    assert decode_log_file(KEY, changed(0, v="1")).time_ms == 7


# Go folds the long s and the Kelvin sign onto s and k, too.
COLLIDING = [name.upper() for name in sorted(WIRE_NAMES)] + ["p", "b", "Tmb", "ſch"]


@pytest.mark.parametrize("name", COLLIDING)
def test_a_field_that_existing_readers_take_for_a_wire_field_is_never_written(name):
    for log in (
        LogFile(1, extra={name: 1}),
        LogFile(1, log_tombstones=(LogTombstone("p", 1, extra={name: 1}),)),
        LogFile(1, markers=(FileMarker("p", 1, 1, extra={name: 1}),)),
    ):
        with pytest.raises(InvariantViolated, match=name):
            encode_log_file(log)


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("name", ["T", "P", "B", "V", "F", "SCH", "TMB", "ſch"])
def test_a_field_that_overwrites_a_wire_field_in_existing_readers_is_corrupt(number, name):
    with pytest.raises(CorruptLog, match=rf"{KEY}: line {number}: .*{name}"):
        decode_log_file(KEY, changed(number, **{name: 1}))


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("depth", [300, 1010])
def test_a_field_that_could_not_be_written_again_is_corrupt(number, depth):
    body = changed(number, x="here").replace(b'"here"', b"[" * depth + b"]" * depth)
    with pytest.raises(CorruptLog, match=rf"{KEY}: line {number}: field 'x' is nested too deeply"):
        decode_log_file(KEY, body)


@pytest.mark.parametrize(("number", "name"), [(0, "t"), (0, "cid"), (1, "c"), (2, "p"), (4, "b"), (4, "s")])
def test_a_value_too_deep_to_be_shown_is_corrupt(number, name):
    body = changed(number, **{name: "here"}).replace(b'"here"', b"[" * 1010 + b"]" * 1010)
    with pytest.raises(CorruptLog, match=rf"{KEY}: line {number}"):
        decode_log_file(KEY, body)


def test_a_tombstone_at_time_zero_is_never_written():
    with pytest.raises(InvariantViolated, match="tmb"):
        encode_log_file(LogFile(1, markers=(FileMarker("p", 1, 1, tombstoned_ms=0),)))


@pytest.mark.parametrize("widened", [{"c": "DATE"}, {"d": "DOUBLE"}, {"c": "BIGINT"}])
def test_s2_a_widening_that_is_none_is_never_written(widened):
    with pytest.raises(InvariantViolated, match=r"S2"):
        encode_log_file(LogFile(1, {"c": "BIGINT"}, widened={c: Widening(kind, 1) for c, kind in widened.items()}))


@pytest.mark.parametrize(
    "said", ['"DOUBLE"', '["DOUBLE"]', '["DOUBLE",-1]', '["DOUBLE",1.0]', '["DOUBLE",true]', "[1,1]", '["DOUBLE",1,2]']
)
def test_s2_a_widening_that_is_no_type_with_a_time_is_corrupt(said):
    body = encode_log_file(LogFile(1, {"c": "BIGINT"}, widened={"c": Widening("DOUBLE", 1)}))
    with pytest.raises(CorruptLog, match=r"line 0: w of 'c' is .*, not \[wider type, unix ms\]"):
        decode_log_file(KEY, body.replace(b'["DOUBLE",1]', said.encode()))


NOT_INTEGERS = {
    "null": None,
    "text": "7",
    "bool": True,
    "fraction": 1.5,
    "float": 7.0,
    "negative": -1,
    "huge": 2**63,
    "beyond 64 bits": 2**70,
    "list": [7],
    "missing": ...,
}

# name -> (body, line that is named)
MALFORMED = {
    "empty object": (b"", 0),
    "only a newline": (b"\n", 0),
    "not JSON": (b"hello\n{}", 0),
    "NaN": (b'{"v":1,"t":NaN,"sch":1,"f":2}\n{}', 0),
    "UTF-16": (encode_lines(GOOD).decode().encode("utf-16"), 0),
    "byte order mark": (b"\xef\xbb\xbf" + encode_lines(GOOD), 0),
    "invalid UTF-8": (replaced(4, b'{"p":"\xff","b":1,"t":1}'), 4),
    "lone surrogate": (replaced(4, b'{"p":"\\ud800","b":1,"t":1}'), 4),
    "deeply nested": (replaced(4, b'{"p":"x","b":1,"t":1,"z":' + b"[" * 5000 + b"]" * 5000 + b"}"), 4),
    "metadata is a list": (replaced(0, []), 0),
    "metadata is a number": (replaced(0, 1), 0),
    "metadata is null": (replaced(0, None), 0),
    "only metadata": (encode_lines([{"v": 1, "t": 7, "sch": 1, "f": 2}]), 0),
    "cut in the middle of a line": (encode_lines(GOOD)[:-9], 5),
    "cut behind a newline": (encode_lines(GOOD[:5]) + b"\n", 5),
    "cut before the markers": (encode_lines(GOOD[:3]), 0),
    "newline at the end": (encode_lines(GOOD) + b"\n", 6),
    "empty line between": (encode_lines([*GOOD[:5], b"", GOOD[5]]), 5),
    "long line that is cut": (replaced(4, b'{"p":"' + b"x" * 100_000), 4),
    "long line of garbage": (replaced(4, b"x" * 100_000), 4),
    "two objects on a line": (replaced(4, b"{}{}"), 4),
    "version 0": (changed(0, v=0), 0),
    "version -1": (changed(0, v=-1), 0),
    "version true": (changed(0, v=True), 0),
    "version 1.0": (changed(0, v=1.0), 0),
    "version in words": (changed(0, v="one"), 0),
    "version missing": (changed(0, v=...), 0),
    "version null": (changed(0, v=None), 0),
    "sch 0": (changed(0, sch=0), 0),
    "sch behind the end": (changed(0, sch=6), 0),
    "f on the schema": (changed(0, f=1), 0),
    "f behind the end": (changed(0, f=7), 0),
    "f leaves a gap": (changed(0, f=3, tmb=...), 0),
    "tmb 0": (changed(0, tmb=0), 0),
    "tmb null": (changed(0, tmb=None), 0),
    "tmb on the schema": (changed(0, tmb=1), 0),
    "tmb leaves a gap": (changed(0, tmb=3), 0),
    "tmb behind f": (changed(0, tmb=5), 0),
    "tmb without tombstones": (changed(0, tmb=2, f=2), 0),
    "sch leaves a gap": (changed(0, sch=2, tmb=3), 0),
    "ids are a text": (changed(0, ids="a"), 0),
    "ids are numbers": (changed(0, ids=[1]), 0),
    "rej is a text": (changed(0, rej="a"), 0),
    "rej are numbers": (changed(0, rej=[1]), 0),
    "ids are null": (changed(0, ids=None), 0),
    "cid is a number": (changed(0, cid=1), 0),
    "cid is empty": (changed(0, cid=""), 0),
    "seal is a number": (changed(0, seal=1), 0),
    "seal is a text": (changed(0, seal="true"), 0),
    "w is a list": (changed(0, w=["c"]), 0),
    "w is a text": (changed(0, w="DOUBLE"), 0),
    "w has a type that is no text": (changed(0, w={"c": 1}), 0),
    "w has a column of no schema line": (changed(0, w={"other": "DOUBLE"}), 0),
    "w is no widening": (changed(0, w={"c": "DOUBLE"}), 0),
    "w of a long name": (changed(0, w={"x" * 9999: "y" * 9999}), 0),
    "h is a text": (changed(0, h="3"), 0),
    "schema is a list": (replaced(1, ["c"]), 1),
    "schema is nested": (replaced(1, {"c": {"type": "VARCHAR"}}), 1),
    "schema type is null": (replaced(1, {"c": None}), 1),
    "schema type is empty": (replaced(1, {"c": ""}), 1),
    "log tombstone without p": (changed(2, p=...), 2),
    "log tombstone p is a number": (changed(3, p=1), 3),
    "log tombstone p is empty": (changed(3, p=""), 3),
    "log tombstone l is a text": (changed(2, l="6"), 2),
    "log tombstone is a list": (replaced(2, [1]), 2),
    "marker without p": (changed(4, p=...), 4),
    "marker p is a number": (changed(4, p=7), 4),
    "marker p is empty": (changed(4, p=""), 4),
    "marker is a text": (replaced(5, "wh/t/_data/b.parquet"), 5),
    "marker tmb 0": (changed(5, tmb=0), 5),
    "marker tmb null": (changed(5, tmb=None), 5),
    "marker tmb text": (changed(5, tmb="5"), 5),
    "marker n negative": (changed(4, n=-1), 4),
    "marker n true": (changed(4, n=True), 4),
    "marker l negative": (changed(5, l=-1), 5),
    "marker l text": (changed(5, l="5"), 5),
    "marker s is a list": (changed(4, s=[]), 4),
    "statistics without nulls": (changed(4, s={"c": ["a", "b"]}), 4),
    "statistics with a text of nulls": (changed(4, s={"c": ["a", "b", "0"]}), 4),
    "statistics with negative nulls": (changed(4, s={"c": ["a", "b", -1]}), 4),
    "statistics of a list": (changed(4, s={"c": [["a"], "b", 0]}), 4),
    "statistics of an object": (changed(4, s={"c": ["a", {}, 0]}), 4),
}
for _where, _number, _names in (
    ("metadata", 0, ("t", "sch", "f")),
    ("log tombstone", 2, ("t",)),
    ("marker", 4, ("b", "t")),
):
    for _name in _names:
        for _what, _value in NOT_INTEGERS.items():
            MALFORMED[f"{_where} {_name} is {_what}"] = (changed(_number, **{_name: _value}), _number)


@pytest.mark.parametrize("name", MALFORMED)
def test_s3_whatever_is_malformed_is_corrupt_and_names_key_and_line(name):
    body, number = MALFORMED[name]
    with pytest.raises(CorruptLog) as caught:
        decode_log_file(KEY, body)
    assert f"{KEY}: line {number}" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("version", [2, 3, 2**40])
def test_a_newer_version_asks_for_an_upgrade(version):
    with pytest.raises(UnsupportedFormat, match=rf"{KEY}: .*version {version}.*upgrade"):
        decode_log_file(KEY, changed(0, v=version))


@settings(max_examples=200)
@given(
    log_files().map(encode_log_file),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3), st.integers(0, 4)), min_size=1, max_size=4),
)
@example(encode_lines(GOOD), [(0, b"", 1)])
def test_s3_mutated_bytes_are_read_or_halt_the_table_and_nothing_else(body, edits):
    for position, inserted, removed in edits:
        at = position % (len(body) + 1)
        body = body[:at] + inserted + body[at + removed :]
    try:
        log = decode_log_file(KEY, body)
    except HaltError as error:
        assert str(error).startswith(f"{KEY}: ")
    else:
        assert decode_log_file(KEY, encode_log_file(log)) == log


# -- ordinary marker lines are decoded at once, the others one by one: both take and say the same


def json_object(pairs):
    return b"{" + b",".join(b'"%b":%b' % pair for pair in pairs) + b"}"


NUMBERS = st.sampled_from(
    [b"0", b"-0", b"1", b"-1", b"5", b"1.0", b"1e0", b"0.1", b"-0.0", b"01", b"1e308", b"1e400", b"NaN", b"true", b"null",
     b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"-9223372036854775809", b"1" * 60]
)  # fmt: skip
TEXTS = st.sampled_from(
    [b'"a"', b'"wh/t/_data/x.parquet"', b'""', b'"\\u0041"', b'"\\ud800"', b'"\xff"', b'"\xc3\xa9"', b'"\\n"', b'"\t"', b'"}\n{"', b"[1]"]
)  # fmt: skip
SCALARS = NUMBERS | TEXTS | st.floats().map(repr).map(str.encode)
STATS = st.one_of(
    st.sampled_from([b"null", b"[]", b"{}", b'{"c":[1,2]}', b'{"c":[1,2,0,0]}', b'{"c":[[],2,0]}', b'{"c":null}']),
    st.lists(st.tuples(st.sampled_from([b"c", b"d"]), st.lists(SCALARS, min_size=3, max_size=3)), max_size=2).map(
        lambda columns: json_object((name, b"[" + b",".join(values) + b"]") for name, values in columns)
    ),
)
GOOD_LINE = b'{"p":"wh/t/_data/a.parquet","b":1,"t":2,"n":3,"s":{"c":["a","a",0]}}'
FIELDS = st.one_of(
    st.tuples(st.sampled_from(sorted(key.encode() for key in MARKER_KEYS - {"p", "s"})), NUMBERS),
    st.tuples(st.sampled_from([b"p", b"later", b"B"]), TEXTS),
    st.tuples(st.just(b"s"), STATS),
)
ODD_LINES = st.lists(FIELDS, max_size=3).map(
    lambda more: json_object([(b"p", b'"a"'), (b"b", b"1"), (b"t", b"1"), *more])
)
LINE_PARTS = st.sampled_from(
    [GOOD_LINE, GOOD_LINE + GOOD_LINE, b" " + GOOD_LINE, GOOD_LINE + b"\r", GOOD_LINE + b",", b"", b"{}", b"[]",
     b'{"p":"a","b":1', b'"t":1}', b'{"p":"a}', b'{b","b":1,"t":2}', b'{"p":"a","b":1,"t":1,"s":{}', b'{"c":[1,1,0]}}']
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(ODD_LINES | LINE_PARTS, min_size=1, max_size=4), st.booleans())
@example([b'{"p":"a","b":1,"t":1,"tmb":null}'], False)
@example([b'{"p":"a","b":1,"t":1,"s":{"c":[18446744073709551616,1,0]}}'], False)
@example([GOOD_LINE + GOOD_LINE, b'{"p":"a","b":1,', b'"t":1}'], False)
@example([GOOD_LINE + GOOD_LINE, b""], True)
def test_lines_that_are_decoded_at_once_are_taken_and_refused_as_one_by_one(lines, is_compact):
    body = b"\n".join((b'{"v":1,"t":5,"sch":1,"f":2}', b"{}", *lines))

    def decode():
        try:
            return [repr(marker) for marker in decode_log_file(KEY, body, is_compact=is_compact).markers]
        except CorruptLog as error:
            return str(error)

    at_once = decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_ORDINARY", NothingOrdinary())
        assert at_once == decode()


class NothingOrdinary:
    """Takes no line for an ordinary one."""

    def decode_lines(self, block):
        raise msgspec.ValidationError

    decode = decode_lines
