"""The examples of the manual pages run as they stand there, against a directory and without any worker."""

import gzip
import logging
import os
import re
import runpy
import shlex
from pathlib import Path

import pytest
from icedb.cli.app import load_all, run
from icedb.cli.examples import PATH, examples_of
from icedb_log.ingest.staging import list_staged
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = runpy.run_path(str(DOCS / "commands.py"))
NEEDS_A_WORKER = re.compile(r"icedb (merge|vacuum (?!.*--dry-run)|import|.*--wait|.*--watch|.*--insert-query)")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("ICEDB_"):
            monkeypatch.delenv(name)
    url = f"file://{tmp_path}/warehouse"
    monkeypatch.setenv("ICEDB_STORE", url)
    monkeypatch.setenv("ICEDB_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.chdir(tmp_path)
    return ParquetWarehouse(open_warehouse(url))


def write_inputs(folder):
    line = b'{"ts":"2026-01-02T00:00:00Z","event":"view"}\n'
    (folder / "clicks.ndjson.gz").write_bytes(gzip.compress(line * 3))
    (folder / "clicks.csv").write_bytes(b'ts,event\n2026-01-02T00:00:00Z,"two\nlines"\n')
    (folder / "query.sql").write_text("select * from _rows")


def test_the_examples_of_the_python_page(parquet, tmp_path):
    parquet.create("events", "d=day(ts)")
    parquet.commit("events", "select timestamp '2026-01-02' as ts, 'view' as event", partition="d=2026-01-02")
    write_inputs(tmp_path)
    code = "\n".join(blocks("python-client.md", "python"))
    exec(compile(code, "docs/python-client.md", "exec"), {})
    staged = list_staged(parquet.warehouse.table("events")).batches
    assert len(staged) >= 9
    assert {batch.format.partition(".")[0] for batch in staged} == {"ndjson", "csv", "arrow"}


def test_the_examples_of_the_command_page(parquet, tmp_path, capsys):
    write_inputs(tmp_path)
    commands = [
        shlex.split(line, comments=True)[1:]
        for block in blocks("cli.md", "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("icedb ") and not NEEDS_A_WORKER.match(line)
    ]
    assert len(commands) >= 8
    handlers = list(logging.getLogger().handlers)
    try:
        for command in commands:
            code = run(command)
            answer = capsys.readouterr()
            assert code == 0, (command, answer.err)
            if command[:3] == ["table", "create", "events"]:
                parquet.commit("events", "select timestamp '2026-01-02' as ts, 'a' as event", partition="d=2026-01-02")
    finally:
        logging.getLogger().handlers = handlers


def test_each_command_prints_what_its_help_says():
    handlers = list(logging.getLogger().handlers)
    try:
        assert COMMANDS["find_examples"]() == PATH.read_text(), "run `make docs`"
    finally:
        logging.getLogger().handlers = handlers


def test_the_page_of_every_command_is_current_and_each_begins_with_an_example():
    assert COMMANDS["render_page"]() == (DOCS / "commands.md").read_text(), "run `make docs`"
    sections = (DOCS / "commands.md").read_text().split("\n### ")[1:]
    assert len(sections) == sum(len(getattr(each, "commands", " ")) for each in load_all().commands.values())
    for section in sections:
        path, _, text = section.partition("\n")
        assert examples_of(path), path
        assert f"\n\n  $ {path}" in text.partition("Options:")[0], path


def test_messages_and_pages_name_commands_that_exist():
    root = DOCS.parent
    sources = [*root.glob("libs/*/src/**/*.py"), *root.glob("services/*/src/**/*.py"), *DOCS.rglob("*.md")]
    named = {(name, path) for path in sources for name in re.findall(r"`icedb ([a-z]+)\b", path.read_text())}
    assert len({name for name, _ in named}) > 20
    assert not {(name, path) for name, path in named if name not in load_all().commands}
