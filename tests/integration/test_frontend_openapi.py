"""The OpenAPI document of the HTTP endpoint is valid, is what it serves, and says every answer there is and no other."""

import http.client
import json
from pathlib import Path

import pytest
from http_contract import DECLARED, DOCUMENT, check, checked
from icedb_ingest.frontend.openapi import OPERATIONS
from icedb_log.clock import new_batch_id
from icedb_log.errors import Unavailable
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_service.http_server import HealthChecks
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.frontend_rig import CLOCK, LIMIT_S, NDJSON, Answer, start_rig
from openapi_spec_validator import validate

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "openapi.json"
GOOD, BLIND, MUTE, STRANGER, SLOW = (
    f"{name}-token-0123456789abcdef0123456789" for name in ("good", "blind", "mute", "stranger", "slow")
)
EVENT = {"type": "track", "userId": "u"}
ROW = b'{"a":1}\n'
LIST, TABLE, PUT, PATCH, TERMS, BATCHES, BATCH, SEGMENT, CALL = [
    each for each in OPERATIONS if each[1].startswith("/v1")
]


def start(folder, **fields):
    """Start a front end with an access file."""
    verbs = ["read", "append", "maintain"]
    access = {
        "identities": {
            "good": {"tokens": [token_entry(GOOD)]},
            "blind": {"tokens": [token_entry(BLIND)]},
            "mute": {"tokens": [token_entry(MUTE)]},
            "stranger": {"tokens": [token_entry(STRANGER)]},
            "slow": {"tokens": [token_entry(SLOW)], "rate": {"calls_per_s": 0.001, "burst": 1}},
        },
        "grants": [
            {"identities": ["good", "slow"], "tables": ["*"], "verbs": verbs},
            {"identities": ["blind"], "tables": ["*"], "verbs": ["read"]},
            {"identities": ["mute"], "tables": ["*"], "verbs": ["append"]},
            {"identities": ["stranger"], "tables": ["other*"], "verbs": verbs},
        ],
    }
    return start_rig(
        folder / "store",
        access_file=str(write_access(folder / "access.json", access)),
        frontend_max_batch_mb=1,
        **fields,
    )


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    rig = start(tmp_path_factory.mktemp("openapi"))
    yield rig
    rig.frontend.stop()


@pytest.fixture
def hasty(tmp_path):
    """One that waits for no body, of which nothing else is asked."""
    rig = start(tmp_path, frontend_body_timeout_ms=100)
    yield rig
    rig.frontend.stop()


def broken_table(rig):
    """Make a table whose configuration and log are no JSON."""
    table = TableStore(rig.store, rig.warehouse.table("broken").paths)
    create_table(table, TableConfig.create(name="broken"))
    for key in [info.key for info in rig.store.list_page(f"{table.paths.prefix}/", limit=100).objects]:
        rig.store.delete([key])
        rig.store.put_if_absent(key, b"no JSON")
    rig.store.put_if_absent(f"{table.paths.log_prefix}{CLOCK.now_ms()}_1.jsonl", b"no JSON\n")


def dawdle(rig, operation, headers):
    """Send a body that never ends."""
    method, path = operation[0], operation[1].format(table="events", call="track")
    connection = http.client.HTTPConnection("127.0.0.1", rig.frontend.port, timeout=LIMIT_S)
    connection.putrequest(method, path)
    for name, value in {**headers, "Content-Length": "100"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"{")
    answer = connection.getresponse()
    found = check(method, path, Answer(answer.status, answer.headers, answer.read()))
    connection.close()
    return found


def test_the_document_is_valid_and_is_what_is_served_and_written_down(rig):
    written = json.loads(SCHEMA.read_text())
    validate(DOCUMENT)
    validate(written)
    assert rig.call("GET", "/openapi.json").json == DOCUMENT
    # And the console's query, at a server of its own.
    assert written["paths"].items() > DOCUMENT["paths"].items(), "run `make docs`"
    assert [path for path, item in written["paths"].items() if "servers" in item] == ["/v1/query"]
    assert written["components"]["schemas"].items() > DOCUMENT["components"]["schemas"].items()
    assert written["servers"]


def test_every_answer_that_the_document_says_is_given(rig, hasty, monkeypatch):
    seen = set()
    broken_table(rig)
    batch_id = new_batch_id(CLOCK)
    bodies = {
        BATCHES: (ROW, NDJSON),
        SEGMENT: (json.dumps(EVENT).encode(), "application/json"),
        CALL: (json.dumps(EVENT).encode(), "application/json"),
        BATCH: (None, ""),
        TERMS: (None, ""),
        LIST: (None, ""),
        TABLE: (None, ""),
        PATCH: (b'{"settings": {"merge_fan_in": 9}}', "application/json"),
        PUT: (b"{}", "application/json"),
    }

    def send(operation, *, token=GOOD, table="events", call="track", batch=batch_id, body=None, **headers):
        own_body, content_type = bodies[operation]
        method, path = operation
        fields = {"Content_Type": content_type, **({"Authorization": f"Bearer {token}"} if token else {})}
        where = path.format(table=table, call=call, batch_id=batch)
        return rig.call(method, where, own_body if body is None else body, **fields | headers)

    def fail(error):
        def raise_it(*args, **conditions):
            raise error

        return raise_it

    with checked(seen):
        assert send(BATCHES, Idempotency_Key=batch_id).status == 202
        assert send(BATCHES, Idempotency_Key=batch_id, body=b'{"a":2}\n').status == 422
        for operation in bodies:
            send(operation)
            send(operation, token="")
            send(operation, token=BLIND)
            send(operation, token=MUTE)
            send(operation, token=STRANGER)
            send(operation, token=SLOW)
            send(operation, token=SLOW)
            send(operation, table="No-Table")
            send(operation, table="nope")
            send(operation, table="broken")
            for error in (ZeroDivisionError(), Unavailable("down")):
                with monkeypatch.context() as broken:
                    for name in ("put_if_absent", "list_page", "list_folders", "get"):
                        broken.setattr(rig.store, name, fail(error))
                    table = "other" if operation in (TERMS, PUT) else "events"  # of which nothing is known yet
                    send(operation, table=table, body=b'{"a":3}\n' if operation == BATCHES else None)
            if bodies[operation][0] is not None:
                send(operation, body=b"{" * (2**20 + 1))
                send(operation, Content_Encoding="br")
                headers = {"Content-Type": bodies[operation][1], "Authorization": f"Bearer {GOOD}"}
                seen.add(dawdle(hasty, operation, headers))
        send(CALL, call="charge")
        assert send(PUT, table="brandnew").status == 201
        assert send(PUT, table="brandnew").status == 200
        for path in ("/healthz", "/readyz", "/openapi.json"):
            rig.call("GET", path)
        monkeypatch.setattr(HealthChecks, "run", lambda self, with_ready: {"store": "down"})
        for path in ("/healthz", "/readyz"):
            rig.call("GET", path)
    assert DECLARED - seen == set()
