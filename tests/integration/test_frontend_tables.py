"""Tables over HTTP: created once, described, changed where that is safe, by those who may."""

import json

import pytest
from http_contract import checked
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.log.codec import encode_log_file
from icedb_log.model import LogFile
from icedb_log.table.stored_config import read_table_config
from icedb_log.trash.drop import drop_table
from icedb_log.units import DAY_MS, HOUR_MS
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.frontend_rig import CLOCK, start_rig
from icedb_sim.tables.row_files import RowFileWriter

TOKENS = {name: f"icedbt_{name}-0123456789abcdef" for name in ("admin", "keeper", "reader", "sender", "stranger")}
CLICKS = {"partition": ["d=day(ts)"], "sort": ["event", "ts"], "declared": {"price": "DOUBLE"}}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    document = {
        "identities": {name: {"tokens": [token_entry(token)]} for name, token in TOKENS.items()},
        "grants": [
            {"identities": ["admin"], "tables": ["*"], "verbs": ["read", "append", "maintain", "erase"]},
            {"identities": ["keeper"], "tables": ["*"], "verbs": ["maintain"]},
            {"identities": ["reader"], "tables": ["clicks*"], "verbs": ["read"]},
            {"identities": ["sender"], "tables": ["*"], "verbs": ["append"]},
            {"identities": ["stranger"], "tables": ["other"], "verbs": ["read", "maintain", "erase"]},
        ],
    }
    rig = start_rig(folder / "store", access_file=str(write_access(folder / "access.json", document)))
    with checked():
        yield rig
    rig.frontend.stop()


@pytest.fixture
def call(rig):
    def call(method, table, document=None, *, token="admin", **headers):
        body = None if document is None else json.dumps(document).encode()
        fields = {"Content_Type": "application/json"} if body else {}
        fields |= {"Authorization": f"Bearer {TOKENS[token]}", **headers}
        return rig.call(method, f"/v1/tables{'/' if table else ''}{table}", body, **fields)

    return call


def test_a_table_is_created_once_and_takes_batches(rig, call):
    created = call("PUT", "clicks", CLICKS)
    assert created.status == 201, created.body
    assert (created.json["partition"], created.json["sort"]) == (CLICKS["partition"], CLICKS["sort"])
    assert created.json["declared"] == {"price": "DOUBLE", "ts": "TIMESTAMP"}
    assert created.json["settings"]["times"]["ts"]["from_ms"] is not None  # plausible times, as the command sets them
    again = call("PUT", "clicks", CLICKS)
    assert (again.status, again.json) == (200, created.json)
    other = call("PUT", "clicks", {**CLICKS, "sort": ["ts"]})
    assert (other.status, other.json["type"]) == (409, "urn:icedb:problem:table-exists")
    assert read_table_config(rig.warehouse.table("clicks")).sort == ("event", "ts")
    assert (
        rig.post(b'{"ts":"2026-01-02","n":1}\n', table="clicks", Authorization=f"Bearer {TOKENS['sender']}").status
        == 202
    )
    flush_table(Table.open(rig.warehouse.table("clicks"), clock=CLOCK, owner="test"), RowFileWriter(rig.store, CLOCK))
    described = call("GET", "clicks", token="reader").json
    assert described["columns"].keys() == {"ts", "n", "price"}  # of the log, and declared
    assert described["columns"]["price"] == "DOUBLE"
    assert {name: described[name] for name in created.json} == created.json


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"partition": ["d=dya(ts)"]}, "did you mean day"),
        ({"declared": {"price": "STRING"}}, "here it is VARCHAR"),
        ({"columns": {"price": "DOUBLE"}}, "columns"),
        ({"settings": {"merge_fan": 9}}, "did you mean merge_fan_in"),
        ({"settings": {"insert_query": "select 1"}}, "cannot be set here"),
        ({"settings": {"data_grace_ms": 1000}}, "at least 60000 ms"),
        ({"settings": {"merge_fan_in": "many"}}, "merge_fan_in"),
        ({"settings": {"times": {"ts": 7}}}, "times"),
        ([], "document"),
    ],
)
def test_a_wrong_document_says_what_is_wrong_and_creates_nothing(rig, call, document, words):
    answer = call("PUT", "wrong", document)
    assert (answer.status, words in answer.json["detail"]) == (400, True), answer.body
    assert not rig.warehouse.has_table("wrong")


def test_what_may_change_is_changed_and_nothing_else(rig, call):
    call("PUT", "orders", {"partition": ["d=day(ts)"], "settings": {"log_grace_ms": 60_000, "data_grace_ms": HOUR_MS}})
    change = {"declared": {"price": "DOUBLE"}, "settings": {"merge_fan_in": 4, "data_grace_ms": 2 * HOUR_MS}}
    for _ in range(2):
        changed = call("PATCH", "orders", change)
        assert changed.status == 200, changed.body
        assert changed.json["settings"]["merge_fan_in"] == 4
    taken_back = call("PATCH", "orders", {"declared": {"price": None}}).json
    assert taken_back["declared"] == {"ts": "TIMESTAMP"}
    for settings, words in (
        ({"data_grace_ms": HOUR_MS}, "it may only grow"),
        ({"log_grace_ms": 90_000}, "cannot be set here"),
        ({"merge_query": "select * from source_files"}, "cannot be set here"),
    ):
        answer = call("PATCH", "orders", {"settings": settings})
        assert (answer.status, words in answer.json["detail"]) == (400, True), answer.body
    config = read_table_config(rig.warehouse.table("orders"))
    assert (config.data_grace_ms, config.log_grace_ms) == (2 * HOUR_MS, 60_000)
    assert call("PATCH", "nope", change).status == 404


def test_who_keeps_tables_removes_no_rows_without_the_verb_for_it(rig, call):
    assert call("PUT", "kept", {"partition": ["d=day(ts)"]}, token="keeper").status == 201
    retention = {"settings": {"retention_ms": DAY_MS}}
    for method, name in (("PATCH", "kept"), ("PUT", "short")):
        refused = call(
            method, name, {"partition": ["d=day(ts)"], **retention} if method == "PUT" else retention, token="keeper"
        )
        assert (refused.status, "erase" in refused.json["detail"]) == (403, True)
    assert not rig.warehouse.has_table("short")
    assert call("PATCH", "kept", retention).json["settings"]["retention_ms"] == DAY_MS


def test_others_change_nothing_and_see_no_name_that_is_not_theirs(rig, call):
    call("PUT", "clicks_a", {})
    for token in ("reader", "sender"):
        assert call("PUT", "clicks_b", {}, token=token).status in (403, 404)
        assert call("PATCH", "clicks_a", {"settings": {"merge_fan_in": 3}}, token=token).status == 403
    assert call("GET", "clicks_a", token="sender").status == 403
    hidden = [call("GET", name, token="stranger") for name in ("clicks_a", "nothing")]
    assert [answer.status for answer in hidden] == [404, 404]
    assert hidden[0].body.replace(b"clicks_a", b"T") == hidden[1].body.replace(b"nothing", b"T")
    names = call("GET", "", token="reader").json["tables"]
    assert "clicks_a" in names
    assert "events" not in names
    assert call("GET", "", token="stranger").json["tables"] == []
    assert "events" in call("GET", "").json["tables"]
    assert not rig.warehouse.has_table("clicks_b")


def test_a_name_in_the_trash_and_a_log_that_is_there_are_told(rig, call):
    call("PUT", "gone", {})
    drop_table(rig.warehouse.table("gone"), clock=CLOCK)
    trashed = call("PUT", "gone", {})
    assert (trashed.status, "undrop" in trashed.json["detail"]) == (409, True), trashed.body
    paths = rig.warehouse.table("adopted").paths
    log = LogFile(time_ms=CLOCK.now_ms(), commit_id="ab", schema={"n": "VARCHAR"})
    rig.store.put_if_absent(paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=False), encode_log_file(log))
    refused = call("PUT", "adopted", {"declared": {"n": "BIGINT"}})
    assert (refused.status, "its log has column 'n' as VARCHAR" in refused.json["detail"]) == (400, True), refused.body
    assert call("PUT", "adopted", {}).status == 201


def test_a_document_is_json_and_small(rig, call):
    authorization = {"Authorization": f"Bearer {TOKENS['admin']}"}
    assert rig.call("PUT", "/v1/tables/plain", b"", Content_Type="application/json", **authorization).status == 201
    assert rig.call("PUT", "/v1/tables/plain", b"a,b\n", Content_Type="text/csv", **authorization).status == 415
    assert call("PUT", "plain", {}, Content_Encoding="gzip").status == 415
    assert rig.call("PUT", "/v1/tables/plain", b"{", Content_Type="application/json", **authorization).status == 400
    large = call("PUT", "plain", {"sort": ["x" * 300_000]})
    assert (large.status, "are enough" in large.json["detail"]) == (400, True)
