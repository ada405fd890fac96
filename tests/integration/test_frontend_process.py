"""The front end as a process, without Redis: what it acknowledged is there after SIGTERM, and after kill -9."""

import http.client
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from icedb_log.store.object_store import list_all
from icedb_log.store.stores import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from processes import LIMIT_S, read_port, service_env, start_talking


@pytest.fixture
def warehouse(tmp_path):
    warehouse = StoreSettings(f"file://{tmp_path / 'warehouse'}").open()
    (tmp_path / "warehouse").mkdir()
    create_table(warehouse.table("events"), TableConfig.create(name="events"))
    return warehouse


def start(tmp_path, **settings):
    env = service_env(
        ICEDB_STORE=f"file://{tmp_path / 'warehouse'}",
        ICEDB_REDIS_URL="redis://127.0.0.1:9/0",  # nobody there: wake-ups are left to the sweep
        ICEDB_FRONTEND_HTTP_PORT=0,
        ICEDB_FRONTEND_GRPC_PORT=0,
        ICEDB_FRONTEND_ACCESS_LOG="errors",
        **settings,
    )
    return start_talking("icedb_ingest.frontend", env)


def send_until_refused(port):
    """Post batches one after the other until the process does not answer; return what was acknowledged."""
    acknowledged = []
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request(
                "POST", "/v1/tables/events/batches", b'{"a":1}', {"Content-Type": "application/x-ndjson"}
            )
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return acknowledged
        finally:
            connection.close()
        assert answer.status == 202, body
        acknowledged.append(json.loads(body)["batch_id"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_is_staged_however_the_process_ends(tmp_path, warehouse, number):
    process = start(tmp_path)
    try:
        port = read_port(process, "http")
        with ThreadPoolExecutor(4) as pool:
            senders = [pool.submit(send_until_refused, port) for _ in range(4)]
            time.sleep(0.5)
            process.send_signal(number)
            _, log = process.communicate(timeout=LIMIT_S)
            acknowledged = [batch_id for sender in senders for batch_id in sender.result(LIMIT_S)]
    finally:
        process.kill()
        process.wait(LIMIT_S)
    assert len(acknowledged) > 4
    staged = list_all(warehouse.store, warehouse.table("events").paths.staging_prefix).objects
    assert set(acknowledged) <= {info.key.rpartition("/")[2].partition(".")[0] for info in staged}
    if number is signal.SIGTERM:
        assert process.returncode == 0
        assert len(staged) == len(acknowledged)
        assert '"event": "frontend_stopped"' in log
        assert "Traceback" not in log
