"""A purge on real S3 over HTTP, in a process of its own that is killed in the middle: the next one goes on."""

import subprocess
import sys

import pytest
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import NotFound
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_log.trash.purge import purge_table, read_trash
from icedb_sim.tables.row_files import RowFileWriter, encode_rows

CLOCK = SystemClock()
FILES = 40
CHUNK = 8
CHILD = f"""
import signal, sys
from icedb_log.clock import SystemClock
from icedb_log.store_settings import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.trash.purge import PurgeLimits, purge_table

url, endpoint = sys.argv[1:]
warehouse = StoreSettings(url, S3Options(endpoint, access_key_id="dev", secret_access_key="dev")).open()
chunks = 0

def stop_in_the_third_chunk():
    global chunks
    chunks += 1
    if chunks == 3:
        print("in the middle", flush=True)
        signal.pause()

purge_table(warehouse.table("events"), clock=SystemClock(), owner="killed", check_alive=stop_in_the_third_chunk,
            limits=PurgeLimits(chunk_keys={CHUNK}))
"""


def test_a_purge_that_is_killed_goes_on(s3_server):
    url = f"s3://{s3_server.bucket}/killed-purge"
    warehouse = StoreSettings(url, s3_server.options).open()
    store, paths = warehouse.store, warehouse.table("events").paths
    create_table(TableStore(store, paths), TableConfig.create(name="events"))
    body = encode_rows([{"n": 1}])
    stage_batch(TableStore(store, paths), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))
    flush_table(Table.open(TableStore(store, paths), clock=CLOCK, owner="test"), RowFileWriter(store, CLOCK))
    for _ in range(FILES):
        store.put(paths.data_key(partition="", file_id=CLOCK.new_id()), b"x")
    stage_batch(TableStore(store, paths), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))
    drop_table(TableStore(store, paths), clock=CLOCK, request=DropRequest(is_forced=True))

    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, s3_server.endpoint_url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "in the middle\n"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()

    assert len(list_all(store, paths.data_prefix).objects) == FILES + 1 - 2 * CHUNK
    (entry,) = read_trash(warehouse)
    assert entry.table.mark.state == "purging"
    with pytest.raises(NotFound, match="is being purged"):
        read_table_config(TableStore(store, paths))

    assert purge_table(TableStore(store, paths), clock=CLOCK, owner="next").state == "purged"
    rest = [info.key.removeprefix(f"{paths.prefix}/_icedb/") for info in list_all(store, f"{paths.prefix}/").objects]
    assert rest == ["table.json"]
    assert warehouse.list_tables() == ()
    created = create_table(TableStore(store, paths), TableConfig.create(name="events"))
    assert created.paths == paths.numbered(2)  # T4
