"""docs/recipes/shippers.md and kafka.md: the requests that their configurations make, and what a front end answers.

The programs themselves are in no index of packages that is reached here. What they send was read in their sources:
``src/sinks/http/config.rs`` of Vector, ``plugins/out_http/http.c`` of Fluent Bit, the connector's page of options.
"""

import gzip
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from backports import zstd
from frontend_fixtures import emptied, shared_frontend
from icedb_log.ingest.pressure import HALTED, Pressure, publish_pressure, publish_trouble
from icedb_log.store.table_store import TableStore
from icedb_sim.rigs.frontend_rig import CLOCK
from waiting import wait_until

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
ROWS = [{"ts": "2026-01-02T03:04:05.123456Z", "n": n} for n in range(3)]
PACK = {"none": lambda body: body, "gzip": gzip.compress, "zstd": zstd.compress}


def read_blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (RECIPES / page).read_text(), re.DOTALL)


def lines(rows):
    return b"\n".join(json.dumps(row).encode() for row in rows)


def vector(rows):
    (sink,) = yaml.safe_load(read_blocks("shippers.md", "yaml")[0])["sinks"].values()
    assert (sink["type"], sink["encoding"], sink["method"]) == ("http", {"codec": "json"}, "post")
    assert sink["auth"]["strategy"] == "bearer" and "request" not in sink
    kind, body = {
        "newline_delimited": ("application/x-ndjson", lines(rows) + b"\n"),
        None: ("application/json", json.dumps(rows).encode()),
    }[sink.get("framing", {}).get("method")]
    return sink["uri"], kind, sink["compression"], body


def fluent_bit(rows):
    (output,) = yaml.safe_load(read_blocks("shippers.md", "yaml")[1])["pipeline"]["outputs"]
    assert (output["name"], output["retry_limit"], output["json_date_format"]) == ("http", "no_limits", "iso8601")
    assert output["header"].split(" ", 1)[0] == "Authorization"
    kind, body = {
        "json_lines": ("application/x-ndjson", lines(rows) + b"\n"),
        "json": ("application/json", json.dumps(rows).encode()),
    }[output["format"]]
    return output["uri"], kind, output["compress"], body


def kafka_connect(rows):
    settings = json.loads(read_blocks("kafka.md", "json")[0])
    assert settings["batching.enabled"] == "true" and settings["http.authorization.type"] == "static"
    body = settings["batch.separator"].encode().join(json.dumps(row).encode() for row in rows) + b"\n"
    return settings["http.url"], settings["http.headers.content.type"], "none", body


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with shared_frontend(tmp_path_factory.mktemp("shippers")) as rig:
        yield rig


@pytest.fixture
def rig(shared):
    with emptied(shared) as rig:
        yield rig


@pytest.fixture(params=[vector, fluent_bit, kafka_connect], ids=lambda each: each.__name__)
def ship(request, rig):
    """Send rows as a program does; its table is ``events`` here."""

    def ship(rows):
        # What one test has sent is known to the next.
        url, kind, compression, body = request.param([row | {"of": request.node.name} for row in rows])
        path = re.sub(r"/tables/\w+/", "/tables/events/", urlsplit(url)._replace(scheme="", netloc="").geturl())
        headers = {} if compression == "none" else {"Content_Encoding": compression}
        return rig.call("POST", path, PACK[compression](body), Content_Type=kind, **headers)

    return ship


def test_a_request_that_is_repeated_counts_once(rig, ship):
    first = ship(ROWS)
    assert first.status == 202, first.body
    wait_until(lambda: ship(ROWS).json.get("repeated"))  # its key is marked a moment after the answer
    assert ship(ROWS).json["batch_id"] == first.json["batch_id"]
    assert len(rig.staged()) == 1
    assert ship(ROWS[:2]).json["batch_id"] != first.json["batch_id"]
    assert len(rig.staged()) == 2


def test_what_means_later_is_no_answer_that_loses_rows(rig, ship):
    """Each of them drops what is answered with 4xx other than 408 and 429."""
    place = TableStore(rig.store, rig.warehouse.table("events").paths)
    stop = Pressure("stop", 60.0, "801 log files: batches are refused from 800 on", 12_000)
    publish_pressure(place, stop, clock=CLOCK)
    wait_until(lambda: ship(ROWS).status == 429)
    publish_pressure(place, Pressure(), clock=CLOCK)
    wait_until(lambda: ship(ROWS).status == 202)


def test_a_halted_table_says_later_to_who_keeps_nothing_after_a_409(tmp_path):
    with shared_frontend(tmp_path) as rig:
        place = TableStore(rig.store, rig.warehouse.table("events").paths)
        publish_trouble(place, HALTED, "column 'ts' is BIGINT in the log", clock=CLOCK)
        path, kind = "/v1/tables/events/batches", "application/x-ndjson"
        wait_until(lambda: rig.call("POST", path, lines(ROWS), Content_Type=kind).status == 409)
        for body in (lines(ROWS), lines(ROWS * 2000)):  # read before the table is looked at, and after
            halted = rig.call("POST", f"{path}?key=content", body, Content_Type=kind)
            assert (halted.status, halted.headers["retry-after"]) == (429, "60")


@pytest.mark.parametrize("asked", ["key=other", "key=content&key=content", "key=content with a key"])
def test_content_is_the_only_key_of_a_url(rig, asked):
    query, _, has_key = asked.partition(" ")
    headers = {"Idempotency_Key": "mine"} if has_key else {}
    path = f"/v1/tables/events/batches?{query}"
    answer = rig.call("POST", path, lines(ROWS), Content_Type="application/x-ndjson", **headers)
    assert (answer.status, "takes only `content`" in answer.json["detail"]) == (400, True)
    assert rig.staged() == {}
