"""What callers write and get: times, files, settings, and packages that are not installed."""

import random
import sys
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from icedb_client import file_list, wakeups
from icedb_client.client import Client
from icedb_client.file_list import ArrowFiles, MarkerFiles, WireFiles
from icedb_client.requests import to_ms
from icedb_client.settings import ClientSettings, load_client_settings
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.log.state import LogState
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.names import INGEST_FLUSH, MERGE_MERGE
from icedb_log.serving.arrow_files import FileColumns
from icedb_proto import snapshot_pb2 as pb

MOMENT_MS = 1_767_323_045_123


@pytest.mark.parametrize(
    "value",
    [
        MOMENT_MS,
        str(MOMENT_MS),
        " 2026-01-02T03:04:05.123Z ",
        "2026-01-02 03:04:05.123",
        datetime(2026, 1, 2, 3, 4, 5, 123_000),
        datetime(2026, 1, 2, 3, 4, 5, 123_999, tzinfo=UTC),
        datetime(2026, 1, 2, 4, 4, 5, 123_000, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_forms_of_a_time(value):
    assert to_ms(value, what="as_of") == MOMENT_MS


def test_a_date_is_its_first_moment():
    assert to_ms(date(2026, 1, 2), what="as_of") == to_ms("2026-01-02", what="as_of") == 1_767_312_000_000


@pytest.mark.parametrize("value", ["", "soon", "1969-01-01", -1, 10**13, "9" * 40, 1.5, True, None, datetime(1, 1, 1)])
def test_what_is_no_time(value):
    with pytest.raises(InvalidRequest, match=r"as_of .* is not a time: write e\.g\."):
        to_ms(value, what="as_of")


def wire_files(pages):
    files = [
        [
            pb.DataFile(
                path=f"wh/t/_data/d=2026-01-0{n}/c=x/{n}.parquet",
                uri=f"/wh/{n}",
                size_bytes=n,
                row_count=n,
                partition_values=[
                    pb.PartitionValue(name="d", value=f"2026-01-0{n}"),
                    pb.PartitionValue(name="c", value="x"),
                ],
                created_ms=n,
            )
            for n in page
        ]
        for page in pages
    ]
    return WireFiles(files, size_bytes=None, row_count=6)


def live_files(markers):
    log = LogFile(1, markers=tuple(markers))
    return LogState.of(LogView("t", (ListedLogFile("wh/t/_log/0000000000001_00.jsonl", "", 1, 1, log),), 1)).live


def marker_files():
    markers = [FileMarker(f"wh/t/_data/d=2026-01-0{n}/c=x/{n}.parquet", n, n, row_count=n) for n in (1, 2, 3)]
    return MarkerFiles(
        live_files(markers),
        columns=FileColumns(TablePaths("t", "wh/t"), ("d", "c")),
        uri=lambda path: f"/wh/{path[-9:-8]}",
    )


def arrow_files():
    return ArrowFiles(marker_files().to_arrow(), uri_prefix="/")


@pytest.mark.parametrize("files", [wire_files([[1, 2, 3]]), wire_files([[], [1], [], [2, 3]]), marker_files()])
def test_files_are_a_sequence_whatever_holds_them(files):
    assert (len(files), files.size_bytes, files.row_count, files.partition_names) == (3, 6, 6, ("d", "c"))
    assert [file.size_bytes for file in files] == [1, 2, 3] == [files[n].size_bytes for n in range(3)]
    assert files[-1] == files[2] == list(files)[2] != files[0]
    assert [file.size_bytes for file in files[1:]] == [2, 3]
    assert files == list(files)
    assert files != [files[0]]
    assert files != "abc"
    assert files[0].partition == {"d": "2026-01-01", "c": "x"}
    assert files.paths == [file.path for file in files]
    assert files.uris == [file.uri for file in files]
    assert "1.parquet" in repr(files)
    assert files[0] in files
    for outside in (3, -4):
        with pytest.raises(IndexError):
            files[outside]


@pytest.mark.parametrize("package", ["pyarrow", "pandas", "polars"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(client, create, monkeypatch, package):
    create()
    snapshot = client.snapshot("events")
    monkeypatch.setitem(sys.modules, package, None)
    result = client.query("select 1 as n from events")
    reads = {
        "pyarrow": (snapshot.to_arrow, result.to_arrow),
        "pandas": (snapshot.to_pandas, result.to_pandas),
        "polars": (snapshot.to_polars, result.to_polars),
    }
    for read in reads[package]:
        with pytest.raises(InvalidRequest, match=f"needs {package}, which is not installed: pip install {package}$"):
            read()


@pytest.fixture
def light_install(monkeypatch):
    """An installation without the extra ``stack``."""
    wakeups.find_missing.cache_clear()
    monkeypatch.setattr(wakeups, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in ("icedb_client.grpc_reads", "icedb_client.grpc_channels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    wakeups.find_missing.cache_clear()


def test_without_the_stack_extra_a_batch_is_accepted_and_what_is_missing_is_said(light_install, monkeypatch, caplog):
    monkeypatch.setattr(wakeups.WakeupSender, "_require_listener", lambda _: None)
    sender = wakeups.WakeupSender(ClientSettings(), clock=SystemClock())
    assert not sender.wake(INGEST_FLUSH, "events")
    missing = "celery and redis not installed here: install icedb-client[stack]"
    assert f"workers are woken through Redis and Celery: {missing}; batches stay accepted" in caplog.text
    with pytest.raises(InvalidRequest, match=r"install icedb-client\[stack\]; `--local` does it in this process"):
        sender.run(MERGE_MERGE, "events", arguments={}, timeout_ms=1000)
    with pytest.raises(Unavailable, match=r"cannot be asked: celery and redis not installed here"):
        wakeups.look_at_redis("redis://127.0.0.1:1", timeout_ms=1000)


def test_without_the_stack_extra_a_snapshot_service_is_refused_with_what_to_install(light_install, cli_env):
    with (
        Client(snapshot_address="127.0.0.1:1") as client,
        pytest.raises(
            InvalidRequest, match=r"speaks gRPC, and grpc is not installed here: install icedb-client\[stack\]"
        ),
    ):
        client.tables()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"snapshot_address": "a:1,b"}, r"snapshot_address \(--snapshot-address\): 'b' is not an address"),
        ({"snapshot_address": "a:1,,b:2"}, "not an address"),
        ({"token": "a b"}, "settings: token: a token is printable"),
        ({"token": "a", "token_file": "/x"}, "both set"),
        ({"client_cert_file": "/x"}, "go together"),
    ],
)
def test_settings_that_do_not_fit(fields, words, cli_env):
    with pytest.raises(InvalidRequest, match=words):
        load_client_settings(**fields)


def test_settings_come_from_variables_with_our_prefix_and_what_is_given_wins(cli_env):
    for name, value in {
        "STORE": "file:///not/ours",
        "ICEDB_STORE": "file:///a",
        "icedb_redis_timeout_ms": "70",
        "ICEDB_SNAPSHOT_ADDRESS": "",
        "ICEDB_TLS": "yes",
        "ICEDB_NOTHING": "1",
    }.items():
        cli_env.setenv(name, value)
    settings = ClientSettings()
    assert (settings.store, settings.redis_timeout_ms, settings.snapshot_address) == ("file:///a", 70, None)
    assert settings.uses_tls
    assert ClientSettings(store=None, tls=False).store is None
    assert load_client_settings(store="file:///b").store == "file:///b"
    cli_env.delenv("ICEDB_STORE")
    assert ClientSettings().store is None
    cli_env.setenv("ICEDB_TOKEN", "a b")
    with pytest.raises(InvalidRequest, match=r"^settings: ICEDB_TOKEN: a token is printable"):
        load_client_settings()


def test_what_implies_tls():
    assert not ClientSettings(token="x").uses_tls
    assert ClientSettings(tls=True).uses_tls
    assert ClientSettings(ca_file="/x").uses_tls
    assert ClientSettings(client_cert_file="/x", client_key_file="/y").uses_tls
    assert ClientSettings(snapshot_address="a:1, b:2").snapshot_addresses == ("a:1", "b:2")


def test_a_presigned_url_is_the_same_whenever_it_is_asked_for():
    signed = []

    def presign(path):
        signed.append(path)
        return f"https://s3/{path}?signature={len(signed)}"

    files = MarkerFiles(
        live_files([FileMarker("wh/t/_data/1.parquet", 1, 1)]),
        columns=FileColumns(TablePaths("t", "wh/t"), ()),
        uri=lambda path: path,
        presign=presign,
    )
    assert files.uris == files.uris == [files[0].presigned_url]
    assert len(signed) == 1


def paths_of(files):
    assert files.paths == sorted(files.paths)
    assert [file.path for file in files] == files.paths
    return files.paths


@pytest.mark.parametrize("seed", range(20))
def test_changes_of_record_batches_are_those_of_their_paths(seed, monkeypatch):
    monkeypatch.setattr(file_list, "MAX_BATCH_FILES", 4)
    chance, live = random.Random(seed), set()

    def files_of(numbers):
        markers = [FileMarker(f"wh/t/_data/d={n % 3}/c=x/{n:02d}", n, n, row_count=n) for n in numbers]
        listed = MarkerFiles(live_files(markers), columns=FileColumns(TablePaths("t", "wh/t"), ("d", "c")), uri=str)
        return ArrowFiles(listed.to_arrow(), uri_prefix="/")

    files = files_of(())
    for _ in range(30):
        came = set(chance.sample(sorted(set(range(40)) - live), chance.randint(0, min(5, 40 - len(live)))))
        went = set(chance.sample(sorted(live), chance.randint(0, min(5, len(live)))))
        before, removed_paths = files, files_of(went).paths
        files, removed = files.change(files_of(came), removed_paths)
        live = (live | came) - went
        assert paths_of(files) == files_of(live).paths
        assert files.to_arrow().equals(files_of(live).to_arrow())
        assert paths_of(removed) == removed_paths
        assert max((batch.num_rows for batch in files.to_arrow().to_batches()), default=0) <= 8
        assert len(before) + len(came) - len(went) == len(files)
    assert len(files.change(files_of(()), ["wh/t/_data/d=0/c=x/none"])[1]) == 0


def test_record_batches_tell_files_as_messages_do():
    files = arrow_files()
    assert [file.path for file in files] == [file.path for file in marker_files()]
    assert (files[0].uri, files[-1].row_count, files[1].partition) == (
        *("/wh/t/_data/d=2026-01-01/c=x/1.parquet", 3, {"d": "2026-01-02", "c": "x"}),
    )
    assert (len(files), files.size_bytes, files.row_count) == (3, 6, 6)
    assert files.uris == [f"/{path}" for path in files.paths]
    unknown = MarkerFiles(
        live_files([FileMarker("wh/t/_data/1", 1, 1)]), columns=FileColumns(TablePaths("t", "wh/t"), ()), uri=str
    )
    assert ArrowFiles(unknown.to_arrow(), uri_prefix="").row_count is None
    none = ArrowFiles(unknown.to_arrow().slice(0, 0), uri_prefix="")
    assert (none.row_count, none.size_bytes, list(none)) == (0, 0, [])
    with pytest.raises(InvalidRequest, match="columnar=True"):
        wire_files([[1]]).to_arrow()


def test_a_store_may_be_a_folder_and_what_looks_like_a_url_stays_one(cli_env, tmp_path):
    cli_env.chdir(tmp_path)
    cli_env.setenv("ICEDB_STORE", "./my lake")
    assert ClientSettings().store == f"{tmp_path.as_uri()}/my%20lake"
    assert ClientSettings(store=tmp_path).store == tmp_path.as_uri()
    for url in ("s3://bucket/prefix", "s3:/bucket", "file:lake", "gs://bucket"):
        assert ClientSettings(store=url).store == url
