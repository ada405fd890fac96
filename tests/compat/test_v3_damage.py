"""Log files that the original wire's rules forbid: each is refused, named with its line, and nothing is touched."""

import json

import pytest
from icedb_log.errors import CorruptLog, UnsupportedFormat
from icedb_log.log.reader import LogHeadReader

DAY = "u=a/d=2023-06-07"
START_MS = 1_686_176_939_445
GOOD = [
    {"v": 1, "sch": 1, "f": 3, "t": START_MS, "tmb": 2},
    {"n": "BIGINT"},
    {"p": "events/_log/1600000000000_web-1.jsonl", "t": 5},
    {"p": "events/_data/d=1/a.parquet", "b": 1, "t": 1},
    {"p": "events/_data/d=1/b.parquet", "b": 1, "t": 1, "tmb": 5},
]


def changed(number, **fields):
    lines = [dict(line) for line in GOOD]
    lines[number].update(fields)
    lines[number] = {name: value for name, value in lines[number].items() if value is not ...}
    return "\n".join(map(json.dumps, lines)).encode()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", 0),
        (b"[]", 0),
        (changed(0) + b"\n", 5),
        (changed(0).replace(b"\n", b"\n\n", 1), 1),
        (changed(0)[:-1], 4),
        (changed(0, v=...), 0),
        (changed(0, v=0), 0),
        (changed(0, t=...), 0),
        (changed(0, t="1686176939445"), 0),
        (changed(0, t=1.5), 0),
        (changed(0, sch=0), 0),
        (changed(0, f=...), 0),
        (changed(0, f=9), 0),
        (changed(0, f=4, tmb=3), 0),
        (changed(0, tmb=0), 0),
        (changed(0, tmb=None), 0),
        (changed(0, tmb=...), 0),
        (changed(0, Tmb=2), 0),
        (changed(1, n=5), 1),
        (changed(1, n=""), 1),
        (changed(2, p=...), 2),
        (changed(2, t=None), 2),
        (changed(2, T=5), 2),
        (changed(3, p=7), 3),
        (changed(3, b="1"), 3),
        (changed(3, t=True), 3),
        (changed(4, tmb=0), 4),
        (changed(4, tmb=None), 4),
        (changed(4, tmb="5"), 4),
        (changed(4, TMB=5), 4),
    ],
)
def test_s3_a_malformed_log_file_is_named_with_its_line(table, body, line):
    table.append(DAY, 1)
    key = f"events/_log/{START_MS}_web-1.jsonl"
    table.store.put(key, body)
    for is_compact in (False, True):
        with pytest.raises(CorruptLog) as caught:
            table.reader(is_compact=is_compact).read()
        assert str(caught.value).startswith(f"{key}: line {line}")
    table.adopt()
    for act in (lambda: table.merge(full=True), lambda: table.delete("n = 1"), table.vacuum):
        with pytest.raises(CorruptLog):
            act()


def test_a_later_version_of_the_wire_is_refused_by_name(table):
    key = f"events/_log/{START_MS}_web-1.jsonl"
    table.store.put(key, changed(0, v=2))
    with pytest.raises(UnsupportedFormat, match=r"web-1\.jsonl: line 0: log format version 2"):
        table.reader().read()


@pytest.mark.parametrize(
    "name", ["lock", "1686176939445_.jsonl", "1686176939445_a b.jsonl", "5_web.jsonl", "x/y.jsonl"]
)
def test_s3_what_is_no_log_file_halts_the_table(table, name):
    table.append(DAY, 1)
    table.store.put(f"events/_log/{name}", changed(0))
    for read in (table.reader().read, LogHeadReader(table, clock=table.clock).read):
        with pytest.raises(CorruptLog, match="not the name of a log file"):
            read()
