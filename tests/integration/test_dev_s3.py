"""The development S3 server as a command: what it says when it cannot start. The rest is in the store's tests."""

import socket
import subprocess
import sys

import pytest
from waiting import LIMIT_S

pytestmark = pytest.mark.s3


def run(*flags):
    command = [sys.executable, "-m", "icedb_local.dev_s3", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_port_that_is_taken_is_named():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = run("--port", str(port), "--bucket", "bucket")
    assert result.returncode == 1
    assert f"127.0.0.1:{port}: cannot listen" in result.stderr
    assert "--port" in result.stderr


def test_a_bucket_that_cannot_be_is_named():
    result = run("--port", "0", "--bucket", "B")
    assert result.returncode == 2
    assert "'B'" in result.stderr


def test_a_bucket_must_be_given():
    result = run("--port", "0")
    assert result.returncode == 2
    assert "--bucket" in result.stderr
