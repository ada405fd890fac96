"""The S3 store over HTTP: the acceptance suite, the probe, and what goes wrong with names and addresses."""

import os

import pytest
from icedb_log.errors import InvalidRequest, PreconditionFailed, Unavailable, UnsupportedFormat
from icedb_log.store.object_store import list_all
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings, open_warehouse
from icedb_sim.fakes.store_acceptance import expect
from processes import free_port
from s3_acceptance import S3Acceptance

pytestmark = pytest.mark.s3

FAST = {"access_key_id": "dev", "secret_access_key": "dev", "connect_timeout_s": 0.5, "read_timeout_s": 0.5}


@pytest.fixture(scope="module")
def handles(s3_server):
    """Two handles for the whole module: a client costs a tenth of a second."""
    return (S3ObjectStore(s3_server.bucket, s3_server.options), S3ObjectStore(s3_server.bucket, s3_server.options))


class TestS3ObjectStore(S3Acceptance):
    """The development server."""


def test_a_store_that_ignores_conditions_is_refused(s3_server_without_conditions):
    server = s3_server_without_conditions
    store = S3ObjectStore(server.bucket, server.options)
    error = str(expect(UnsupportedFormat, store.probe))
    for words in (server.bucket, server.endpoint_url, "If-None-Match", "use a store with conditional writes"):
        assert words in error
    assert list_all(store, "").objects == ()


def test_the_probe_writes_only_below_the_root_of_the_warehouse(s3_server):
    warehouse = StoreSettings(f"s3://{s3_server.bucket}/some/place", s3_server.options).open()
    assert warehouse.root == "some/place"
    put, keys = warehouse.store.put_if_absent, []
    warehouse.store.put_if_absent = lambda key, body: (keys.append(key), put(key, body))[1]
    warehouse.store.probe()
    assert keys
    assert all(key.startswith("some/place/_icedb_probe/") for key in keys)
    assert warehouse.list_tables() == ()


def test_an_endpoint_that_refuses_connections_is_named():
    endpoint = f"http://127.0.0.1:{free_port()}"
    store = open_warehouse("s3://bucket/root", S3Options(endpoint, **FAST)).store
    for call in (
        store.probe,
        lambda: store.get("key"),
        lambda: store.head("key"),
        lambda: store.list_page(""),
        lambda: store.put("key", b"x"),
        lambda: store.delete(["key"]),
        # Surely not sent, so not an unknown outcome either.
        lambda: store.put_if_absent("key", b"x"),
        lambda: store.put_if_match("key", b"x", etag="0"),
    ):
        error = str(expect(Unavailable, call))
        assert endpoint in error
        assert "ICEDB_S3_ENDPOINT" in error


def test_a_host_that_is_not_there_is_named():
    store = S3ObjectStore("bucket", S3Options("http://no-such-host.invalid:9000", **FAST))
    assert "no-such-host.invalid" in str(expect(Unavailable, lambda: store.put_if_absent("key", b"x")))


def test_a_bucket_that_is_not_there_is_named(s3_server, tmp_path):
    store = S3ObjectStore("no-such-bucket", s3_server.options)
    (tmp_path / "small").write_bytes(b"x")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    for call in (
        store.probe,
        lambda: store.list_page(""),
        lambda: store.list_folders(""),
        lambda: store.get("key"),
        lambda: store.head("key"),
        lambda: store.put("key", b"x"),
        lambda: store.put_if_absent("key", b"x"),
        lambda: store.put_if_match("key", b"x", etag="0"),
        lambda: store.delete(["key"]),
        lambda: store.upload("key", tmp_path / "small"),
        lambda: store.upload("key", tmp_path / "large"),
    ):
        error = str(expect(Unavailable, call))
        assert "no-such-bucket" in error
        assert "create it" in error


def test_options_that_cannot_be_are_refused():
    assert "scheme" in str(expect(InvalidRequest, lambda: S3Options("127.0.0.1:9000")))
    assert "both" in str(expect(InvalidRequest, lambda: S3Options(access_key_id="only")))
    assert "positive" in str(expect(InvalidRequest, lambda: S3Options(read_timeout_s=0)))
    assert "pass@" not in str(expect(InvalidRequest, lambda: S3Options("http://user:pass@host")))
    broken = S3ObjectStore("bucket", S3Options("http://host:notaport", **FAST))
    assert "ICEDB_S3_ENDPOINT" in str(expect(InvalidRequest, lambda: broken.get("key")))


def test_the_secret_is_shown_nowhere(s3_server):
    settings = StoreSettings(
        "s3://bucket", S3Options("http://127.0.0.1:1", access_key_id="a", secret_access_key="hush")
    )
    assert "hush" not in repr(settings)
    assert "hush" not in repr(settings.open())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the point of the test
def test_a_child_that_is_forked_later_opens_connections_of_its_own(handles):
    store = handles[0]
    store.put("fork/before", b"x")
    clients = store._open_clients()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            body = store.get("fork/before").body
            os.write(write_end, body if store._open_clients() is not clients else b"shared connections")
        finally:
            os._exit(0)
    os.close(write_end)
    for number in range(20):
        store.put(f"fork/{number}", b"x")
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"x"
    assert os.waitpid(child, 0)[1] == 0
    store.delete([info.key for info in list_all(store, "fork/").objects])


def test_files_of_several_parts_keep_their_content(handles, tmp_path):
    store = handles[0]
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1024) * 1024 * 40)
    store.upload("parts/file", source)
    info = store.head("parts/file")
    assert info.size_bytes == source.stat().st_size
    assert store.download("parts/file", tmp_path / "copy") == info
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert store.get("parts/file", if_match=info.etag).info == info
    expect(PreconditionFailed, lambda: store.put_if_match("parts/file", b"x", etag=info.etag[:-2] + "-9"))
    store.put_if_match("parts/file", b"x", etag=info.etag)
    store.delete(["parts/file"])
