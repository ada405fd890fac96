"""Log files as they are written today, byte for byte: a change of any of these bytes is a change of the format."""

from pathlib import Path

import pytest
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.model import FeedState, FileMarker, LogFile, LogTombstone, Widening

GOLDEN = Path(__file__).with_name("golden")
LOG = "wh/events/_log/"
DATA = "wh/events/_data/"

APPEND = LogFile(
    time_ms=1686176939445,
    schema={"ts": "TIMESTAMP", "event": "VARCHAR", "user_id": "BIGINT", "größe": "DOUBLE"},
    markers=(
        FileMarker(
            f"{DATA}d=2023-06-07/u=a/01889a1b3f7570008000000000000011.parquet",
            1024,
            1686176939400,
            row_count=10,
            stats={
                "ts": ("2023-06-07T00:00:00Z", "2023-06-07T23:59:59.5Z", 0),
                "größe": (-1.5, 2.0, 3),
                "event": (None, None, 10),
            },
        ),
        FileMarker(
            f"{DATA}d=2023-06-08/u=S_c3_a3o/01889a1b3f7570008000000000000012.parquet", 1, 1686176939400, row_count=0
        ),
    ),
    commit_id="01889a1b3f7570008000000000000001",
    batch_ids=("01889a1b-3f75-7000-8000-00000000000a", "01889a1b-3f76-7000-8000-00000000000b"),
)

MERGE = LogFile(
    time_ms=1686176950000,
    schema={"event": "VARCHAR", "ts": "TIMESTAMP"},
    log_tombstones=(
        LogTombstone(f"{LOG}1686176930000_m_01889a1b1a9070008000000000000004.jsonl", 1686176940000, 1686176940123),
        LogTombstone(f"{LOG}1686176939445_01889a1b3f7570008000000000000001.jsonl", 1686176950000),
        LogTombstone(
            f"{LOG}1686176939446_01889a1b3f7670008000000000000002.jsonl", 1686176950000, extra={"why": "folded"}
        ),
    ),
    markers=(
        FileMarker(f"{DATA}d=2023-06-07/01889a1b68b070008000000000000013.parquet", 2000, 1686176949000, row_count=12),
        FileMarker(
            f"{DATA}d=2023-06-07/01889a1b3f7570008000000000000011.parquet",
            1024,
            1686176939400,
            tombstoned_ms=1686176950000,
            row_count=10,
        ),
        FileMarker(
            f"{DATA}d=2023-06-07/01889a1b3f7570008000000000000012.parquet",
            976,
            1686176939400,
            tombstoned_ms=1686176950000,
        ),
        FileMarker(
            f"{DATA}d=2023-06-05/01889a1b000070008000000000000014.parquet",
            77,
            1686176900000,
            tombstoned_ms=1686176940000,
            row_count=1,
            landed_ms=1686176940123,
            extra={"codec": "zstd"},
        ),
        FileMarker(f"{DATA}d=2023-06-06/01889a1b000070008000000000000015.parquet", 88, 1686176900001),
    ),
    commit_id="01889a1b68b070008000000000000003",
    horizon_ms=1686176900000,
    extra={"writer": {"name": "later", "features": ["x", 1, None, True]}},
)

CASES = {
    "append": APPEND,
    "append_without_markers": LogFile(time_ms=1686176939446, commit_id="01889a1b3f7670008000000000000002"),
    "merge": MERGE,
    "widened": LogFile(
        time_ms=1686176970000,
        schema={"n": "BIGINT", "d": "DATE", "ts": "TIMESTAMP"},
        markers=(
            FileMarker(f"{DATA}d=2023-06-09/01889a1bb6d070008000000000000016.parquet", 99, 1686176969000, row_count=1),
        ),
        commit_id="01889a1bb6d070008000000000000004",
        batch_ids=("01889a1b-b6d0-7000-8000-00000000000c",),
        widened={"n": Widening("DOUBLE", 1686176970000), "d": Widening("TIMESTAMP", 1686176970000)},
    ),
    "refused": LogFile(
        time_ms=1686176980000,
        schema={"n": "BIGINT"},
        commit_id="01889a1bdde070008000000000000005",
        refused_ids=("01889a1b-dde0-7000-8000-00000000000d",),
    ),
    "fed": LogFile(
        time_ms=1686176990000,
        schema={"hour": "TIMESTAMP", "n": "BIGINT"},
        markers=(FileMarker(f"{DATA}01889a1c04f070008000000000000017.parquet", 99, 1686176989000, row_count=1),),
        commit_id="01889a1c04f070008000000000000006",
        feed=FeedState(
            7,
            ("1686176939445_01889a1b3f7570008000000000000001", "1686176939446_01889a1b3f7670008000000000000002"),
            {"1686176939446_01889a1b3f7670008000000000000002": "CAST_INVALID_INPUT: größe"},
        ),
    ),
    "seal": LogFile(time_ms=1686176960000, is_seal=True),
}


def test_every_golden_file_has_its_value():
    assert {path.stem for path in GOLDEN.glob("*.jsonl")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_written_as_its_golden_bytes(name):
    assert encode_log_file(CASES[name]) == (GOLDEN / f"{name}.jsonl").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_are_read_as_their_value(name):
    assert decode_log_file(f"{LOG}{name}", (GOLDEN / f"{name}.jsonl").read_bytes()) == CASES[name]
