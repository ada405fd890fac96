"""``icedb doctor`` on a real Redis and S3 over HTTP, with each fault of theirs provoked; Spark once, as soak."""

import json

import pytest
from client_rig import cli_env, said_by_icedb  # noqa: F401 - fixtures
from icedb_log.clock import SystemClock
from icedb_sim.rigs.redis_server import RedisServer
from redis import Redis

pytestmark = [pytest.mark.s3, pytest.mark.redis]


@pytest.fixture
def look(cli_env, said_by_icedb, s3_server, redis):  # noqa: F811 - fixtures
    """Look with a sound Redis and bucket unless the test says otherwise; what is not ok, by part."""
    cli_env.setenv("ICEDB_STORE", f"s3://{s3_server.bucket}/doctor")
    cli_env.setenv("ICEDB_S3_ENDPOINT", s3_server.endpoint_url)
    cli_env.setenv("ICEDB_S3_CONNECT_TIMEOUT_MS", "200")
    cli_env.setenv("AWS_ACCESS_KEY_ID", "dev")
    cli_env.setenv("AWS_SECRET_ACCESS_KEY", "dev")
    cli_env.setenv("ICEDB_REDIS_URL", redis.url)
    cli_env.setenv("ICEDB_REDIS_TIMEOUT_MS", "3000")

    def look(code, **variables):
        for name, value in variables.items():
            cli_env.setenv(name, value)
        document = json.loads(said_by_icedb("doctor", "-o", "json", code=code).out)
        assert document["fail"] == sum(each["status"] == "fail" for each in document["checks"])
        return {each["check"]: each for each in document["checks"] if each["status"] != "ok"}

    return look


def test_nothing_is_said_of_a_sound_place(look, redis):
    assert look(0, ICEDB_REDLOCK_URLS=redis.url) == {}


def test_a_bucket_that_is_not_there_is_named(look):
    found = look(1, ICEDB_STORE="s3://nowhere-at-all/doctor")
    assert set(found) == {"store"}
    assert "nowhere-at-all" in found["store"]["message"]


def test_a_server_that_is_not_there_is_named(look):
    found = look(1, ICEDB_S3_ENDPOINT="http://127.0.0.1:1")
    assert set(found) == {"store"}
    assert "http://127.0.0.1:1" in found["store"]["message"]


def test_a_store_that_ignores_conditions_is_refused(look, s3_server_without_conditions):
    server = s3_server_without_conditions
    found = look(1, ICEDB_S3_ENDPOINT=server.endpoint_url, ICEDB_STORE=f"s3://{server.bucket}/doctor")
    assert set(found) == {"conditions"}
    assert "ignores conditional writes" in found["conditions"]["message"]


@pytest.mark.parametrize(
    ("ahead_ms", "status", "code"), [(60_000, "warn", 0), (-60_000, "warn", 0), (3_600_000, "fail", 1)]
)
def test_a_clock_that_is_off_is_told(look, monkeypatch, ahead_ms, status, code):
    right = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: right(self) + ahead_ms)
    found = look(code)
    assert {check: each["status"] for check, each in found.items()} == {"clock": status}
    assert "NTP" in found["clock"]["message"] + found["clock"]["remedy"]


def test_a_redis_that_does_not_answer_is_named_without_its_password(look):
    found = look(1, ICEDB_REDIS_URL="redis://user:hunter2@127.0.0.1:1/0")
    assert found["redis"]["status"] == "fail"
    assert "127.0.0.1:1" in found["redis"]["message"] and "hunter2" not in str(found)


def test_a_redis_that_evicts_or_follows_another_is_told(look, redis_server, redis):
    with Redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = look(0, ICEDB_REDIS_URL=redis_server.url)
        assert (found["redis"]["status"], "noeviction" in found["redis"]["remedy"]) == ("warn", True)
        client.config_set("maxmemory-policy", "noeviction")
        client.replicaof("127.0.0.1", redis.port)
    found = look(1)
    assert (found["redis"]["status"], "replica" in found["redis"]["message"]) == ("fail", True)


def test_lock_masters_are_counted(look, redis, redis_server):
    away = "redis://127.0.0.1:1/1,redis://127.0.0.1:2/1"
    assert look(1, ICEDB_REDLOCK_URLS=f"{redis.url},{away}")["locks"]["status"] == "fail"
    one_away = f"{redis.url},{redis_server.url},redis://127.0.0.1:1/1"
    assert look(0, ICEDB_REDLOCK_URLS=one_away)["locks"]["status"] == "warn"
    with RedisServer() as third:
        assert look(0, ICEDB_REDLOCK_URLS=f"{redis.url},{redis_server.url},{third.url}") == {}
    same = redis.url.replace("127.0.0.1", "localhost")
    found = look(1, ICEDB_REDLOCK_URLS=f"{redis.url},{same},{redis_server.url}")
    assert "one server" in found["locks"]["message"]


@pytest.mark.soak
@pytest.mark.spark
def test_spark_is_started_when_it_is_asked_for(cli_env, said_by_icedb, look):  # noqa: F811 - fixtures
    look(0, ICEDB_SPARK_MASTER="local[1]")
    found = {each["check"]: each for each in json.loads(said_by_icedb("doctor", "--spark", "-o", "json").out)["checks"]}
    assert found["spark"]["status"] == "ok"
    cli_env.setenv("ICEDB_SPARK_MASTER", "local[none]")
    found = {
        each["check"]: each
        for each in json.loads(said_by_icedb("doctor", "--spark", "-o", "json", code=1).out)["checks"]
    }
    assert found["spark"]["status"] == "fail"
