"""The recipes of docs/recipes run as they stand there: on a directory without a service, and on S3 through one.

What they read is made to be hard: a column that came later, one that became wider, and a merged file whose object is no
Parquet file any more, so that whoever lists the folder, or reads by the first file, fails.
"""

import json
import logging
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import duckdb
import grpc
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from icedb.cli.app import run
from icedb_client.duck import load_httpfs
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot
from waiting import LIMIT_S

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
COLUMNS = {"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "BIGINT"}
WIDER = {**COLUMNS, "amount": "DOUBLE"}
ROWS = [("a", 5.0, None), ("b", 2.5, None), ("b", None, "x"), ("c", 4.0, None)]


@dataclass(frozen=True)
class Served:
    """Where the tables of a test are."""

    url: str
    endpoint_url: str | None
    address: str

    @property
    def is_on_s3(self):
        return self.endpoint_url is not None


def fill(warehouse):
    parquet = ParquetWarehouse(warehouse)
    parquet.create("events", "d=day(ts)")
    day = "select timestamp '2026-01-0{} 03:04:05.123456' as ts, "
    parquet.commit(
        "events", day.format(2) + "'a' as event, 5::bigint as amount", partition="d=2026-01-02", schema=COLUMNS
    )
    parquet.commit(
        "events",
        day.format(3) + "'b' as event, 2.5::double as amount",
        partition="d=2026-01-03",
        schema=COLUMNS,
        widened={"amount": "DOUBLE"},
    )
    old = parquet.commit("events", day.format(3) + "'c' as event", partition="d=2026-01-03", schema=COLUMNS)
    parquet.commit(
        "events",
        day.format(3) + "'b' as event, null::double as amount, 'x' as extra union all "
        "select timestamp '2026-01-03' as ts, 'c', 4, null",
        partition="d=2026-01-03",
        schema={**COLUMNS, "extra": "VARCHAR"},
        widened={"amount": "DOUBLE"},
        replaces=(old,),
    )
    parquet.warehouse.store.delete([old.data_key])
    parquet.warehouse.store.put_if_absent(old.data_key, b"merged away, and nobody's business")


@pytest.fixture(scope="module", params=["directory", "s3"])
def served(request, tmp_path_factory, quiet_services):
    endpoint_url = None
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        url, endpoint_url = f"s3://{server.bucket}/recipes", server.endpoint_url
        warehouse = open_warehouse(url, server.options)
    else:
        url = f"file://{tmp_path_factory.mktemp('recipes')}"
        warehouse = open_warehouse(url)
    fill(warehouse)
    rig = start_snapshot(warehouse, store=url)
    yield Served(url, endpoint_url, rig.address)
    rig.stop()


@pytest.fixture
def settings(served, monkeypatch, tmp_path):
    """The environment of a reader: the store alone for a directory, the service alone on S3."""
    for name in list(os.environ):
        if name.startswith(("ICEDB_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    if served.is_on_s3:
        monkeypatch.setenv("ICEDB_SNAPSHOT_ADDRESS", served.address)
        monkeypatch.setenv("ICEDB_S3_ENDPOINT", served.endpoint_url)
        for name, value in {"ACCESS_KEY_ID": "dev", "SECRET_ACCESS_KEY": "dev", "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
    else:
        monkeypatch.setenv("ICEDB_STORE", served.url)
    return monkeypatch


def blocks(page, language):
    """Return the code of a page; blocks that are marked so are for S3 alone."""
    found = re.findall(rf"```{language}( s3)?\n(.*?)```", (RECIPES / page).read_text(), re.DOTALL)
    assert found, (page, language)
    return [(bool(marked), code) for marked, code in found]


def run_python(page, served):
    code = "\n".join(code for for_s3, code in blocks(page, "python") if served.is_on_s3 or not for_s3)
    names = {}
    exec(compile(code, f"docs/recipes/{page}", "exec"), names)
    return names


def run_icedb(arguments, capfd):
    handlers = list(logging.getLogger().handlers)
    capfd.readouterr()
    try:
        code = run(arguments)
    finally:
        logging.getLogger().handlers = handlers
    out, err = capfd.readouterr()
    assert code == 0, (arguments, err)
    return out


def run_commands(page, served, capfd):
    """Run the icedb commands of a page; return what each printed."""
    lines = [
        line
        for for_s3, code in blocks(page, "sh")
        for line in code.splitlines()
        if line.startswith("icedb ") and (served.is_on_s3 or not for_s3)
    ]
    assert lines, page
    return [run_icedb(shlex.split(line)[1:], capfd) for line in lines]


def test_pandas(settings, served):
    names = run_python("pandas.md", served)
    events = names["events"]
    assert sorted(events["event"]) == [event for event, *_ in ROWS]
    assert events["amount"].sum() == 11.5
    assert events["extra"].notna().sum() == 1
    assert list(names["some"].columns) == ["ts", "amount"]
    assert len(names["some"]) == 2
    assert (len(names["snapshot"].files), names["snapshot"].total_file_count) == (2, 3)


def test_polars(settings, served):
    names = run_python("polars.md", served)
    assert names["events"].height == 4
    assert names["events"]["amount"].sum() == 11.5
    assert names["some"].rows()[0][1] in (2.5, None)
    assert names["some"].height == 2
    assert names["by_event"].rows() == [("a", 1, 5.0), ("b", 2, 2.5), ("c", 1, 4.0)]
    rows = names["lazy"].select("event", "amount", "extra").collect().rows()
    assert sorted(rows, key=str) == sorted(ROWS, key=str)


def test_pyarrow(settings, served):
    names = run_python("pyarrow.md", served)
    assert (names["table"].num_rows, names["rows"]) == (4, 4)
    assert names["some"].column_names == ["ts", "amount"]
    assert names["some"].num_rows == 2
    whole = names["open_dataset"](names["client"].snapshot("events")).to_table(columns=["event", "amount", "extra"])
    assert sorted(map(tuple, zip(*whole.to_pydict().values(), strict=True)), key=str) == sorted(ROWS, key=str)


def test_duckdb(settings, served, capfd):
    names = run_python("duckdb.md", served)
    con = names["con"]
    assert con.sql("select count(*), sum(amount), count(extra), min(d) from events").fetchall() == [
        (4, 11.5, 1, "2026-01-02")
    ]
    con.close()
    (statement,) = run_commands("duckdb.md", served, capfd)
    with duckdb.connect() as con:
        if served.is_on_s3:
            load_httpfs(con)
            ((_, sql),) = blocks("duckdb.md", "sql")
            secret = next(text for text in re.sub("--.*", "", sql).split(";") if "KEY_ID" in text)
            host = served.endpoint_url.removeprefix("http://")
            con.execute(
                secret.replace("YOUR_ACCESS_KEY_ID", "dev")
                .replace("YOUR_SECRET_ACCESS_KEY", "dev")
                .replace("minio:9000", host)
            )
        rows = con.sql(statement.rstrip().removesuffix(";")).fetchall()
    assert sorted((row[1], row[2]) for row in rows if row[2]) == [("b", 2.5)]
    assert len(rows) == 2


def test_files(settings, served, capfd):
    paths, document, *presigned = run_commands("files.md", served, capfd)
    assert len(paths.splitlines()) == 3
    assert all(path.startswith("s3://" if served.is_on_s3 else "/") for path in paths.splitlines())
    found = json.loads(document)
    assert found["schema"] == {**WIDER, "extra": "VARCHAR"}
    assert found["total_file_count"] == 3
    assert [file["partition"] for file in found["files"]] == [{"d": "2026-01-02"}]
    if served.is_on_s3:
        urls = presigned[0].splitlines()
        settings.delenv("AWS_ACCESS_KEY_ID")
        with duckdb.connect() as con:
            load_httpfs(con)
            assert con.execute("select count(*) from read_parquet(?, union_by_name = true)", [urls]).fetchall() == [
                (4,)
            ]


def test_clickhouse(settings, served, capfd):
    whole, some = run_commands("clickhouse.md", served, capfd)
    begin = f"s3('{served.endpoint_url}/integration/recipes/" if served.is_on_s3 else "file('/"
    assert whole.count(begin) == 2
    assert whole.count(".parquet'") == 3
    assert "dev" not in whole
    assert some.count(".parquet'") == 1


GRPCURL = re.compile(
    r"^grpcurl -plaintext -d (?P<json>.+?) 127\.0\.0\.1:50051 (?P<service>[\w.]+)/(?P<method>\w+)$", re.MULTILINE
)


def test_grpcurl(served):
    """As grpcurl does: methods and messages are known by reflection alone."""
    calls = list(GRPCURL.finditer((RECIPES / "grpcurl.md").read_text()))
    assert len(calls) >= 7
    answers = {}
    with grpc.insecure_channel(served.address) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        for call in calls:
            method = pool.FindServiceByName(call["service"]).FindMethodByName(call["method"])
            request, answer = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
            (text,) = shlex.split(call["json"])
            connect = channel.unary_stream if method.server_streaming else channel.unary_unary
            stub = connect(
                f"/{call['service']}/{call['method']}",
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )
            result = stub(json_format.Parse(text, request()), timeout=LIMIT_S)
            if method.server_streaming:
                answers[call["method"]] = json_format.MessageToDict(next(iter(result)))
                result.cancel()
            else:
                answers[call["method"]] = json_format.MessageToDict(result)
    assert answers["ListTables"] == {"tables": ["events"]}
    assert answers["WatchSnapshots"]["fileCount"] == "3"
    assert answers["StreamSnapshot"]["totalFileCount"] == "3"
    assert answers["AcquireLease"]["leaseId"]
    assert answers["Check"] == {"status": "SERVING"}


def test_generated_stubs(served, capfd):
    ((_, code),) = blocks("grpcurl.md", "python")
    assert code.count("127.0.0.1:50051") == 1
    exec(compile(code.replace("127.0.0.1:50051", served.address), "docs/recipes/grpcurl.md", "exec"), {})
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines and all(uri.endswith(".parquet") and int(size) > 0 for uri, size in lines)


def test_every_page_is_on_the_first_page():
    index = (RECIPES / "README.md").read_text()
    pages = {path.name for path in RECIPES.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\((\w+\.md)\)", index))


@pytest.mark.parametrize("has_arrow_schema", [True, False])
@pytest.mark.parametrize(
    "kind", ["int8", "int32", "int64", "uint8", "uint32", "float", "double", "dictionary", "ms", "us"]
)
def test_the_polars_recipe_takes_the_types_of_imported_files(tmp_path, kind, has_arrow_schema):
    """Its options, as they stand on the page, and each type that an import takes."""
    page = (RECIPES / "polars.md").read_text()
    options = re.search(r"cast_options=(pl\.ScanCastOptions\(.*?\n    \)),", page, re.DOTALL)[1]
    values = {
        "dictionary": (pa.array(["a", "b", None]).dictionary_encode(), pl.String),
        "ms": (pa.array([1, 2, None], pa.timestamp("ms")), pl.Datetime("us", "UTC")),
        "us": (pa.array([1, 2, None], pa.timestamp("us")), pl.Datetime("us", "UTC")),
        **{name: (pa.array([1.5, 2, None], name), pl.Float64) for name in ("float", "double")},
    }
    array, wanted = values.get(kind) or (pa.array([1, 2, None], kind), pl.Int64)
    pq.write_table(pa.table({"c": array}), tmp_path / "x.parquet", store_schema=has_arrow_schema)
    frame = pl.scan_parquet(
        [tmp_path / "x.parquet"],
        schema={"c": wanted},
        missing_columns="insert",
        cast_options=eval(options, {"pl": pl}),
    ).collect()
    assert frame.schema == {"c": wanted}
    assert frame["c"].null_count() == 1
