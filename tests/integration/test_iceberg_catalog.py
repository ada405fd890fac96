"""The Iceberg REST catalog as a protocol: who sees what, pages, tokens, conditions, errors, and that it is read-only."""

import threading
from types import SimpleNamespace

import orjson
import pytest
from iceberg_rig import BLUE, RED, SLOW, ask, load, start_catalog, write_tenants
from icedb_gateway.published import PublishedTables
from icedb_log.clock import SystemClock
from icedb_log.errors import CorruptLog, InvalidRequest, Unavailable
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.trash.drop import drop_table
from icedb_log.warehouse import Warehouse
from icedb_service.metrics import ENDPOINTS
from waiting import LIMIT_S, wait_until

TABLES = ("blue_events", "red_events", "red_pages", "red_visits", "shared_inbox")


class Writer:
    """Publishes tables as one line of metadata. What it is told to raise it raises; it can be made to wait."""

    def __init__(self):
        self.calls = []
        self.failure = None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, table):
        self.calls.append(table.name)
        assert self.gate.wait(LIMIT_S)
        if self.failure is not None:
            raise self.failure
        count = sum(1 for _ in table.reader.read().files)
        key = f"{table.paths.published_prefix}{count:010}-{'0' * 32}-v.metadata.json"
        snapshots = [{"snapshot-id": number} for number in range(count)]
        metadata = {
            "location": f"file://{table.store.uri(table.paths.prefix)}",
            "snapshots": snapshots,
            "refs": {"main": {"snapshot-id": count - 1, "type": "branch"}},
        }
        table.store.put(key, orjson.dumps(metadata))
        return SimpleNamespace(publication_id=f"{count:032x}", metadata_key=key)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalog")
    writer = Writer()
    rig = start_catalog(
        Warehouse(LocalObjectStore(folder / "store"), "wh"), access_file=str(write_tenants(folder)), publish=writer
    )
    for name in TABLES:
        rig.table(name).create("d=day(ts)").commit()
    yield rig, writer
    rig.gateway.stop()


@pytest.fixture
def rig(shared):
    return shared[0]


@pytest.fixture
def writer(shared):
    writer = shared[1]
    writer.calls.clear()
    yield writer
    writer.failure = None
    writer.gate.set()


def test_config_names_what_is_offered_and_nothing_that_writes(rig):
    answer = ask(rig, "/v1/config?warehouse=anything", token=RED).json
    assert answer["defaults"] == answer["overrides"] == {}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in answer["endpoints"]
    writing = [each for each in answer["endpoints"] if each.startswith(("POST", "PUT", "DELETE"))]
    assert writing == ["POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics"]


@pytest.mark.parametrize(
    "target",
    ["/v1/config", "/v1/namespaces", "/v1/namespaces/icedb", "/v1/namespaces/icedb/tables",
     "/v1/namespaces/icedb/tables/red_events", "/v1/namespaces/icedb/tables/red_events/credentials", "/v1/other"],
)  # fmt: skip
@pytest.mark.parametrize("token", [None, "wrong"])
def test_nobody_learns_anything(rig, target, token):
    answer = ask(rig, target, token=token)
    assert (answer.status, answer.error[0]) == (401, "NotAuthorizedException")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("by_header", [False, True])
def test_client_credentials_become_the_bearer_token(rig, by_header):
    form, headers = {"grant_type": "client_credentials", "scope": "catalog"}, {}
    if by_header:
        headers = {"Authorization": "Basic cmVkOnJlZC10b2tlbi1vZi10aGUtdGVzdA=="}
    else:
        form |= {"client_id": "red", "client_secret": RED}
    answer = ask(rig, "/v1/oauth/tokens", method="POST", form=form, headers=headers)
    assert answer.json["access_token"] == RED
    assert (answer.json["token_type"], answer.json["scope"]) == ("bearer", "catalog")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"client_id": "red", "client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "blue", "client_secret": RED}, 401, "invalid_client"),
        ({"client_id": "red"}, 400, "invalid_request"),
        ({"grant_type": "password", "client_secret": RED}, 400, "unsupported_grant_type"),
        ({"client_secret": "x" * 100_000}, 400, "invalid_request"),
    ],
)
def test_wrong_client_credentials(rig, form, status, code):
    answer = ask(rig, "/v1/oauth/tokens", method="POST", form={"grant_type": "client_credentials", **form})
    assert (answer.status, answer.json["error"]) == (status, code)
    assert answer.json["error_description"]
    assert RED not in answer.body.decode()


def test_one_namespace(rig):
    assert ask(rig, "/v1/namespaces", token=RED).json["namespaces"] == [["icedb"]]
    assert ask(rig, "/v1/namespaces?parent=icedb", token=RED).json["namespaces"] == []
    assert ask(rig, "/v1/namespaces/icedb", token=RED).json["namespace"] == ["icedb"]
    assert ask(rig, "/v1/namespaces/icedb", token=RED, method="HEAD").status == 204
    for target in ("/v1/namespaces?parent=x", "/v1/namespaces/x", "/v1/namespaces/icedb%1Fx/tables",
                   "/v1/namespaces/x/tables/red_events"):  # fmt: skip
        answer = ask(rig, target, token=RED)
        assert (answer.status, answer.error[0]) == (404, "NoSuchNamespaceException")
        assert "'icedb'" in answer.error[1]


def listed(rig, token, query=""):
    answer = ask(rig, f"/v1/namespaces/icedb/tables{query}", token=token).json
    assert all(each["namespace"] == ["icedb"] for each in answer["identifiers"])
    return [each["name"] for each in answer["identifiers"]], answer["next-page-token"]


def test_tenants_list_their_tables_only_in_pages_too(rig):
    assert listed(rig, RED) == (["red_events", "red_pages", "red_visits"], None)
    assert listed(rig, BLUE) == (["blue_events"], None)
    first, token = listed(rig, RED, "?pageSize=2")
    assert first == ["red_events", "red_pages"]
    assert listed(rig, RED, f"?pageSize=2&pageToken={token}") == (["red_visits"], None)
    assert listed(rig, BLUE, f"?pageSize=2&pageToken={token}") == ([], None)
    assert ask(rig, "/v1/namespaces/icedb/tables?pageSize=0", token=RED).error[0] == "BadRequestException"


def test_a_hidden_table_is_answered_as_one_that_is_not_there(rig, writer):
    for method in ("GET", "HEAD"):
        hidden = ask(rig, "/v1/namespaces/icedb/tables/blue_events", token=RED, method=method)
        missing = ask(rig, "/v1/namespaces/icedb/tables/blue_eventt", token=RED, method=method)
        assert hidden.status == missing.status == 404
        assert hidden.body.replace(b"blue_events", b"") == missing.body.replace(b"blue_eventt", b"")
    assert writer.calls == []
    assert load(rig, "shared_inbox", token=RED).error[0] == "ForbiddenException"
    assert ask(rig, "/v1/namespaces/icedb/tables/blue_events/metrics", token=RED, method="POST").status == 404


def test_an_unknown_table_names_those_that_are_close_and_may_be_seen(rig):
    kind, message = load(rig, "red_event", token=RED).error
    assert kind == "NoSuchTableException"
    assert "did you mean red_events or red_" in message
    assert "blue" not in load(rig, "blue_event", token=RED).error[1].replace("'blue_event'", "")
    assert "did you mean red_events" in load(rig, "Red-Events", token=RED).error[1]


def test_exists(rig, writer):
    assert ask(rig, "/v1/namespaces/icedb/tables/red_events", token=RED, method="HEAD").status == 204
    assert writer.calls == []  # to be there, a table need not be published


def test_a_load_gives_the_state_as_of_now_and_asked_again_costs_nothing(rig):
    first = load(rig, "red_events", token=RED)
    assert first.status == 200
    assert first.json["metadata"]["location"].startswith("file:///")
    assert first.json["metadata-location"] == first.json["metadata"]["location"] + (
        f"/_icedb/iceberg/metadata/{1:010}-{'0' * 32}-v.metadata.json"
    )
    assert first.json["config"] == {}
    etag = first.headers["etag"]
    again = load(rig, "red_events", token=RED, headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
    rig.table("red_events").commit()
    newer = load(rig, "red_events", token=RED, headers={"If-None-Match": etag})
    assert newer.status == 200
    assert len(newer.json["metadata"]["snapshots"]) == 2
    assert newer.headers["etag"] != etag


def test_snapshots_of_refs_alone(rig):
    rig.table("red_pages").commit()
    every, refs = (load(rig, "red_pages", token=RED, query=query) for query in ("?snapshots=all", "?snapshots=refs"))
    assert [each["snapshot-id"] for each in every.json["metadata"]["snapshots"]] == [0, 1]
    assert [each["snapshot-id"] for each in refs.json["metadata"]["snapshots"]] == [1]
    assert every.headers["etag"] != refs.headers["etag"]
    assert load(rig, "red_pages", token=RED, query="?snapshots=some").error[0] == "BadRequestException"


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/namespaces"),
        ("DELETE", "/v1/namespaces/icedb"),
        ("POST", "/v1/namespaces/icedb/properties"),
        ("POST", "/v1/namespaces/icedb/tables"),
        ("POST", "/v1/namespaces/icedb/tables/red_events"),
        ("DELETE", "/v1/namespaces/icedb/tables/red_events?purgeRequested=true"),
        ("POST", "/v1/namespaces/icedb/register"),
        ("POST", "/v1/namespaces/icedb/views"),
        ("POST", "/v1/tables/rename"),
        ("POST", "/v1/transactions/commit"),
        ("PUT", "/v1/anything"),
    ],
)
def test_writes_are_refused_with_what_to_use_instead(rig, method, target):
    answer = ask(rig, target, token=RED, method=method, form={"a": "b"})
    assert (answer.status, answer.error[0]) == (403, "ForbiddenException")
    assert "read-only" in answer.error[1]
    assert "icedb delete" in answer.error[1]
    assert ask(rig, target, method=method).status == 401


def test_what_is_not_offered(rig):
    for target in ("/v1/namespaces/icedb/views", "/v1/namespaces/icedb/tables/red_events/plan", "/", "/v2/config"):
        answer = ask(rig, target, token=RED)
        assert (answer.status, answer.error[0]) == (404, "UnsupportedOperationException")


def test_reports_are_taken(rig, writer):
    target = "/v1/namespaces/icedb/tables/red_events/metrics"
    assert ask(rig, target, token=RED, method="POST", form={"report-type": "scan-report"}).status == 204
    assert writer.calls == []


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (
            InvalidRequest("a file has to be rewritten first: `icedb iceberg fit red_visits`"),
            400,
            "BadRequestException",
        ),
        (CorruptLog("table red_visits: is halted; `icedb fsck red_visits`"), 500, "InternalServerError"),
        (Unavailable("the store is away"), 503, "ServiceUnavailableException"),
    ],
)
def test_what_a_table_cannot_give_is_said(rig, writer, failure, status, kind):
    writer.failure = failure
    answer = load(rig, "red_visits", token=RED)
    assert (answer.status, answer.error) == (status, (kind, str(failure)))
    assert ("retry-after" in answer.headers) == (status == 503)
    writer.failure = None
    assert load(rig, "red_visits", token=RED).status == 200


def test_an_error_of_ours_is_told_without_its_words(rig, writer):
    writer.failure = ValueError("a secret of the inside")
    answer = load(rig, "red_visits", token=RED)
    assert (answer.status, answer.error[0]) == (500, "InternalServerError")
    assert "secret" not in answer.error[1]


def test_a_dropped_table_says_so(tmp_path):
    rig = start_catalog(Warehouse(LocalObjectStore(tmp_path), "wh"), publish=Writer())
    try:
        rig.table("gone").create("d=day(ts)").commit()
        assert load(rig, "gone").status == 200
        drop_table(rig.warehouse.table("gone"), clock=SystemClock())
        kind, message = load(rig, "gone").error
        assert kind == "NoSuchTableException"
        assert "undrop" in message
    finally:
        rig.gateway.stop()


def test_a_rate_is_kept(rig):
    assert ask(rig, "/v1/namespaces", token=SLOW).status == 200
    answer = ask(rig, "/v1/namespaces", token=SLOW)
    assert (answer.status, answer.error[0]) == (429, "TooManyRequestsException")
    assert int(answer.headers["retry-after"]) > 60
    form = {"grant_type": "client_credentials", "client_secret": SLOW}
    assert ask(rig, "/v1/oauth/tokens", method="POST", form=form).status == 429


def test_many_who_ask_at_once_publish_once(rig, writer, monkeypatch):
    """One run is under way; those who come meanwhile need one that begins later, and share it."""
    writer.gate.clear()
    answers, arrived, read = [], [], PublishedTables.read
    monkeypatch.setattr(PublishedTables, "read", lambda tables, name: arrived.append(name) or read(tables, name))
    threads = [threading.Thread(target=lambda: answers.append(load(rig, "red_events", token=RED))) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: writer.calls and len(arrived) >= len(threads))
    writer.gate.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert {answer.status for answer in answers} == {200}
    assert 1 <= len(writer.calls) <= 2


def test_within_the_staleness_nothing_is_looked_at(tmp_path):
    writer = Writer()
    rig = start_catalog(Warehouse(LocalObjectStore(tmp_path), "wh"), publish=writer, gateway_staleness_ms=600_000)
    try:
        rig.table("events").create("d=day(ts)").commit()
        etags = {load(rig, "events").headers["etag"] for _ in range(3)}
        assert (len(etags), writer.calls) == (1, ["events"])
    finally:
        rig.gateway.stop()


def test_health_and_metrics(rig):
    assert ask(rig, "/readyz").json["checks"]["store"] == "ok"
    assert ask(rig, "/healthz").status == 200
    labels = {"operation": "iceberg_load", "outcome": "not_found"}
    before = rig.metric("icedb_gateway_requests_total", **labels)
    assert load(rig, "red_nothing", token=RED).status == 404
    # It is counted after the client has its answer, and those before it may not have been counted by `before`.
    wait_until(lambda: rig.metric("icedb_gateway_requests_total", **labels) > before)
    assert "iceberg" in ENDPOINTS
    hidden = {"door": "iceberg", "reason": "hidden"}
    denied = rig.metric("icedb_access_denied_total", **hidden)
    assert load(rig, "blue_events", token=RED).status == 404
    wait_until(lambda: rig.metric("icedb_access_denied_total", **hidden) == denied + 1)
