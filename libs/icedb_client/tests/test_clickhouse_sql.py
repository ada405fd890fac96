"""Snapshots as ClickHouse SQL: quoting and types. Whether ClickHouse agrees is asked in a soak test."""

import pytest
from icedb_client.clickhouse import KEY_PLACEHOLDER, SECRET_PLACEHOLDER, to_clickhouse
from icedb_client.snapshots import DataFile, Snapshot
from icedb_log.errors import InvalidRequest
from icedb_log.store.s3_options import S3Options

SCHEMA = {"ts": "TIMESTAMP", "Event": "VARCHAR", "amount": "DOUBLE", "n": "BIGINT", "ok": "BOOLEAN", "day": "DATE"}
FOLDER = "/data/events/_data/"


def make(*uris, schema=SCHEMA, s3=None, urls=(), where=None):
    files = [
        DataFile(uri.partition("://")[2].partition("/")[2] or uri, uri, 1, 1, {}, 1, *urls[place : place + 1])
        for place, uri in enumerate(uris)
    ]
    return Snapshot("events", "id", schema, tuple(files), len(files), None, False, 1, None, where=where, s3=s3)


def test_the_files_of_a_directory():
    sql = to_clickhouse(make(f"{FOLDER}d=1/a.parquet", f"{FOLDER}d=2/b.parquet"))
    assert sql.startswith(
        "WITH (\n  '/data/events/_data/d=1/a.parquet',\n  '/data/events/_data/d=2/b.parquet'\n) AS files"
    )
    assert (
        f"FROM file('{FOLDER}**', 'Parquet', '`ts` Nullable(DateTime64(6, \\'UTC\\')), `Event` Nullable(String)" in sql
    )
    assert (
        f"throwIf(count() != 2, 'data files of this snapshot are gone: ask for a new one with icedb snapshot') FROM file('{FOLDER}**', 'One')"
        in sql
    )
    assert sql.endswith("SETTINGS use_hive_partitioning = 0;")


def test_one_file_is_looked_for_in_its_folder_alone():
    assert f"file('{FOLDER}d=1/**'" in to_clickhouse(make(f"{FOLDER}d=1/a.parquet"))


def test_s3_has_placeholders_and_never_a_secret():
    secret = S3Options("http://minio:9000", access_key_id="AKIAREAL", secret_access_key="real-secret")
    sql = to_clickhouse(make("s3://bucket/wh/events/_data/a.parquet", s3=secret))
    assert "'bucket/wh/events/_data/a.parquet'" in sql
    assert (
        f"s3('http://minio:9000/bucket/wh/events/_data/**', '{KEY_PLACEHOLDER}', '{SECRET_PLACEHOLDER}', 'Parquet'"
        in sql
    )
    assert "real" not in sql.lower().replace("already", "")
    assert "s3('s3://bucket/" in to_clickhouse(make("s3://bucket/wh/events/_data/a.parquet", s3=S3Options()))


def test_presigned_urls_need_no_credentials():
    urls = [f"https://host/{name}.parquet?sign={name}" for name in "ab"]
    sql = to_clickhouse(make("s3://b/e/_data/a.parquet", "s3://b/e/_data/b.parquet", urls=urls, s3=S3Options()))
    assert f"url('{{{urls[0]},{urls[1]}}}', 'Parquet'" in sql
    assert "glob_expansion_max_elements = 2" in sql
    assert KEY_PLACEHOLDER not in sql


def test_thousands_of_files_raise_the_parsers_bound_first():
    files = [f"{FOLDER}d=2026-01-02/{number:032x}.parquet" for number in range(5000)]
    first, rest = to_clickhouse(make(*files)).split("\n", 1)
    name, _, size = first.removesuffix(";").rpartition(" = ")
    assert name == "SET max_query_size"
    assert int(size) > len(rest)
    assert "SET" not in to_clickhouse(make(*files[:100])).split("SETTINGS")[0]


def test_no_files_and_no_columns():
    sql = to_clickhouse(make(schema={"n": "BIGINT"}))
    assert sql == "SELECT CAST(NULL AS Nullable(Int64)) AS `n` WHERE false;"
    with pytest.raises(InvalidRequest, match="no columns yet"):
        to_clickhouse(make(schema={}))


def test_names_that_need_care():
    sql = to_clickhouse(make(f"{FOLDER}it's.parquet", schema={"a`b\\c'd": "VARCHAR"}))
    assert "SELECT `a\\`b\\\\c'd`" in sql
    assert "'`a\\\\`b\\\\\\\\c\\'d` Nullable(String)'" in sql
    assert f"'{FOLDER}it\\'s.parquet'" in sql


@pytest.mark.parametrize("sql_type", ["STRUCT(a BIGINT)", "BIGINT[]", "MAP(VARCHAR, BIGINT)"])
def test_a_type_without_counterpart_is_refused_with_the_column(sql_type):
    with pytest.raises(InvalidRequest, match=r"column 'odd' has the type .*-o paths"):
        to_clickhouse(make(f"{FOLDER}a.parquet", schema={"odd": sql_type}))


def test_a_folder_that_is_a_pattern_is_refused():
    with pytest.raises(InvalidRequest, match="-o paths"):
        to_clickhouse(make("/data/{a,b}/events/_data/a.parquet"))


def test_a_condition_is_left_to_who_writes_clickhouses_sql():
    with pytest.raises(InvalidRequest, match="write the condition in ClickHouse's SQL around the statement"):
        to_clickhouse(make(f"{FOLDER}a.parquet", where="amount > 5"))
