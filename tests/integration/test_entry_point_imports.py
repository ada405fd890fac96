"""What a service imports before it serves: what it works with, and not what only others need.

Modules are counted, not seconds. What the command line and the client import: ``test_cli_imports.py`` of the client.
"""

import subprocess
import sys

import pytest

UNUSED = {"markdown_it", "pandas", "IPython"}
ENGINES = {"pyspark", "duckdb", "pyarrow", "numpy", "sqlglot"}
QUEUE = {"celery", "kombu", "redis", "pottery", "opentelemetry"}  # redis imports the last where it is installed
TERMINAL = {"rich", "pygments", "attr", "typer"}
NOT_NEEDED = {
    "icedb_snapshot.__main__": ENGINES | QUEUE | TERMINAL | {"boto3", "botocore"},
    "icedb_gateway.__main__": ENGINES | QUEUE | TERMINAL | {"boto3", "grpc"},
    "icedb_janitor.__main__": ENGINES | TERMINAL | {"boto3", "botocore", "grpc"},
    "icedb_ingest.frontend.__main__": ENGINES | TERMINAL | {"boto3", "botocore"},
    "icedb_service.beat": ENGINES | TERMINAL | {"boto3", "botocore", "grpc"},
    "icedb_ingest.__main__": ENGINES | TERMINAL | {"boto3", "botocore", "grpc"},
    "icedb_merger.__main__": ENGINES | TERMINAL | {"boto3", "botocore", "grpc"},
}


@pytest.mark.parametrize("module", NOT_NEEDED)
def test_a_service_imports_what_it_works_with(module):
    ask = f"import sys, {module}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    found = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not found & (NOT_NEEDED[module] | UNUSED)


def test_logs_leave_rich_as_it_was():
    ask = (
        "import rich, rich.text\nimport icedb_service.logs, sys\nassert sys.modules['rich'] is rich\nimport rich.table"
    )
    subprocess.run([sys.executable, "-c", ask], check=True)
    ask = "import icedb_service.logs, sys\nassert 'rich' not in sys.modules\nimport rich.table"
    subprocess.run([sys.executable, "-c", ask], check=True)
