"""The front end as a process, without Redis: what it acknowledged is there after SIGTERM, and after kill -9."""

import http.client
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from icedb_log.ingest.staging import list_all_staged
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from processes import LIMIT_S, read_port, service_env, start_talking
from waiting import wait_until


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
        ICEDB_ACCESS_LOG="errors",
        **settings,
    )
    return start_talking("icedb_ingest.frontend", env)


def send_until_refused(port, acknowledged):
    """Post batches one after the other until the process does not answer; add what was acknowledged."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request(
                "POST", "/v1/tables/events/batches", b'{"a":1}', {"Content-Type": "application/x-ndjson"}
            )
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()
        assert answer.status == 202, body
        acknowledged.append(json.loads(body)["batch_id"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_is_staged_however_the_process_ends(tmp_path, warehouse, number):
    process, acknowledged = start(tmp_path), []
    try:
        port = read_port(process, "http")
        with ThreadPoolExecutor(4) as pool:
            senders = [pool.submit(send_until_refused, port, acknowledged) for _ in range(4)]
            wait_until(lambda: len(acknowledged) > 20, "it is at work")
            process.send_signal(number)
            _, log = process.communicate(timeout=LIMIT_S)
            for sender in senders:
                sender.result(LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)
    staged = list_all_staged(warehouse.table("events")).batches
    assert set(acknowledged) <= {batch.batch_id for batch in staged}
    if number is signal.SIGTERM:
        assert process.returncode == 0
        assert len(staged) == len(acknowledged)
        assert '"event": "frontend_stopped"' in log
        assert "Traceback" not in log
