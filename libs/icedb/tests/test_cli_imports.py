"""What a command imports: its own module, and not what only others need."""

import subprocess
import sys

import icedb_client
import pytest
from icedb.cli import app

QUEUE_AND_ENGINES = {"celery", "kombu", "redis", "duckdb", "grpc", "pyarrow", "sqlglot", "boto3", "botocore"}
SETTINGS = {"asyncio", "pydantic_settings", "dotenv"}
HEAVY = QUEUE_AND_ENGINES | SETTINGS | {"pydantic", "markdown_it", "pygments", "attr"}


def imported(program, *arguments):
    """Return what a program of its own has imported when it ends with 0: whole names, and what they begin with."""
    ask = f"import atexit, sys\natexit.register(lambda: print(*sys.modules))\nsys.argv[0] = 'icedb'\n{program}"
    done = subprocess.run([sys.executable, "-c", ask, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = done.stdout.splitlines()[-1].split()
    return {*names, *(name.split(".")[0] for name in names)}


def icedb(*arguments):
    return imported("from icedb.cli import main; main()", *arguments)


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_the_release_and_the_help_need_no_command_and_nothing_of_the_log_but_errors(argument):
    found = icedb(argument)
    assert not found & HEAVY
    ours = {name for name in found if name.startswith(("icedb.", "icedb_client.", "icedb_log."))}
    assert ours == {
        "icedb.cli",
        "icedb.cli.app",
        "icedb.cli.examples",
        "icedb.cli.output",
        "icedb.cli.runner",
        "icedb_log.errors",
        "icedb_log.units",
    }


@pytest.mark.parametrize("arguments", [("table", "list"), ("status",)])
def test_a_command_that_reads_a_directory_needs_no_queue_and_no_engine(tmp_path, cli_env, arguments):
    cli_env.setenv("ICEDB_STORE", f"file://{tmp_path}/warehouse")
    found = icedb(*arguments)
    assert not found & (QUEUE_AND_ENGINES | SETTINGS)
    assert arguments == ("table", "list") or "icedb_log.erasure.erasure_scope" not in found
    assert "prompt_toolkit" not in found


def test_a_query_loads_nothing_that_changes_a_table(tmp_path, cli_env):
    cli_env.setenv("ICEDB_STORE", f"file://{tmp_path}/warehouse")
    found = icedb("query", "select 1")
    assert "icedb_client.store_reads" in found
    assert not found & {"icedb_log.commit.commit", "icedb_log.changes", "icedb_log.merge", "icedb.cli.table_settings"}


def test_an_ingest_loads_no_queue_where_no_redis_listens(tmp_path, cli_env):
    cli_env.setenv("ICEDB_STORE", f"file://{tmp_path}/warehouse")
    (tmp_path / "events.ndjson").write_text('{"n": 1}\n')
    icedb("table", "create", "events")
    found = icedb("ingest", "events", str(tmp_path / "events.ndjson"))
    assert not found & (QUEUE_AND_ENGINES | SETTINGS | {"opentelemetry"})


def test_connecting_to_a_directory_needs_no_queue_and_no_engine():
    assert not imported("from icedb import connect; connect('.')") & (
        QUEUE_AND_ENGINES | SETTINGS | {"pyspark", "typer", "rich"}
    )


def test_an_append_and_a_query_load_the_engine_and_neither_spark_nor_a_queue(tmp_path):
    program = (
        f"from icedb import connect; table = connect({str(tmp_path)!r}).create_table('t'); "
        "table.append([{'n': 1}]); table.merge(); table.query('select n from t').relation.fetchall()"
    )
    found = imported(program)
    assert {"duckdb", "pyarrow"} <= found
    assert not found & {"pyspark", "py4j", "celery", "kombu", "redis", "grpc", "boto3", "botocore", "typer"}


def test_importing_the_client_loads_what_is_asked_for():
    assert not imported("import icedb_client") & {*HEAVY, "icedb_log", "orjson", "typer", "rich"}
    assert not imported("from icedb_client import Client") & (QUEUE_AND_ENGINES | SETTINGS | {"typer", "rich"})


def test_the_help_fits_on_one_screen_and_names_every_command_in_its_group(run_icedb):
    lines = run_icedb("--help").splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line in {group for group, _, _ in app._COMMANDS.values()}] == [
        "tables",
        "write",
        "read",
        "maintain",
        "repair",
    ]
    for name, (_, _, words) in app._COMMANDS.items():
        assert f"  {name:12}{words}" in lines
        assert app._load(name).help, name


def test_near_names_are_suggested(run_icedb):
    assert "Did you mean 'status'?" in run_icedb("statsu", code=2)
    assert "No such command 'nothing'." in run_icedb("nothing", code=2)


def test_what_the_package_offers_is_there_when_somebody_asks_for_it():
    assert sorted(icedb_client._HOMES) == sorted(icedb_client.__all__)
    for name in icedb_client.__all__:
        assert getattr(icedb_client, name).__name__ == name
    assert set(icedb_client.__all__) <= set(dir(icedb_client))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = icedb_client.Nothing
