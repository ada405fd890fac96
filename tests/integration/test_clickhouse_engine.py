"""What `icedb snapshot -o clickhouse` prints, run by ClickHouse's engine (chDB): the same rows as DuckDB reads.

The engine is 180 MB, and no server of ours needs it: `make engines` installs it, `make soak` runs this. It runs in a
process of its own, because its threads end with the process only.
"""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace

import duckdb
import pytest
from icedb_client.clickhouse import KEY_PLACEHOLDER, SECRET_PLACEHOLDER, to_clickhouse
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from processes import service_env

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(importlib.util.find_spec("chdb") is None, reason="no chDB: `make engines` installs it"),
]
ENGINE = """
import json, sys
from chdb import session
answers = []
with session.Session() as engine:
    for statement in json.load(sys.stdin):
        try:
            rows = str(engine.query(statement, "JSONCompactEachRow")).splitlines()
            answers.append([json.loads(row) for row in rows if row])
        except Exception as error:
            answers.append(str(error))
print(json.dumps(answers))
"""
ODD = 'it\'s `odd` \\ "name"'
NARROW = {
    "ts": "TIMESTAMP",
    "event": "VARCHAR",
    "amount": "BIGINT",
    "n": "BIGINT",
    "ok": "BOOLEAN",
    "day": "DATE",
    ODD: "VARCHAR",
}
WIDENED = {"amount": "DOUBLE", "day": "TIMESTAMP"}


def ask(statements):
    env = service_env()
    done = subprocess.run(
        [sys.executable, "-c", ENGINE],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        timeout=240,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fill(warehouse):
    parquet = ParquetWarehouse(warehouse)
    parquet.create("events", "d=day(ts)")
    odd = ODD.replace('"', '""')
    parquet.commit(
        "events",
        "select timestamp '2026-01-02 03:04:05.123456' as ts, 'it''s \\ x' as event, 8::bigint as amount, 5::bigint as n, true as ok, "
        f"""date '2026-01-02' as day, 'w' as "{odd}" """,
        partition="d=2026-01-02",
        schema=NARROW,
    )
    wide = {"partition": "d=2026-01-03", "schema": NARROW, "widened": WIDENED}
    parquet.commit(
        "events",
        "select timestamp '2026-01-03' as ts, null::varchar as event, 7::double as amount, false as ok",
        **wide,
    )
    parquet.commit(
        "events",
        "select timestamp '2026-01-03 01:00:00' as ts, 'c' as event, 'nan'::double as amount, 6::bigint as n",
        **wide,
    )
    old = parquet.commit("events", "select 'dead' as event", partition="d=2026-01-03", schema=NARROW)
    parquet.commit("events", "select 'b' as event, -1.5::double as amount, 5::bigint as n", replaces=(old,), **wide)
    parquet.warehouse.store.delete([old.data_key])
    parquet.warehouse.store.put_if_absent(old.data_key, b"merged away")
    return parquet


def keyed(rows):
    return sorted((row[1] or "", row[3]) for row in rows)


def test_a_directory_reads_the_same_as_duckdb(tmp_path):
    parquet = fill(open_warehouse(f"file://{tmp_path}"))
    with Client(store=f"file://{tmp_path}") as client:
        snapshot = client.snapshot("events")
    statement = to_clickhouse(snapshot)
    rows, some = ask([statement, f"SELECT * FROM ({statement.removesuffix(';')}) WHERE amount > 5 ORDER BY amount"])
    with duckdb.connect() as con:
        snapshot.duckdb(con)
        assert keyed(rows) == keyed(con.sql("from events").fetchall())
    assert [row[2] for row in some] == [7, 8], "NaN is above no number in ClickHouse"
    first = next(row for row in rows if row[3] == 5 and row[4])
    assert first == ["2026-01-02 03:04:05.123456", "it's \\ x", 8, 5, True, "2026-01-02 00:00:00.000000", "w"]
    # A file of the snapshot that is gone ends the statement, and is not left out.
    parquet.warehouse.store.delete([snapshot.files[0].path])
    (said,) = ask([to_clickhouse(snapshot)])
    assert "data files of this snapshot are gone" in said


def test_s3_with_keys_and_with_urls(s3_server):
    url = f"s3://{s3_server.bucket}/clickhouse"
    fill(open_warehouse(url, s3_server.options))
    settings = ClientSettings(store=url, s3_endpoint=s3_server.endpoint_url)
    with Client(settings=settings, warehouse=open_warehouse(url, s3_server.options)) as client:
        plain = to_clickhouse(client.snapshot("events"))
        signed = to_clickhouse(client.snapshot("events", presign_ms=600_000))
    whole, presigned = ask([plain.replace(KEY_PLACEHOLDER, "dev").replace(SECRET_PLACEHOLDER, "dev"), signed])
    assert keyed(whole) == [("", None), ("b", 5), ("c", 6), ("it's \\ x", 5)]
    assert keyed(presigned) == keyed(whole)


def test_thousands_of_files_in_one_statement(tmp_path):
    parquet = ParquetWarehouse(open_warehouse(f"file://{tmp_path}"))
    parquet.create("events")
    made = parquet.commit("events", "select 1 as n", schema={"n": "BIGINT"})
    with Client(store=f"file://{tmp_path}") as client:
        (file,) = client.snapshot("events").files
        folder = file.uri.rpartition("/")[0]
        files = 5000
        for number in range(files - 1):
            os.link(file.uri, f"{folder}/{number:032x}.parquet")
        snapshot = client.snapshot("events")
    many = tuple(
        replace(file, uri=f"{folder}/{number:032x}.parquet", path=f"events/_data/{number:032x}.parquet")
        for number in range(files - 1)
    )
    statement = to_clickhouse(replace(snapshot, files=many))
    setting, query = statement.split("\n", 1)
    assert setting.startswith("SET max_query_size")
    (refused,), (_, rows) = ask([query]), ask([setting, query])
    assert "Max query size exceeded" in refused
    assert len(rows) == files - 1
    assert made.data_key not in statement
