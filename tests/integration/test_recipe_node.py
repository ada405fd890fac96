"""The Node.js client of docs/recipes/node against a real service: the same protocol by another implementation of gRPC."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.access_rig import Authority, token_entry, write_access
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from processes import service_env
from snapshot_services import serving
from waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "recipes" / "node"
TOKEN = "a-token-of-the-tests-" + "x" * 22


def find_node():
    """Return Node.js, installed with its packages by `make node`, or what this environment has."""
    if not (EXAMPLE / "node_modules" / ".installed").exists():
        subprocess.run(["make", "--no-print-directory", "node"], cwd=ROOT, check=True, timeout=300)
    node = shutil.which("node", path=f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}")
    assert node, "no Node.js: `make node` installs it"
    return node


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    parquet = ParquetWarehouse(open_warehouse(f"file://{tmp_path_factory.mktemp('node')}"))
    parquet.create("events", "country")
    for name in ("clicks", "pages"):
        parquet.create(name)
    parquet.create("salaries")
    parquet.commit(
        "events", "select 1.5 as amount", partition="country=__HIVE_DEFAULT_PARTITION__", schema={"amount": "DOUBLE"}
    )
    commit_of_another_writer(parquet)
    return parquet


def commit_of_another_writer(parquet):
    """Commit a file of more than 2^53 bytes, of which nobody says how many rows it has."""
    paths, now_ms = parquet.warehouse.table("events").paths, parquet.clock.now_ms()
    marker = FileMarker(paths.data_key(partition="country=at", file_id="ab"), 2**53 + 1, now_ms)
    log = LogFile(time_ms=now_ms, schema={"amount": "DOUBLE"}, markers=(marker,), commit_id="c0ffee")
    parquet.warehouse.store.put_if_absent(
        paths.log_key(time_ms=now_ms, commit_id="c0ffee", is_merged=False), encode_log_file(log)
    )


@pytest.fixture(scope="module")
def serve(parquet):
    with serving(parquet.warehouse) as serve:
        yield serve


@pytest.fixture(scope="module")
def address(serve):
    return f"127.0.0.1:{serve()}"


@pytest.fixture(scope="module")
def node():
    return find_node()


@pytest.fixture
def start():
    """Start Node.js; what still runs at the end is killed."""
    with ExitStack() as stack:

        def start(node, address, *arguments, **settings):
            env = service_env()
            process = subprocess.Popen(
                [node, *arguments],
                cwd=EXAMPLE,
                env=env | {"ICEDB_SNAPSHOT_ADDRESS": address, **settings},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def run(start, node):
    """Run the example to its end; return the documents that it printed, or for another code its error."""

    def run(address, *arguments, code=0, **settings):
        process = start(node, address, "example.mjs", *arguments, **settings)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, err
        return [json.loads(line) for line in out.splitlines()] if not code else err.strip()

    return run


def test_tables_come_page_by_page(run, address):
    assert run(address, "tables") == ["clicks", "events", "pages", "salaries"]


def test_a_snapshot_with_what_is_absent(run, address):
    (found,) = run(address, "snapshot", "events")
    assert found["schema"] == {"amount": "DOUBLE"}
    assert (found["file_count"], found["is_stable"]) == ("2", False)
    assert int(found["size_bytes"]) == sum(int(file["size_bytes"]) for file in found["files"]) > 2**53
    assert not {"row_count", "as_of_ms", "horizon_ms"} & found.keys()
    null, unknown = found["files"]
    assert (unknown["partition"], "row_count" in unknown, unknown["size_bytes"]) == (
        {"country": "at"},
        False,
        str(2**53 + 1),
    )
    assert (null["partition"], null["row_count"], "presigned_url" in null) == ({"country": None}, "1", False)
    assert isinstance(null["created_ms"], int)


def test_errors_have_code_kind_and_remedy(run, address):
    assert re.match(r"NOT_FOUND TableNotFound: .*'nope' does not exist", run(address, "snapshot", "nope", code=1))
    assert re.match(r"INVALID_ARGUMENT InvalidRequest: .*nope", run(address, "snapshot", "events", "nope = 1", code=1))


def test_watch_until_the_first_change_and_the_code_of_the_page(start, node, address, parquet):
    page = (ROOT / "docs" / "recipes" / "node.md").read_text()
    (code,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    pasted = start(
        node,
        address,
        "--input-type=module",
        "--eval",
        code.replace("127.0.0.1:50051", address).replace("event = 'b'", "amount < 2"),
    )
    watching = start(node, address, "example.mjs", "watch", "clicks", "2")
    first = json.loads(watching.stdout.readline())
    assert (first["table"], first["file_count"]) == ("clicks", "0")
    assert "last_commit_ms" not in first
    made = parquet.commit("clicks", "select 1.5 as amount", schema={"amount": "DOUBLE"})
    out, err = watching.communicate(timeout=LIMIT_S)
    assert watching.returncode == 0, err
    second = json.loads(out)
    assert (second["file_count"], second["row_count"], second["last_commit_ms"]) == ("1", "1", made.time_ms)
    out, err = pasted.communicate(timeout=LIMIT_S)
    assert pasted.returncode == 0, err
    assert {"clicks", "events", "pages", "salaries"} <= set(out.splitlines())
    assert "rows not known" in out


def test_a_token_over_tls_shows_what_it_may_read(run, serve, tmp_path):
    authority = Authority()
    ca = authority.write(tmp_path / "ca.pem")
    cert, key = authority.issue(tmp_path, "server", dns=("localhost",))
    access = write_access(
        tmp_path / "access.json",
        {
            "identities": {"reports": {"tokens": [token_entry(TOKEN)]}},
            "grants": [{"identities": ["reports"], "tables": ["events", "pages"], "verbs": ["read"]}],
        },
    )
    port = serve(access_file=str(access), tls_cert_file=str(cert), tls_key_file=str(key))
    settings = {"ICEDB_TOKEN": TOKEN, "ICEDB_CA_FILE": str(ca)}
    assert run(f"localhost:{port}", "tables", **settings) == ["events", "pages"]
    refused = run(f"localhost:{port}", "snapshot", "salaries", code=1, **settings)
    assert re.match(r"NOT_FOUND TableNotFound: .*'salaries' does not exist", refused)
    wrong = run(f"localhost:{port}", "tables", code=1, **{**settings, "ICEDB_TOKEN": "wrong"})
    assert wrong.startswith("UNAUTHENTICATED Unauthenticated: ")
    assert "over TLS only" in run(f"localhost:{port}", "tables", code=1, ICEDB_TOKEN=TOKEN)
