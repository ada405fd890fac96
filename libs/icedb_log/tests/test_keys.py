"""Keys: the wire's names, built and parsed in one place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.keys import (
    STAGING_FORMATS,
    LogName,
    StagedName,
    TablePaths,
    check_table_name,
    find_log_name,
    log_name,
    parse_log_key,
    parse_staged_key,
)
from icedb_log.table.partitions import encode_partition_value

PATHS = TablePaths("t", "wh/t")
BATCH = "01889a1b-3f75-7000-8000-00000000000a"


def test_where_things_lie():
    assert PATHS.log_prefix == "wh/t/_log/"
    assert PATHS.config_key == "wh/t/_icedb/table.json"
    assert PATHS.fence_key("merge") == "wh/t/_icedb/fence/merge.json"
    assert PATHS.hold_key("lease", "ab") == "wh/t/_icedb/holds/lease.ab.jsonl"
    assert PATHS.quarantine_key("x.json") == "wh/t/_icedb/quarantine/x.json"
    assert PATHS.staging_key(batch_id=BATCH, staging_format="ndjson.gz") == f"wh/t/_icedb/staging/{BATCH}.ndjson.gz"
    assert PATHS.data_key(partition="d=1/u=a", file_id="00") == "wh/t/_data/d=1/u=a/00.parquet"
    assert PATHS.data_key(partition="", file_id="00") == "wh/t/_data/00.parquet"


def test_nothing_but_the_log_begins_like_the_log():
    others = [
        PATHS.data_prefix,
        PATHS.config_key,
        PATHS.staging_prefix,
        PATHS.quarantine_prefix,
        PATHS.holds_prefix,
        PATHS.fence_key("ingest"),
    ]
    assert not any(key.startswith("wh/t/_log") for key in others)


@given(st.integers(0, 10**13 - 1), st.text("0123456789abcdef", min_size=1, max_size=32), st.booleans())
def test_a_log_key_is_parsed_as_it_was_built(time_ms, commit_id, is_merged):
    key = PATHS.log_key(time_ms=time_ms, commit_id=commit_id, is_merged=is_merged)
    assert parse_log_key(key) == LogName(time_ms, is_merged, commit_id)


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_log_name_is_found_in_a_key_and_in_a_name_and_in_nothing_else(is_merged):
    key = PATHS.log_key(time_ms=7, commit_id="ab", is_merged=is_merged)
    assert find_log_name(key) == find_log_name(log_name(key)) == LogName(7, is_merged, "ab")
    for other in ("", "ab", "7_ab", "wh/t/_log/", f"{key}/", "wh/t/_log/000000000000x_ab.jsonl"):
        assert find_log_name(other) is None


@given(st.integers(0, 10**13 - 2), st.text("0123456789abcdef", min_size=1, max_size=32), st.booleans())
def test_keys_sort_by_time_and_a_merge_after_an_append_of_its_millisecond(time_ms, commit_id, is_merged):
    append = PATHS.log_key(time_ms=time_ms, commit_id="f" * 32, is_merged=False)
    merge = PATHS.log_key(time_ms=time_ms, commit_id="0", is_merged=True)
    later = PATHS.log_key(time_ms=time_ms + 1, commit_id=commit_id, is_merged=is_merged)
    assert append < merge < later


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("0000000000001_web-1.example.org", LogName(1, False, "web-1.example.org")),
        ("0000000000001_m_web-1", LogName(1, True, "web-1")),
        ("0000000000001_MacBook_Pro.local", LogName(1, False, "MacBook_Pro.local")),
        ("0000000000001_m", LogName(1, False, "m")),
        ("0000000000001_mars", LogName(1, False, "mars")),
    ],
)
def test_other_writers_put_the_name_of_their_host_where_we_have_a_commit_id(name, parsed):
    assert parse_log_key(f"wh/t/_log/{name}.jsonl") == parsed


@pytest.mark.parametrize("time_ms", [-1, 10**13])
def test_a_time_that_does_not_fit_its_digits_is_refused(time_ms):
    with pytest.raises(InvalidRequest, match="13 digits"):
        PATHS.log_key(time_ms=time_ms, commit_id="00", is_merged=False)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "123_00.jsonl",
        "00000000000001_00.jsonl",
        "0000000000001_.jsonl",
        "0000000000001_m_.jsonl",
        "0000000000001_a b.jsonl",
        "0000000000001_-a.jsonl",
        "0000000000001_a-.jsonl",
        "0000000000001_.jsonl.jsonl",
        "0000000000001_größe.jsonl",
        f"0000000000001_{'a' * 201}.jsonl",
        "0000000000001_00.json",
        "0000000000001_00.jsonl.tmp",
        "0000000000001_00.jsonl\n",
        "٠٠٠٠٠٠٠٠٠٠٠٠١_00.jsonl",
    ],
)
def test_s3_anything_else_is_no_log_file(name):
    with pytest.raises(CorruptLog, match="only log files may stand below _log"):
        parse_log_key(f"wh/t/_log/{name}")


@pytest.mark.parametrize("staging_format", STAGING_FORMATS)
def test_a_staged_key_is_parsed_as_it_was_built(staging_format):
    key = PATHS.staging_key(batch_id=BATCH, staging_format=staging_format)
    assert parse_staged_key(key) == StagedName(BATCH, 0x01889A1B3F75, staging_format)


@pytest.mark.parametrize("name", ["", "x", f"{BATCH}", f"{BATCH}.xml", "x.ndjson", f"{BATCH}.ndjson.bz2", f"{BATCH}."])
def test_anything_else_is_no_staged_batch(name):
    with pytest.raises(InvalidRequest):
        parse_staged_key(f"wh/t/_icedb/staging/{name}")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_every_partition_value_makes_a_key_that_is_parsed_back(value):
    partition = f"d=1/u={encode_partition_value(value)}"
    assert PATHS.partition_of(PATHS.data_key(partition=partition, file_id="00")) == partition


@pytest.mark.parametrize(
    "partition", ["x", "/", "d=1/", "d=1//u=2", "d=a b", "d=%20", "d=a+b", "d=ä", "../x", "d=1/.."]
)
def test_a_partition_that_is_not_encoded_is_refused(partition):
    with pytest.raises(InvalidRequest, match="not an encoded partition path"):
        PATHS.data_key(partition=partition, file_id="00")


@pytest.mark.parametrize("key", ["wh/t2/_data/x.parquet", "wh/t/_log/x", "/wh/t/_data/x.parquet", "x"])
def test_a_data_file_outside_the_table_is_corrupt(key):
    with pytest.raises(CorruptLog, match="outside wh/t/_data/"):
        PATHS.partition_of(key)


@pytest.mark.parametrize("name", ["t", "events", "a1_b", "x" * 63])
def test_table_names(name):
    assert check_table_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "1a", "_a", "A", "a-b", "a.b", "a/b", "../a", "a\n", "a\0", "ä", "x" * 64, "x" * 10_000]
)
def test_bad_table_names_are_refused_with_a_short_message(name):
    with pytest.raises(InvalidRequest, match="use 1 to 63 of a-z") as caught:
        check_table_name(name)
    assert len(str(caught.value)) < 300
