"""README is run as it stands: first its code, then its commands, in an empty folder and without a server."""

import json
import logging
import re
import shlex
from pathlib import Path

import pytest
from icedb.cli.app import run
from icedb_log.ingest.staging import list_staged
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.frontend_rig import start_rig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SENDER = "from icedb_client import Client\n"
ROW = {"ts": "2026-01-02T03:04:05Z", "event": "view", "user_id": "u1"}


def blocks(language):
    return [code for name, code in BLOCK.findall(README) if name == language]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICEDB_STORE", f"file://{tmp_path}/lake")
    handlers = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers = handlers


def test_it_is_short_and_the_first_query_comes_early():
    assert len(README.splitlines()) <= 120
    before, _, after = README.partition(blocks("python")[0])
    assert after
    read = [line for line in (before + blocks("python")[0]).splitlines() if line and not line.startswith(("```", "!["))]
    assert len(read) <= 15


def test_its_code_runs(capsys):
    names = {}
    for code in blocks("python"):
        if not code.startswith(SENDER):
            exec(compile(code, "README.md", "exec"), names)
    assert "click" in capsys.readouterr().out
    assert len(names["frame"]) == 1001
    assert names["events"].snapshot().row_count == 1002
    exec(compile(blocks("python")[0], "README.md", "exec"), names)  # again, as beginners do


def test_its_sender_sends(tmp_path):
    rig = start_rig(tmp_path / "store")
    try:
        create_table(rig.warehouse.table("clicks"), TableConfig.create(name="clicks"))
        (code,) = (code for code in blocks("python") if code.startswith(SENDER))
        assert "127.0.0.1:8088" in code
        exec(compile(code.replace("8088", str(rig.frontend.port)), "README.md", "exec"), {})
        assert len(list_staged(rig.warehouse.table("clicks")).batches) == 1
    finally:
        rig.frontend.stop()


def test_its_commands_run(tmp_path, capsys):
    lines = [json.dumps({**ROW, "event": event}) + "\n" for event in ("view", "view", "click")]
    (tmp_path / "clicks.ndjson").write_text("".join(lines))
    commands = [
        shlex.split(line, comments=True)[1:]
        for code in blocks("sh")
        for line in code.splitlines()
        if line.startswith("icedb ")
    ]
    assert len(commands) >= 6
    answers = {}
    for command in commands:
        code = run(command)
        answer = capsys.readouterr()
        assert code == 0, (command, answer.err)
        answers[command[0]] = answer.out
    assert re.search(r"view\W+2\b[\s\S]*click\W+1\b", answers["query"])


def test_its_targets_of_make_are_there():
    made = {line.split()[1] for code in blocks("sh") for line in code.splitlines() if line.startswith("make ")}
    assert made >= {"up", "demo", "wheels"}
    assert made <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
