"""What ``icedb doctor`` says of settings, versions, Java and the disk. Store and Redis are asked in tests/integration."""

import json
import shutil
from types import SimpleNamespace

import pytest
from icedb.cli import doctor
from icedb_log.errors import PermissionDenied
from icedb_log.keys import PROBE_FOLDER
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.object_store import DeleteReport, FailedDelete

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def find(said_by_icedb):
    """What is found of a part: its status, and all that is said of it. No Redis answers here: the exit code is 1."""

    def find(check):
        document = json.loads(said_by_icedb("doctor", "-o", "json", code=1).out)
        found = [each for each in document["checks"] if each["check"] == check]
        return found[0]["status"], " ".join(f"{each['message']} {each['remedy']}" for each in found)

    return find


def test_what_is_well_is_told_in_a_line_and_what_fails_gives_the_exit_code(said_by_icedb):
    said = said_by_icedb("doctor", code=1)
    lines = said.out.splitlines()
    assert [line.split()[:2] for line in lines if not line.startswith(" ")] == [
        ["ok", "versions"], ["ok", "settings"], ["ok", "store"], ["ok", "list"], ["ok", "put"], ["ok", "get"],
        ["ok", "conditions"], ["ok", "clock"], ["ok", "uploads"], ["ok", "delete"], ["fail", "redis"], ["ok", "java"], ["ok", "scratch"],
    ]  # fmt: skip
    assert "ICEDB_REDIS_URL" in said.out
    assert "12 ok, 0 warn, 1 fail" in said.err


def test_an_unknown_setting_is_named_with_the_nearest_one(cli_env, find):
    cli_env.setenv("ICEDB_MERGE_TURN_MSS", "5")
    cli_env.setenv("ICEDB_QQQQQQ", "5")
    status, told = find("settings")
    assert status == "warn"
    assert "ICEDB_MERGE_TURN_MSS is no setting; did you mean ICEDB_MERGE_TURN_MS" in told
    assert "ICEDB_QQQQQQ is no setting: it has no effect" in told


def test_a_wrong_setting_is_told_once_with_who_reads_it(cli_env, find):
    cli_env.setenv("ICEDB_LOCK_TTL_MS", "soon")
    cli_env.setenv("ICEDB_GATEWAY_PORT", "tcp://10.0.0.1:9010")  # what Kubernetes sets for a Service of that name
    status, told = find("settings")
    assert status == "fail"
    assert told.count("ICEDB_LOCK_TTL_MS: ") == 1
    assert "beat, " in told and "merger" in told
    assert "ICEDB_GATEWAY_PORT: " in told and "(read by gateway)" in told


def test_the_commands_own_settings_are_needed_for_the_rest(cli_env, find, said_by_icedb):
    cli_env.setenv("ICEDB_REDIS_URL", "http://nowhere")
    assert find("settings")[0] == "fail"
    assert "redis " not in said_by_icedb("doctor", code=1).out.replace("ICEDB_REDIS", "")


def test_packages_of_several_releases_fail(monkeypatch, find):
    releases = {"icedb": "1.1.0", "icedb-log": "1.0.0", "other": "3"}
    found = [SimpleNamespace(name=name, version=release) for name, release in releases.items()]
    monkeypatch.setattr(doctor, "distributions", lambda: found)
    status, told = find("versions")
    assert (status, "icedb 1.1.0, icedb-log 1.0.0" in told) == ("fail", True)


def test_a_java_that_does_not_run_fails(cli_env, find, tmp_path):
    cli_env.setenv("JAVA_HOME", str(tmp_path))
    status, told = find("java")
    assert (status, str(tmp_path) in told) == ("fail", True)


def test_a_store_that_is_not_set_fails(cli_env, find):
    cli_env.delenv("ICEDB_STORE")
    assert find("store") == ("fail", "no store is set set ICEDB_STORE: file:///absolute/folder or s3://bucket/prefix")


def test_deletes_that_are_refused_are_told(cli_env, find):
    refused = lambda _self, keys: DeleteReport((), (FailedDelete(keys[0], reason="AccessDenied", kind="denied"),))  # noqa: E731
    cli_env.setattr(LocalObjectStore, "delete", refused)
    status, told = find("delete")
    assert status == "warn"
    assert "denied: AccessDenied" in told and "s3:DeleteObject" in told


@pytest.mark.parametrize(("denied", "said"), [("put", "s3:PutObject"), ("get", "s3:GetObject")])
def test_each_right_is_tried_whatever_became_of_the_others(cli_env, said_by_icedb, denied, said):
    def refuse(*_):
        raise PermissionDenied("AccessDenied")

    cli_env.setattr(LocalObjectStore, denied, refuse)
    found = {each["check"]: each for each in json.loads(said_by_icedb("doctor", "-o", "json", code=1).out)["checks"]}
    assert found[denied]["status"] == "fail"
    assert said in found[denied]["remedy"]
    assert found["list"]["status"] == found["conditions"]["status"] == "ok"
    assert found["get" if denied == "put" else "put"]["status"] == "ok"
    assert found["delete"]["status"] == ("warn" if denied == "put" else "ok")


def test_uploads_that_cannot_be_listed_are_the_janitors_business(cli_env, find):
    def refuse(*_, **__):
        raise PermissionDenied("AccessDenied")

    cli_env.setattr(LocalObjectStore, "abort_stale_uploads", refuse)
    status, told = find("uploads")
    assert (status, "s3:ListBucketMultipartUploads" in told) == ("warn", True)


def test_who_sends_to_a_front_end_is_told_of_it_and_of_no_store(cli_env, said_by_icedb):
    cli_env.delenv("ICEDB_STORE")
    cli_env.setenv("ICEDB_ADDRESS", "http://127.0.0.1:1")
    found = {each["check"]: each for each in json.loads(said_by_icedb("doctor", "-o", "json", code=1).out)["checks"]}
    assert set(found) == {"versions", "settings", "front end"}
    assert (found["settings"]["status"], "janitor" in found["settings"]["message"]) == ("ok", False)
    assert found["front end"]["status"] == "fail" and "http://127.0.0.1:1" in found["front end"]["message"]


def test_it_leaves_no_scratch_object(find, tmp_path):
    find("delete")
    assert not list((tmp_path / "warehouse").rglob(f"{PROBE_FOLDER}/*"))


def test_a_full_disk_is_told(monkeypatch, find):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1024))
    status, told = find("scratch")
    assert (status, "TMPDIR" in told) == ("warn", True)
    status, told = find("store")
    assert (status, "0.0 GiB free" in told, "make room" in told) == ("warn", True, True)


def test_no_redis_is_needed_where_no_service_is_installed_and_none_is_set(cli_env, said_by_icedb):
    cli_env.setattr(doctor, "_service_settings", dict)
    cli_env.delenv("ICEDB_REDIS_URL", raising=False)
    said = said_by_icedb("doctor", "-o", "json")
    found = {each["check"]: each for each in json.loads(said.out)["checks"]}
    assert found["redis"]["status"] == "ok"
    assert "`--local` do without" in found["redis"]["message"]
    cli_env.setenv("ICEDB_REDIS_URL", "redis://127.0.0.1:1/0")
    assert '"fail": 1' in said_by_icedb("doctor", "-o", "json", code=1).out
