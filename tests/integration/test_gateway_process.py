"""The S3 gateway as a process: it needs the store alone, says where it serves, and lets a file that is being sent end."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading

from icedb_log.store.stores import StoreSettings
from icedb_sim.rigs.gateway_rig import BUCKET, LIMIT_S, LOOPBACK, HandTable

SIZE = 24 * 1024 * 1024


def start(tmp_path, **settings):
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ICEDB_", "AWS_"))}
    env = inherited | {
        "ICEDB_STORE": f"file://{tmp_path / 'warehouse'}",
        "ICEDB_REDIS_URL": "redis://127.0.0.1:9/0",  # nobody there: it needs none
        "ICEDB_GATEWAY_PORT": "0",
        **settings,
    }
    return subprocess.Popen([sys.executable, "-m", "icedb_gateway"], env=env, stderr=subprocess.PIPE, text=True)


def read_port(process):
    for line in process.stderr:
        found = re.search(r'"s3": "http://127.0.0.1:(\d+)"', line)
        if found:
            return int(found[1])
    raise AssertionError("the gateway ended")


def test_a_stop_lets_a_file_end_and_the_log_has_no_secrets(tmp_path):
    warehouse = StoreSettings(f"file://{tmp_path / 'warehouse'}").open()
    table = HandTable(warehouse, "events").create("d=day(ts)")
    path = table.write("d=2026-01-01", bytes(SIZE))
    table.commit([path])
    process = start(tmp_path)
    try:
        port = read_port(process)
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


def test_without_an_access_file_it_serves_this_machine_only(tmp_path):
    (tmp_path / "warehouse").mkdir()
    process = start(tmp_path, ICEDB_GATEWAY_HOST="0.0.0.0")
    _, log = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "ICEDB_ACCESS_FILE is not set" in log
    assert "Traceback" not in log
