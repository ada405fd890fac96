"""What a command imports: its own module, and not what only others need."""

import subprocess
import sys

import icedb_client
import pytest

ASK = """
import sys
from icedb_client.cli.app import run
code = run(sys.argv[1:])
print(code, *sorted({name.split(".")[0] for name in sys.modules}))
"""


def imported(*arguments):
    done = subprocess.run([sys.executable, "-c", ASK, *arguments], capture_output=True, text=True, check=True)
    code, *modules = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stderr
    return set(modules)


def test_the_release_is_printed_without_what_works_with_tables():
    assert not imported("version") & {"boto3", "celery", "redis", "duckdb", "grpc", "pyarrow", "sqlglot"}


def test_a_command_that_reads_the_store_needs_no_queue_and_no_engine(tmp_path, cli_env):
    cli_env.setenv("ICEDB_STORE", f"file://{tmp_path}/warehouse")
    assert not imported("table", "list") & {"celery", "redis", "duckdb", "grpc", "pyarrow"}


def test_every_command_is_in_the_help_and_near_names_are_suggested(run_icedb):
    shown = run_icedb("--help")
    for name in ("table", "view", "ingest", "import", "partitions", "rebuild", "version"):
        assert f" {name} " in shown
    assert "Did you mean 'status'?" in run_icedb("statsu", code=2)


def test_what_the_package_offers_is_there_when_somebody_asks_for_it():
    assert sorted(icedb_client._HOMES) == sorted(icedb_client.__all__)
    for name in icedb_client.__all__:
        assert getattr(icedb_client, name).__name__ == name
    assert set(icedb_client.__all__) <= set(dir(icedb_client))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = icedb_client.Nothing
