"""The settings of every service, read from ``ICEDB_…`` environment variables.

Each field says what it means, its unit and what is traded. A service adds its own fields in a subclass. Validators
check relations between fields and name the inequality that fails. Values are fixed once read.
"""

import json
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from icedb_log.errors import InvalidRequest
from icedb_log.hosts import check_redis_url, redact_url
from icedb_log.store_settings import StoreFields, StoreSettings
from icedb_log.texts import describe_problem, read_field_docs
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MAX_PORT: Final = 65_535
_MASTER: Final = re.compile(r"local(\[[^\s\]]+\])?|yarn|(spark|k8s)://\S+")
_SIGNS: Final = {"<": (operator.lt, ">="), "<=": (operator.le, ">"), ">=": (operator.ge, "<")}
_KEY_NAMES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def matching(pattern: str, problem: str) -> AfterValidator:
    """Return what checks that text matches a pattern; ``problem`` says of what does not what is wrong, and a remedy."""
    wanted = re.compile(pattern)

    def check(text: str) -> str:
        if not wanted.fullmatch(text):
            raise ValueError(f"{text[:80]!r} {problem}")
        return text

    return AfterValidator(check)


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class ServiceSettings(StoreFields, BaseSettings):
    """What all services need to know."""

    model_config = SettingsConfigDict(env_prefix="ICEDB_", frozen=True, extra="ignore", env_ignore_empty=True)

    store: str
    """Where the warehouse lies: `file:///absolute/folder` (one machine) or `s3://bucket/prefix`."""

    redis_url: Annotated[str, Field(repr=False), AfterValidator(check_redis_url)] = "redis://127.0.0.1:6379/0"
    """Redis for the queues, results and wake-ups. It holds nothing that cannot be lost."""

    redlock_urls: Annotated[CommaSeparated, Field(repr=False)] = ()
    """Redis masters for locks, comma separated; they must not replicate each other. Use an odd number: three
    survive the loss of one. Empty: the one of `ICEDB_REDIS_URL`."""

    redis_timeout_ms: Annotated[int, Field(ge=50, le=10_000)] = 300
    """How long one Redis lock or wake-up request may take, milliseconds. Longer tolerates slow networks; a dead
    majority of masters delays each run by a few times this."""

    lock_ttl_ms: Annotated[int, Field(ge=500, le=10 * MINUTE_MS)] = 15 * SECOND_MS
    """How long a lock outlives a worker that died, milliseconds. Renewed every third of it. Shorter hands work over
    sooner, longer rides out pauses."""

    message_expiry_ms: Annotated[int, Field(ge=SECOND_MS)] = 10 * MINUTE_MS
    """How long a wake-up may wait in a queue, milliseconds. An expired one is made good by the next sweep. It has to be
    longer than all tables' turns take: those that wait are else woken a second time behind those that had their turn,
    and the last of them never have theirs. Shorter repairs a wake-up sooner that was lost with the host of a worker
    that does not start again."""

    ingest_sweep_interval_ms: Annotated[int, Field(ge=200)] = 2 * SECOND_MS
    """How often all tables are searched for staged batches without a wake-up, milliseconds.
    Shorter bounds the delay of a lost wake-up; each sweep lists the staging folder of every table, unless its last
    commit had several batches: then it is flushed without a look. New tables are looked for every 10 s.
    A table that rests is looked at less often, as by all sweeps (docs/cost.md)."""

    merge_sweep_interval_ms: Annotated[int, Field(ge=200)] = 10 * SECOND_MS
    """How often all tables are looked at for merges, milliseconds. Costs one listing of `_log` for each table."""

    janitor_sweep_interval_ms: Annotated[int, Field(ge=200)] = 30 * SECOND_MS
    """How often all tables are vacuumed, milliseconds. Bounds how long dead objects outlive their grace period."""

    orphan_sweep_interval_ms: Annotated[int, Field(ge=SECOND_MS)] = HOUR_MS
    """How often each table is searched for data files that no log file names, milliseconds. Costs a listing of all
    data files of the table."""

    task_time_limit_ms: Annotated[int, Field(ge=10 * SECOND_MS)] = HOUR_MS
    """A task that runs longer is killed with its process and left to the next sweep, milliseconds. The janitor has
    threads: there a run stops before its next deletes, and one that hangs ends the process (first `/healthz` fails)."""

    shutdown_grace_ms: Annotated[int, Field(ge=SECOND_MS)] = 10 * MINUTE_MS
    """How long SIGTERM waits for the running task, milliseconds; then the process ends anyway (nothing is lost,
    the work is done again). Give the supervisor more than this."""

    metrics_host: str = "127.0.0.1"
    """Address that `/metrics`, `/healthz` and `/readyz` listen on; `0.0.0.0` in containers."""

    metrics_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 0
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 turns them off."""

    access_file: str | None = None
    """Who may do what with which table: a TOML or JSON file (docs/access.md), loaded again when it changes. Not set:
    everybody may do everything, and only services on a loopback address start."""

    open_access: bool = False
    """Whether a service without `ICEDB_ACCESS_FILE` may listen on an address that others can reach. Only behind a proxy
    or in a closed network: everyone who reaches the port may read and write every table."""

    tls_cert_file: str | None = None
    """Certificate chain (PEM) of gRPC and HTTP; with it they are served by TLS only. Loaded again when it changes.
    `/metrics` stays as it is."""

    tls_key_file: str | None = None
    """Private key (PEM, no passphrase) of `ICEDB_TLS_CERT_FILE`."""

    tls_client_ca_file: str | None = None
    """Authorities (PEM) of client certificates. With it every caller has to show one (mTLS), health probes too; its
    names say who it is unless a token does. HTTP takes new ones up as they come, and forgets old ones at a restart."""

    log_format: Literal["json", "console"] = "json"
    """`json`: one object a line for machines; `console`: for people."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""

    @field_validator("redlock_urls")
    @classmethod
    def _check_redlock_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            check_redis_url(url)
        places = [(urlsplit(url).hostname, urlsplit(url).port or 6379) for url in urls]
        if len(set(places)) != len(places):
            raise ValueError("names one server twice; each master must be an independent server")
        if len(urls) > 1 and len(urls) % 2 == 0:
            raise ValueError(f"{len(urls)} masters survive no more failures than {len(urls) - 1}; use an odd number")
        return urls

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        for name in ("ingest_sweep_interval_ms", "merge_sweep_interval_ms", "janitor_sweep_interval_ms"):
            # A sweep's wake-up would collapse into its own expired predecessor for a whole interval.
            self._require(name, "<", "message_expiry_ms")
        self._require("redis_timeout_ms", "<=", "lock_ttl_ms", factor=4, why=" (a renewal has to fit)")
        return self

    def _require(self, left: str, sign: str, right: str, *, factor: int = 1, why: str = "") -> None:
        """Raise ValueError, with the inequality, unless it holds between two fields."""
        holds, opposite = _SIGNS[sign]
        one, other = getattr(self, left), getattr(self, right)
        if not holds(factor * one, other):
            times = f"{factor} * " if factor > 1 else ""
            raise ValueError(
                f"{times}{env_name(left)} {sign} {env_name(right)} must hold{why}, but {times}{one} {opposite} {other}"
            )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError(
                f"{env_name('tls_cert_file')} and {env_name('tls_key_file')} go together; set both or none"
            )
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError(f"{env_name('tls_client_ca_file')} needs {env_name('tls_cert_file')}")
        return self

    @property
    def lock_master_urls(self) -> tuple[str, ...]:
        """The masters that locks are taken on."""
        return self.redlock_urls or (self.redis_url,)


class EndpointSettings(ServiceSettings):
    """Settings of the services that answer callers: front end, snapshot service, S3 gateway, console."""

    drain_ms: Annotated[int, Field(ge=0)] = 20 * SECOND_MS
    """How long SIGTERM waits for calls that are being answered, milliseconds. Give the supervisor some ten seconds
    more."""


class ReaderSettings(EndpointSettings):
    """Settings of the services that read tables for callers: snapshot service, S3 gateway, console."""

    read_wait_ms: Annotated[int, Field(ge=100)] = 30 * SECOND_MS
    """How long a caller waits for the store, milliseconds: for a read of a log, also one that another caller began, or
    for the first bytes of a file."""

    read_threads: Annotated[int, Field(ge=2, le=1000)] = 32
    """Reads that may wait for the store at once, each in a thread, a quarter of them for one table, so that one whose
    store hangs leaves threads to the others; many callers of one read share one, and what is answered from memory
    needs none. Above it callers are refused, with the time to wait. In the S3 gateway as many threads more fetch parts
    of files; in the console half as many read the figures of all tables."""

    read_max_tables: Annotated[int, Field(ge=1)] = 2000
    """Tables whose logs are kept in memory; the least recently used are read again when asked for."""


class HttpServiceSettings(EndpointSettings):
    """Settings of the services that answer callers over HTTP: front end, S3 gateway, console."""

    http_max_connections: Annotated[int, Field(ge=1, le=100_000)] = 2000
    """HTTP connections at once; requests above it are answered 503. An open page of the console holds one."""

    http_header_timeout_ms: Annotated[int, Field(ge=100)] = 10 * SECOND_MS
    """How long a connection may take to send a request's headers, milliseconds."""

    http_keep_alive_ms: Annotated[int, Field(ge=SECOND_MS)] = 75 * SECOND_MS
    """How long an idle connection is kept, milliseconds; longer than the load balancer's own limit."""

    access_log: Literal["all", "errors", "none"] = "all"
    """Which HTTP requests and gRPC calls are logged: all, those that were refused or failed, or none. Never with a
    signature, a token or a query."""


class SparkServiceSettings(ServiceSettings):
    """What services with a Spark session need in addition."""

    spark_master: str = "local[*]"
    """Where Spark runs: `local[n]` in the worker's own process tree, `spark://host:7077`, `k8s://…` or `yarn` on a
    cluster. See docs/spark.md for what each needs."""

    spark_ui_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Where Spark's web interface is served, which shows jobs and tasks as they run; 0: nowhere. It asks nobody who
    they are: with `local[n]` it is on the loopback interface alone, else on all of the driver's."""

    spark_starts_late: bool = False
    """Whether Spark starts with the first task that needs it, not with the worker: a worker that has little to do then
    takes a fifth of the memory, and its first task some seconds more. `/readyz` does not wait for Spark then, and says
    so when a task has tried to start it in vain."""

    spark_options: Annotated[Mapping[str, str], NoDecode, Field(repr=False)] = {}
    """Further options of Spark, a JSON object, e.g. `{"spark.cores.max": "4", "spark.driver.host": "merger"}`."""

    spark_sends_keys: bool = False
    """Whether tasks get this worker's `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, inside the functions that they
    run. Else they find keys as boto3 does, where they run: a role, or the executors' own environment. Sending is for
    clusters that have neither; it needs encrypted connections to the cluster, and keys that do not expire."""

    spark_job_limit_ms: Annotated[int, Field(ge=SECOND_MS)] | None = None
    """A Spark job that runs longer is interrupted, milliseconds. Longer lets larger jobs through; shorter frees the
    cluster sooner from a query that never ends. Empty: nine tenths of `ICEDB_TASK_TIME_LIMIT_MS`."""

    spark_memory_mb: Annotated[int, Field(ge=512)] = 1024
    """Heap of the Spark driver, MiB. Rows do not pass through it; tasks have `ICEDB_TASK_MEMORY_MB` of their own."""

    task_memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory that one merge or flush task may take before it spills to disk, MiB: all of its process, for a flush. As
    many tasks run at once as `ICEDB_SPARK_MASTER` has cores, and the JVM comes on top."""

    @field_validator("spark_master")
    @classmethod
    def _check_master(cls, master: str) -> str:
        if not _MASTER.fullmatch(master):
            raise ValueError("no place where Spark runs; write local[2], spark://host:7077, k8s://… or yarn")
        return master

    @field_validator("spark_options", mode="before")
    @classmethod
    def _read_options(cls, value: object) -> object:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(f'no JSON ({error}); write an object, e.g. {{"spark.cores.max": "4"}}') from error

    @model_validator(mode="after")
    def _check_job_limit(self) -> Self:
        if self.job_limit_ms >= self.task_time_limit_ms:
            # Celery would kill the task first, and leave its job to run on at a cluster.
            raise ValueError(
                f"{env_name('spark_job_limit_ms')} < {env_name('task_time_limit_ms')} must hold, but "
                f"{self.job_limit_ms} >= {self.task_time_limit_ms}"
            )
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.spark_sends_keys and os.environ.get("AWS_SESSION_TOKEN"):
            raise ValueError(
                f"{env_name('spark_sends_keys')} cannot send keys that expire (AWS_SESSION_TOKEN is set): "
                "give the executors a role"
            )
        if self.spark_sends_keys and not all(os.environ.get(name) for name in _KEY_NAMES):
            raise ValueError(f"{env_name('spark_sends_keys')} needs {' and '.join(_KEY_NAMES)}")
        return self

    @property
    def job_limit_ms(self) -> int:
        """How long one Spark job may take."""
        return self.spark_job_limit_ms or self.task_time_limit_ms * 9 // 10

    @property
    def store_settings(self) -> StoreSettings:
        """What is needed to open the warehouse, also from a Spark task."""
        settings = super().store_settings
        if settings.s3 is None or not self.spark_sends_keys:
            return settings
        key_id, secret = (os.environ[name] for name in _KEY_NAMES)
        return replace(settings, s3=replace(settings.s3, access_key_id=key_id, secret_access_key=secret))


S = TypeVar("S", bound=ServiceSettings)


def load_settings(kind: type[S]) -> S:
    """Read settings from the environment.

    Raises:
        InvalidRequest: One message that names every variable that is wrong, and why.
    """
    try:
        return kind()
    except ValidationError as error:
        raise InvalidRequest("settings: " + "; ".join(_explain(kind, error))) from error


def env_name(field: str) -> str:
    """Return the environment variable of a field."""
    return f"ICEDB_{field.upper()}"


def _explain(kind: type[ServiceSettings], error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        message = describe_problem(problem)
        if not field:
            lines.append(message)
        elif problem["type"] == "missing":
            lines.append(f"{env_name(field)} is not set: {read_field_docs(kind)[field]}")
        else:
            given = redact_url(os.environ.get(env_name(field), ""))[:120]
            lines.append(f"{env_name(field)}={given!r}: {message}")
    return lines
