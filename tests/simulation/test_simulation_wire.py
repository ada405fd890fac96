"""The strict reader of the wire reads what the codec writes, and refuses what the rules forbid."""

import pytest
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile, LogTombstone, Widening
from icedb_sim.simulation.wire import read_live, read_wire

KEY = "t/_log/0000000000007_m_0a.jsonl"
LOG = LogFile(
    7,
    {"a": "BIGINT"},
    (FileMarker("t/_data/x.parquet", 1, 2), FileMarker("t/_data/y.parquet", 1, 2, tombstoned_ms=7)),
    (LogTombstone("t/_log/0000000000005_0b.jsonl", 7),),
    commit_id="0a",
    batch_ids=("b",),
    widened={"a": Widening("DOUBLE", 5)},
)


def test_it_reads_what_the_codec_writes():
    file = read_wire(KEY, encode_log_file(LOG))
    assert file.markers == (("t/_data/x.parquet", True), ("t/_data/y.parquet", False))
    assert file.log_tombstones == {"t/_log/0000000000005_0b.jsonl": 7}
    assert (file.batch_ids, file.time_ms) == (("b",), 7)
    assert (file.schema, file.widened) == ({"a": "BIGINT"}, {"a": ("DOUBLE", 5)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":1', b'"v":"1"'),
        (b'"t":7,"sch"', b'"t":8,"sch"'),
        (b'"tmb":2', b'"tmb":0'),
        (b'"f":3', b'"f":3.0'),
        (b'"BIGINT"', b"1"),
        (b'"b":1', b'"b":"1"'),
        (b"t/_data/x", b"/t/_data/x"),
    ],
)
def test_it_refuses_what_the_wire_forbids(old, new):
    body = encode_log_file(LOG)
    assert old in body
    with pytest.raises(ValueError, match=KEY):
        read_wire(KEY, body.replace(old, new, 1))


def test_it_refuses_a_trailing_newline_and_a_strange_name():
    with pytest.raises(ValueError, match="newline"):
        read_wire(KEY, encode_log_file(LOG) + b"\n")
    with pytest.raises(ValueError, match="name"):
        read_wire("t/_log/7_0a.jsonl", encode_log_file(LOG))


def test_the_last_marker_in_key_order_wins():
    files = [("b", [("x", False)]), ("a", [("x", True), ("y", True)])]
    assert read_live(files) == {"y"}
