"""The ``icedb`` command, in this process or in one of its own, on a warehouse in a directory."""

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from icedb.cli.app import run
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from processes import service_env
from waiting import LIMIT_S

ICEDB = Path(sys.executable).parent / "icedb"
NO_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def program():
    """Path of the command."""
    return ICEDB


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/warehouse"


@pytest.fixture
def icedb(url, monkeypatch, capfdbinary):
    """Runs the command in this process (a process of its own costs a second): same entry, same output."""

    def icedb(*arguments, code=0, stdin=None, **environment):
        settings = {"ICEDB_STORE": url, "ICEDB_REDIS_URL": NO_REDIS, "COLUMNS": "80", **environment}
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.startswith(("ICEDB_", "AWS_")):
                    patch.delenv(name)
            for name, value in settings.items():
                if value is not None:
                    patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin or b"")))
            capfdbinary.readouterr()
            try:
                found = run(arguments)
            finally:
                root.handlers, root.level = handlers, level
        captured = capfdbinary.readouterr()
        answer = Answer(captured.out.decode(), captured.err.decode())
        assert found == code, (found, answer.out, answer.err)
        return answer

    return icedb


@pytest.fixture
def process(url):
    """Runs the command as a process of its own."""

    def process(*arguments, code=0, stdin=None, **environment):
        settings = {"ICEDB_STORE": url, "ICEDB_REDIS_URL": NO_REDIS, "COLUMNS": "80", **environment}
        done = subprocess.run(
            [ICEDB, *arguments],
            check=False,
            input=stdin,
            capture_output=True,
            timeout=LIMIT_S,
            env=service_env(**{name: value for name, value in settings.items() if value is not None}),
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == code, (done.returncode, done.stdout.decode(), done.stderr.decode())
        return Answer(done.stdout.decode(), done.stderr.decode())

    return process


class Answer:
    def __init__(self, out, err):
        self.out = out
        self.err = err

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self):
        """The one error line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def parquet(url):
    return ParquetWarehouse(open_warehouse(url))
