"""deploy/aws: each service does its work with the rights of its own policy, and needs every statement of it.

A stack on an S3 server that refuses what the caller's policy does not allow. What the command does has all rights: it
stands for a person with the keys of the bucket.
"""

import dataclasses
import json
import shlex
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from icedb.cli.app import run
from icedb_client import Client
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import LARGE, S3_ROOT, StackLayout, StackPorts
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "deploy" / "aws" / "policies"
ROLE_OF = {LARGE: "ingest", "enqueue": "frontend"}
SERVICES = {path.stem for path in POLICIES.glob("*.json")}

UNUSED = {
    ("janitor", "EndUploads"),  # of uploads that somebody left a day ago
    ("console", "Write"),  # actions of its users: test_console_forms.py
    ("console", "Delete"),
}
"""Statements that nothing here asks for."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicedLayout(StackLayout):
    """The local stack, each service with an access key of its own."""

    @property
    def seen(self):
        return self.run_dir / "seen.jsonl"

    def programs(self):
        return tuple(self.police(each) for each in StackLayout.programs(self) if each.name not in (LARGE, "enqueue"))

    def police(self, program):
        if program.name == "s3":
            rig = str(ROOT / "tests" / "rigs" / "policed_s3.py")
            more = ("--policies", str(POLICIES), "--seen", str(self.seen), "--prefix", S3_ROOT)
            return dataclasses.replace(program, command=(sys.executable, rig, *program.command[3:], *more))
        role = ROLE_OF.get(program.name, program.name)
        env = program.env | {"AWS_ACCESS_KEY_ID": role}
        if program.name in ("ingest", "merger"):
            light = ("-m", "icedb_local.chaos.light_worker")
            return dataclasses.replace(program, command=(program.command[0], *light, program.name), env=env)
        return dataclasses.replace(program, env=env)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    overrides = {
        "ICEDB_FRONTEND_LINGER_MS": "0",
    }
    layout = PolicedLayout(folder / ".run", "s3", StackPorts(), overrides, has_frontend=True, has_console=True)
    with LocalStack(layout, choose_ports=lambda _: StackPorts.find_free()) as stack:
        yield stack.layout


@pytest.fixture
def icedb(stack, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in stack.client_env().items():
        monkeypatch.setenv(name, value)

    def icedb(line):
        code = run(shlex.split(line))
        out, err = capfd.readouterr()
        assert code == 0, (line, err, read_refused(stack))
        return out

    return icedb


def read_seen(stack):
    return [json.loads(line) for line in stack.seen.read_text().splitlines()]


def read_refused(stack):
    return [each for each in read_seen(stack) if each["sid"] is None]


def sids():
    policies = {path.stem: json.loads(path.read_text())["Statement"] for path in POLICIES.glob("*.json")}
    return {(name, each["Sid"]) for name, statements in policies.items() for each in statements}


def post(stack, table, rows, **headers):
    body = "\n".join(map(json.dumps, rows)).encode()
    headers = {"Content-Type": "application/x-ndjson"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    request = urllib.request.Request(f"{stack.http_url}/v1/tables/{table}/batches", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["batch_id"]


def get(url, document=None):
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"} if body else {})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def rows_of(number):
    return [{"ts": f"2026-01-0{1 + n % 3}T00:00:00Z", "user_id": f"u{n}", "n": number} for n in range(6)]


def test_there_is_a_policy_for_each_account_that_needs_one():
    accounts = set()
    for path in (ROOT / "deploy" / "kubernetes" / "base").glob("*.yaml"):
        accounts |= {
            each["metadata"]["name"]
            for each in yaml.safe_load_all(path.read_text())
            if each["kind"] == "ServiceAccount"
        }
    assert {f"icedb-{name}" for name in SERVICES | {"beat", "ingest-large"}} == accounts
    for path in POLICIES.parent.rglob("*.json"):
        assert json.loads(path.read_text())["Version"] == "2012-10-17"


@pytest.mark.soak
@pytest.mark.s3
@pytest.mark.redis
@pytest.mark.timeout(900)
def test_each_service_works_with_its_own_policy_and_needs_all_of_it(stack, icedb):
    config = TableConfig.create(
        name="clicks", partition=(PartitionField.parse("d=day(ts)"),), sort=("ts",), declared={"ts": "TIMESTAMP"},
        data_grace_ms=60_000, log_grace_ms=60_000, orphan_age_ms=600_000, merge_fan_in=2,
    )  # fmt: skip
    place = stack.store_settings.open().table("clicks")
    create_table(place, config)
    put = json.dumps({"partition": ["d=day(ts)"]}).encode()
    request = urllib.request.Request(
        f"{stack.http_url}/v1/tables/made", put, {"Content-Type": "application/json"}, method="PUT"
    )
    assert urllib.request.urlopen(request).status == 201
    with Client() as client:
        for number in range(4):
            post(stack, "clicks", rows_of(number), Idempotency_Key=f"batch {number}")
            client.wait_committed("clicks", [post(stack, "clicks", rows_of(number))], timeout_ms=240_000)
        post(stack, "clicks", [{"ts": "never"}])
        icedb("merge clicks --full --wait")
        icedb("delete clicks --where \"user_id = 'u1'\" --yes")
        icedb("partitions clicks d=2026-01-03 --drop --yes")
        snapshot = client.snapshot("clicks")
        with client.reading("clicks") as held:
            assert held is not None and snapshot.files
    icedb("vacuum clicks --wait")
    for url in (f"{stack.s3_url}/icedb?list-type=2", f"{stack.iceberg_url}/v1/config"):
        assert get(url)
    assert get(f"{stack.console_url}/tables/clicks")
    rows = json.loads(get(f"{stack.console_url}/v1/query", {"sql": "select count(*) from clicks"}))["rows"]
    assert rows[0][0] > 0
    assert get(f"{stack.iceberg_url}/v1/namespaces/icedb/tables/clicks")
    assert read_refused(stack) == []
    seen = read_seen(stack)
    used = {(each["caller"], each["sid"]) for each in seen}
    assert sids() - used <= UNUSED
    deleted = {(each["caller"], each["key"]) for each in seen if each["action"] == "s3:DeleteObject"}
    assert {caller for caller, key in deleted if "/_data/" in key or "/_log/" in key} <= {"janitor"}
