"""The S3 gateway as a process: it needs the store alone, says where it serves, and lets a file that is being sent end."""

import http.client
import signal
import threading

from icedb_log.store_settings import StoreSettings
from icedb_sim.rigs.gateway_rig import BUCKET, LIMIT_S, LOOPBACK, HandTable
from processes import read_port, service_env, start_talking

SIZE = 24 * 1024 * 1024


def start(tmp_path, **settings):
    env = service_env(
        ICEDB_STORE=f"file://{tmp_path / 'warehouse'}",
        ICEDB_REDIS_URL="redis://127.0.0.1:9/0",  # nobody there: it needs none
        ICEDB_GATEWAY_PORT=0,
        ICEDB_GATEWAY_ICEBERG_PORT=0,
        **settings,
    )
    return start_talking("icedb_gateway", env)


def test_a_stop_lets_a_file_end_and_the_log_has_no_secrets(tmp_path):
    warehouse = StoreSettings(f"file://{tmp_path / 'warehouse'}").open()
    table = HandTable(warehouse, "events").create("d=day(ts)")
    path = table.write("d=2026-01-01", bytes(SIZE))
    table.commit([path])
    process = start(tmp_path)
    try:
        port = read_port(process, "s3")
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=LIMIT_S)
        connection.request("GET", f"/{BUCKET}/{path.replace('/_data/', '/')}?X-Amz-Signature=a-secret")
        answer = connection.getresponse()
        assert answer.read(1000) == bytes(1000)
        process.send_signal(signal.SIGTERM)
        log = []
        reader = threading.Thread(target=lambda: log.append(process.stderr.read()))
        reader.start()
        assert len(answer.read()) == SIZE - 1000
        connection.close()
        assert process.wait(LIMIT_S) == 0
        reader.join(LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)
        process.stderr.close()
    assert '"event": "gateway_stopped"' in log[0]
    assert '"outcome": "ok"' in log[0]
    assert "a-secret" not in log[0]
    assert "Traceback" not in log[0]
