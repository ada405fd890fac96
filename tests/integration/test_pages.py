"""Pages of a running stack, typed in as they stand, in an empty home: every block that nobody else runs.

One stack for all pages, without Spark: its workers run units of work in their own processes. Who installs first, and has
no stack: ``deploy/tests/test_deploy_wheels.py``.
"""

import dataclasses
import gzip
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from icedb.cli.app import run
from icedb_client.duck import load_httpfs
from icedb_local.ports import LOOPBACK
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import LARGE, StackLayout, StackPorts
from page_blocks import Typist, read_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

ELSEWHERE = {
    "docs/backup.md": "tests/integration/test_backup_s3.py",  # its program; its commands run here
    "docs/cli.md": "tests/integration/test_cli_docs.py",
    "docs/commands.md": "tests/integration/test_cli_docs.py",
    "docs/embedded.md": "deploy/tests/test_deploy_wheels.py",
    "docs/iceberg.md": "tests/integration/test_iceberg_recipes.py",
    "docs/install.md": "deploy/tests/test_deploy_wheels.py",
    "docs/python-client.md": "tests/integration/test_cli_docs.py",
    "docs/recipes/clickhouse.md": "tests/integration/test_recipes.py",
    "docs/recipes/duckdb.md": "tests/integration/test_recipes.py",
    "docs/recipes/files.md": "tests/integration/test_recipes.py",
    "docs/recipes/grpcurl.md": "tests/integration/test_recipes.py",
    "docs/recipes/kafka.md": "tests/integration/test_recipe_kafka.py",
    "docs/recipes/shippers.md": "tests/integration/test_recipe_shippers.py",
    "docs/recipes/typescript.md": "tests/integration/test_recipe_typescript.py",
    "docs/recipes/node.md": "tests/integration/test_recipe_node.py",
    "docs/recipes/pandas.md": "tests/integration/test_recipes.py",
    "docs/recipes/polars.md": "tests/integration/test_recipes.py",
    "docs/recipes/pyarrow.md": "tests/integration/test_recipes.py",
    "docs/spark-source.md": "tests/integration/spark/test_spark_source.py",
}
"""Pages that other tests run."""

TYPED = {
    "README.md": {},
    "docs/local-stack.md": {},
    "docs/access.md": {},
    "docs/partitions.md": {"events": "visits"},
    "docs/guards.md": {},
    "docs/snapshot-service.md": {},
    "docs/gateway.md": {},
    "docs/audit.md": {},
    "docs/orphans.md": {},
    "docs/views.md": {"events": "seen"},
    "docs/backup.md": {},
    "docs/trash.md": {"clicks": "old", "clicks2": "older"},
    "docs/repair.md": {},
    "docs/change-rows.md": {"clicks": "sums"},
    "docs/erasure.md": {},
}
"""Pages that run here, in this order, each with the names that its tables have here: a page that makes or drops a table
has one of its own."""

PRINTED = {
    "README.md": r'"table":"clicks","status":"staged"',
    "docs/access.md": "shop_orders",
    "docs/local-stack.md": "clicks",
    "docs/partitions.md": r"d=2023-07-01/u=x",
    "docs/guards.md": r"q3",
    "docs/gateway.md": r"signup",
    "docs/erasure.md": r"would erase \d rows",
}
"""What a page prints, among else."""

NOT_TYPED = {
    r"vi ": "an editor",
    r"make up|python -m icedb_console": "it is the stack of these tests",
    r"grpcurl ": "in no registry of packages; test_recipes.py sends the same calls by reflection",
    r"\{": "what grpcurl prints",
    r"SELECT event, count\(\) FROM s3\(": "ClickHouse: test_clickhouse_engine.py",
    r"icedb table drop \w+ --purge( +#.*)?$": "asks a person for the name",
    r"icedb rebuild \w+ --take .*(?<!--dry-run)$": "asks a person; tests/integration/spark/test_rebuild_of_a_real_table.py",
}
"""Commands that nobody can type in here, and why."""

SHOWN = {
    "docs/change-rows.md sql": "merge queries, which its commands take; test_spark_row_changes.py",
    "docs/console.md": "the stack of these tests",
    "docs/cost.md": "asks a Prometheus; test_cli_status.py",
    "docs/import.md": "a bucket of Parquet files; tests/integration/spark/test_import_s3.py",
    "docs/http-tables.md": "test_frontend_tables.py, services/console/tests/test_console_query_api.py",
    "docs/ingest.md": "its endpoints have tests of their own: test_frontend_http.py, _grpc, _celery, _webhooks",
    "docs/insert-query.md": "an insert query; tests/integration/spark/test_spark_insert_query.py",
    "docs/nested.md": "a table whose paths are promoted; libs/icedb/tests/test_promoted.py",
    "docs/repair.md text": "what a command prints",
    "docs/traces.md": "variables",
}
"""Blocks that are shown and not typed in, and why."""

FIRST_LINE_ONLY = re.compile(r"icedb (watch|status .*--watch)(?!.*--count)")
"""Commands that go on until Ctrl-C."""
ROWS = [
    {"ts": f"{day}T03:04:05Z", "event": event, "user_id": user, "amount": amount}
    for day in ("2023-06-01", "2023-06-02", "2023-07-01", "2026-01-02")
    for event, user, amount in (("signup", "a1", 5), ("view", "x", 20), ("view", "u-4711", None))
]


@dataclasses.dataclass(frozen=True, slots=True)
class PagesLayout(StackLayout):
    """The stack of ``make up``, with workers that start in two seconds."""

    def programs(self):
        light = ("-m", "icedb_local.chaos.light_worker")
        return tuple(
            dataclasses.replace(each, command=(each.command[0], *light, each.name))
            if each.name in ("ingest", "merger")
            else each
            for each in StackLayout.programs(self)
            if each.name not in (LARGE, "enqueue")
        )


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    layout = PagesLayout(folder / ".run", "local", StackPorts(), has_frontend=True)
    with LocalStack(layout, choose_ports=lambda _: StackPorts.find_free()) as stack:
        yield stack.layout


@pytest.fixture
def settings(stack, monkeypatch):
    """The environment of somebody who typed ``source .run/env``, in an empty home and beside their own files."""
    folder = stack.run_dir.parent
    for name in list(os.environ):
        if name.startswith(("ICEDB_", "AWS_", "XDG_", "PYICEBERG_")):
            monkeypatch.delenv(name)
    (folder / "home").mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name, value in stack.client_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "clicks.ndjson").write_text(text)
    (folder / "clicks.ndjson.gz").write_bytes(gzip.compress(text.encode()))
    return monkeypatch


class Pages:
    """Types pages in. Commands of ``icedb`` alone run in this process: each process of its own takes half a second."""

    def __init__(self, stack, capfd):
        self.stack, self.capfd, self.folder = stack, capfd, stack.run_dir.parent
        self.typist = Typist(self.folder, os.environ, python=sys.executable)

    def prepare(self, table):
        if (self.stack.run_dir / "warehouse" / table).exists():
            return
        level = " --partition 'u=truncate[1](user_id)'" if table == "visits" else ""
        self.icedb(f"icedb table create {table} --partition 'd=day(ts)'{level} --sort event,ts")
        self.icedb(f"icedb ingest {table} clicks.ndjson --wait")

    def icedb(self, command):
        handlers = list(logging.getLogger().handlers)
        self.capfd.readouterr()
        try:
            code = run(shlex.split(command, comments=True)[1:])
        finally:
            logging.getLogger().handlers = handlers
        out, err = self.capfd.readouterr()
        assert code == 0, (command, err)
        return out

    def run(self, command, block):
        if FIRST_LINE_ONLY.match(command):
            return self.read_first_line(command)
        if command.startswith("icedb ") and not re.search(r"[|<>$&;]", re.sub(r"'[^']*'|\"[^\"$]*\"", "", command)):
            return self.icedb(command)
        return self.typist.run(command, block)

    def read_first_line(self, command):
        words = shlex.split(command, comments=True)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=self.folder) as process:
            line = process.stdout.readline()
            process.send_signal(signal.SIGINT)
        assert (bool(line), process.returncode) == (True, 130), command
        return line

    def adapt(self, block, names):
        """Return a block with the ports and the folders of these tests, and with the tables that a page has here."""
        code = block.code
        for field, port in dataclasses.asdict(StackPorts()).items():
            code = code.replace(f"{LOOPBACK}:{port}", f"{LOOPBACK}:{getattr(self.stack.ports, field)}")
        for place in ("/etc/icedb", "/mnt/", "/srv/"):
            code = code.replace(place, f"{self.folder}{place}")
        for name, mine in names.items():
            code = re.sub(rf"\b{name}\b(?!\.ndjson)", mine, code)
        return dataclasses.replace(block, code=code)


@pytest.fixture
def pages(stack, settings, capfd):
    pages = Pages(stack, capfd)
    with pages.typist:
        yield pages


def run_sql(block):
    """Run a page's statements in DuckDB, whose extension is loaded from its package."""
    with duckdb.connect() as con:
        load_httpfs(con)
        for statement in re.sub(r"INSTALL httpfs; LOAD httpfs;", "", block.code).split(";\n"):
            if statement.strip():
                answer = con.execute(statement.strip().removesuffix(";")).fetchall()
    return str(answer)


def is_shown(page, block):
    return page in SHOWN or f"{page} {block.language}" in SHOWN


@pytest.mark.e2e
@pytest.mark.redis
@pytest.mark.parametrize("page", TYPED)
def test_a_page_runs_as_it_stands(pages, page):
    names = TYPED[page]
    if page not in ("README.md", "docs/views.md"):
        pages.prepare(names.get("events", "events"))
    if page == "docs/trash.md":
        pages.prepare("old")
        pages.prepare("older")
    for block in read_blocks(ROOT / page):
        if block.language == "toml":  # what a person writes with an editor
            (pages.folder / "etc" / "icedb").mkdir(parents=True)
            (pages.folder / "etc" / "icedb" / "access.toml").write_text(block.code)
    said = ""
    for block in blocks_to_type(page):
        block = pages.adapt(block, names)
        if block.language == "sql":
            said += run_sql(block) if can_type(block.code) else ""
        elif block.language == "python":
            said += pages.typist.type(block)
        else:
            for command in block.commands:
                if can_type(command):
                    said += pages.run(fill_in(pages, command), block)
    assert re.search(PRINTED.get(page, "."), said), said


def can_type(command):
    return not any(re.match(each, command) for each in NOT_TYPED)


def fill_in(pages, command):
    """Return a command with what a page cannot know: the id of an erasure."""
    example = "019b7d3c-0000-7000-8000-000000000001"
    if example not in command:
        return command
    (erasure, *_) = json.loads(pages.icedb("icedb erasure list events -o json"))["erasures"]
    return command.replace(example, erasure["id"])


def blocks_to_type(page):
    blocks = [block for block in read_blocks(ROOT / page) if block.language in ("sh", "python", "sql")]
    if page == "README.md":  # from `make up` on; what comes before needs no stack
        at = next(n for n, block in enumerate(blocks) if "make up" in block.code)
        blocks = blocks[at:]
    if page == "docs/backup.md":
        blocks = [block for block in blocks if block.language == "sh"]
    return [block for block in blocks if not is_shown(page, block)]


def test_every_block_runs_somewhere_or_is_known_to_be_shown():
    pages = [
        ROOT / "README.md",
        ROOT / "deploy" / "README.md",
        *sorted(DOCS.glob("*.md")),
        *sorted(DOCS.glob("recipes/*.md")),
    ]
    known = {*TYPED, *ELSEWHERE}
    left = [
        block.place
        for path in pages
        for block in read_blocks(path)
        if block.language and (page := str(path.relative_to(ROOT))) not in known and not is_shown(page, block)
    ]
    assert left == []
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())
    assert all((ROOT / name.split()[0]).exists() for name in SHOWN)
