"""The wire check of fsck and the strict reader, which share no code, refuse the same log files."""

import json
import random

import pytest
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile, LogTombstone, Widening
from icedb_log.repair.fsck_log import find_wire_problems

PATHS = TablePaths("t", "wh/t")
TIME_MS = 1_700_000_000_000
KEY = PATHS.log_key(time_ms=TIME_MS, commit_id="0c", is_merged=True)
GOOD = encode_log_file(
    LogFile(
        time_ms=TIME_MS,
        schema={"id": "BIGINT", "ts": "TIMESTAMP"},
        widened={"id": Widening("DOUBLE", 1)},
        markers=(
            FileMarker(
                f"{PATHS.data_prefix}d=2026-01-01/u=a.b/f1.parquet", 10, 1, row_count=3, stats={"id": (1, 2, 0)}
            ),
            FileMarker(f"{PATHS.data_prefix}d=2026-01-01/u=a.b/f2.parquet", 20, 2, tombstoned_ms=5, landed_ms=6),
        ),
        log_tombstones=(LogTombstone(f"{PATHS.log_prefix}1600000000000_0a.jsonl", 5),),
        commit_id="0c",
        batch_ids=("x",),
        horizon_ms=4,
    )
)


def is_refused(strict_reader, body):
    try:
        strict_reader.read_strict(PATHS.prefix, [(KEY, body)])
    except strict_reader.WireError:
        return True
    return False


def test_what_we_write_is_good(strict_reader):
    assert not is_refused(strict_reader, GOOD)
    assert find_wire_problems(PATHS, KEY, GOOD) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":1', b'"v":"1"'),
        (b'"v":1', b'"v":1.0'),
        (b'"v":1', b'"v":true'),
        (b'"t":1700000000000', b'"t":1700000000001'),
        (b'"t":1700000000000', b'"t":1700000000000.0'),
        (b'"sch":1', b'"sch":1.0'),
        (b'"tmb":2', b'"tmb":0'),
        (b'"tmb":2,', b""),
        (b'"f":3', b'"f":2'),
        (b'"f":3', b'"f":9'),
        (b'"f":3', b'"f":null'),
        (b'"cid"', b'"F":3,"cid"'),
        (b'"cid"', b'"f":3,"cid"'),
        (b'"id":"BIGINT"', b'"id":""'),
        (b'"id":"BIGINT"', b'"id":7'),
        (b'"id":"BIGINT"', b'"id":"BIGINT","id":"BIGINT"'),
        (b"1600000000000_0a.jsonl", b"1600000000000_0 a.jsonl"),
        (b"/_log/1600000000000", b"/_log/old/1600000000000"),
        (b'"b":10', b'"b":-1'),
        (b'"b":10', b'"b":9223372036854775808'),
        (b'"b":10', b'"b":"10"'),
        (b'"b":10', b'"b":10,"b":10'),
        (b'"b":10', b'"b":10,"TMB":3'),
        (b'"tmb":5', b'"tmb":0'),
        (b'"tmb":5', b'"tmb":null'),
        (b"u=a.b", b"u=a%20b"),
        (b"u=a.b", b"u="),
        (b"u=a.b", b".."),
        (b"u=a.b/f1", b"f1/u=a"),
        (b"wh/t/_data", b"wh/u/_data"),
        (b"f1.parquet", b"f1.orc"),
        (GOOD[-1:], GOOD[-1:] + b"\n"),
        (b'{"id"', b'[{"id"'),
    ],
)
def test_each_rule_is_broken_for_both(strict_reader, old, new):
    body = GOOD.replace(old, new, 1) if old != GOOD[-1:] else GOOD + b"\n"
    assert body != GOOD
    assert is_refused(strict_reader, body)
    assert find_wire_problems(PATHS, KEY, body)


def test_whatever_the_strict_reader_refuses_is_found(strict_reader):
    rng = random.Random(11)
    tokens = [b'"', b",", b":", b"0", b"null", b"1.0", b"\n", b"{", b"}", b"..", b"/", b"T", b"\xff", b" ", b'"P":1,']
    refused = 0
    for _ in range(3000):
        at = rng.randrange(len(GOOD))
        body = GOOD[:at] + rng.choice(tokens) + GOOD[at + rng.choice([0, 1]) :]
        if is_refused(strict_reader, body):
            refused += 1
            assert find_wire_problems(PATHS, KEY, body), body
    assert 1000 < refused < 2990


def test_spaces_and_other_orders_are_allowed(strict_reader):
    lines = [json.dumps(dict(reversed(json.loads(line).items()))).encode() for line in GOOD.split(b"\n")]
    body = b"\n".join(lines)
    assert not is_refused(strict_reader, body)
    assert find_wire_problems(PATHS, KEY, body) == ()
