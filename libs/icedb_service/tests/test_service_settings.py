import os

import pytest
from icedb_log.errors import InvalidRequest
from icedb_log.hosts import redact_url
from icedb_log.texts import read_field_docs
from icedb_service.settings import ServiceSettings, SparkServiceSettings, load_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in list(os.environ):
        if name.startswith("ICEDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ICEDB_STORE", "file:///tmp/w")


def test_defaults_need_only_a_store(monkeypatch):
    settings = load_settings(ServiceSettings)
    assert settings.store_settings.url == "file:///tmp/w"
    assert settings.store_settings.s3 is None
    assert settings.lock_master_urls == (settings.redis_url,)
    monkeypatch.delenv("ICEDB_STORE")
    with pytest.raises(InvalidRequest, match="ICEDB_STORE is not set: Where the warehouse lies"):
        load_settings(ServiceSettings)


def test_an_empty_variable_is_no_variable(monkeypatch):
    monkeypatch.setenv("ICEDB_LOCK_TTL_MS", "")
    assert load_settings(ServiceSettings).lock_ttl_ms == ServiceSettings.model_fields["lock_ttl_ms"].default


def test_s3_options_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "s3://bucket/root")
    monkeypatch.setenv("ICEDB_S3_ENDPOINT", "http://127.0.0.1:9000")
    s3 = load_settings(ServiceSettings).store_settings.s3
    assert s3 is not None
    assert s3.endpoint_url == "http://127.0.0.1:9000"


def test_masters_are_split_and_must_be_independent_and_odd(monkeypatch):
    monkeypatch.setenv("ICEDB_REDLOCK_URLS", "redis://a:1, redis://b:1,redis://c:1")
    assert load_settings(ServiceSettings).lock_master_urls == ("redis://a:1", "redis://b:1", "redis://c:1")
    monkeypatch.setenv("ICEDB_REDLOCK_URLS", "redis://a:6379/0,redis://a/1,redis://c")
    with pytest.raises(InvalidRequest, match="names one server twice"):
        load_settings(ServiceSettings)
    monkeypatch.setenv("ICEDB_REDLOCK_URLS", "redis://a,redis://b")
    with pytest.raises(InvalidRequest, match="use an odd number"):
        load_settings(ServiceSettings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ICEDB_REDIS_URL", "http://x", "not a Redis address"),
        ("ICEDB_LOCK_TTL_MS", "15s", "ICEDB_LOCK_TTL_MS='15s': write a whole number of milliseconds, digits alone"),
        ("ICEDB_METRICS_PORT", "70000", "ICEDB_METRICS_PORT"),
        ("ICEDB_LOG_FORMAT", "xml", "'json' or 'console'"),
        ("ICEDB_LOCK_TTL_MS", "600", r"4 \* ICEDB_REDIS_TIMEOUT_MS <= ICEDB_LOCK_TTL_MS must hold.*4 \* 300 > 600"),
        ("ICEDB_MERGE_SWEEP_INTERVAL_MS", "600000", "ICEDB_MERGE_SWEEP_INTERVAL_MS < ICEDB_MESSAGE_EXPIRY_MS"),
    ],
)
def test_what_is_wrong_is_named(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=message):
        load_settings(ServiceSettings)


def test_all_that_is_wrong_is_named_at_once(monkeypatch):
    monkeypatch.setenv("ICEDB_LOCK_TTL_MS", "x")
    monkeypatch.setenv("ICEDB_METRICS_PORT", "y")
    with pytest.raises(InvalidRequest, match=r"ICEDB_LOCK_TTL_MS.*ICEDB_METRICS_PORT"):
        load_settings(ServiceSettings)


def test_a_password_is_never_shown(monkeypatch):
    monkeypatch.setenv("ICEDB_REDIS_URL", "http://me:hunter2@host")
    with pytest.raises(InvalidRequest) as caught:
        load_settings(ServiceSettings)
    assert "hunter2" not in str(caught.value)
    assert redact_url("redis://me:hunter2@host:1/0") == "redis://host:1/0"


@pytest.mark.parametrize("master", ["local[2]", "local[*]", "spark://host:7077", "k8s://https://host", "yarn"])
def test_one_setting_says_where_spark_runs(monkeypatch, master):
    monkeypatch.setenv("ICEDB_SPARK_MASTER", master)
    assert load_settings(SparkServiceSettings).spark_master == master


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ICEDB_SPARK_MASTER", "sc://host:15002", r"no place where Spark runs; write local\[2\]"),
        ("ICEDB_SPARK_OPTIONS", "spark.cores.max=2", "ICEDB_SPARK_OPTIONS=.*no JSON .*; write an object, e.g. {"),
        ("ICEDB_SPARK_OPTIONS", '["spark.cores.max"]', "ICEDB_SPARK_OPTIONS"),
        ("ICEDB_SPARK_JOB_LIMIT_MS", "3600000", "ICEDB_SPARK_JOB_LIMIT_MS < ICEDB_TASK_TIME_LIMIT_MS must hold"),
        ("ICEDB_SPARK_SENDS_KEYS", "1", "ICEDB_SPARK_SENDS_KEYS needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_what_is_wrong_with_spark_is_named(monkeypatch, name, value, message):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=message):
        load_settings(SparkServiceSettings)


def test_options_of_spark_are_a_json_object_and_jobs_end_before_tasks(monkeypatch):
    monkeypatch.setenv("ICEDB_SPARK_OPTIONS", '{"spark.cores.max": "2"}')
    monkeypatch.setenv("ICEDB_TASK_TIME_LIMIT_MS", "10000")
    settings = load_settings(SparkServiceSettings)
    assert settings.spark_options == {"spark.cores.max": "2"}
    assert settings.job_limit_ms == 9000


def test_tasks_get_the_keys_only_if_they_are_sent(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "s3://bucket/wh")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    assert load_settings(SparkServiceSettings).store_settings.s3.access_key_id is None
    monkeypatch.setenv("ICEDB_SPARK_SENDS_KEYS", "1")
    sent = load_settings(SparkServiceSettings).store_settings.s3
    assert (sent.access_key_id, sent.secret_access_key) == ("id", "hunter2")
    assert "hunter2" not in repr(sent)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "short")
    with pytest.raises(InvalidRequest, match="cannot send keys that expire"):
        load_settings(SparkServiceSettings)


def test_every_field_says_what_it_means():
    for kind in (ServiceSettings, SparkServiceSettings):
        docs = read_field_docs(kind)
        for name in kind.model_fields:
            assert docs[name], name
            if name.endswith("_ms"):
                assert "millisecond" in docs[name], name
