"""``icedb doctor``: looks at everything that IceDB needs here, and says what to do about what is wrong.

Looks only: what it writes is a scratch object below the store's probe folder, which it removes. Each part is looked at
whatever the others say. ``fail``: something will not work; ``warn``: it works, and not as it should; ``ok``.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, distributions, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import PROBE_FOLDER
from icedb_log.store.store_clock import SKEW_WARN_MS, check_store_clock

from icedb.cli.output import Markup, count_of, out, print_json, print_note
from icedb.cli.runner import FAILED, chosen_output, connection_of, flag

if TYPE_CHECKING:
    from icedb_client.settings import ClientSettings
    from icedb_log.store.object_store import ObjectStore
    from icedb_log.warehouse import Warehouse
    from pydantic import BaseModel
    from pydantic_settings import BaseSettings

Status = Literal["ok", "warn", "fail"]

SETTINGS_GROUP: Final = "icedb.settings"
"""Entry points by which installed services show their settings: the name of a service, and its class."""
NOT_SETTINGS: Final = frozenset({"ICEDB_DEBUG", "ICEDB_VERSION"})
"""Variables that no class of settings has: of the command, and of deploy/compose.yaml."""
WRITERS: Final = "who only reads needs no right to write"
LEAST_FREE_BYTES: Final = 2 * 1024**3
_COLORS: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_ENGINES: Final = ("pyspark", "pyarrow", "duckdb")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one part.

    Attributes:
        check: The part.
        status: How it is.
        message: What was found, in a sentence.
        remedy: What to do; empty if there is nothing to do.
    """

    check: str
    status: Status
    message: str
    remedy: str = ""


def doctor(
    *,
    context: typer.Context,
    start_spark: bool = flag("--spark", "Start Spark, too, and run a job: ten seconds."),
) -> None:
    """Check front end, store with each right, Redis, Java, Spark, versions, settings. Exit code 1 if a check fails."""
    findings = []
    as_json = chosen_output(context) == "json"
    for finding in examine(connection_of(context), start_spark=start_spark):
        findings.append(finding)
        if not as_json:
            _print(finding)
    counts = {status: sum(each.status == status for each in findings) for status in _COLORS}
    if as_json:
        print_json({**counts, "checks": [asdict(each) for each in findings]})
    else:
        print_note(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["fail"]:
        raise typer.Exit(FAILED)


def _print(finding: Finding) -> None:
    color = _COLORS[finding.status]
    out.print(Markup(f"[{color}]{finding.status:<4}[/]"), f"{finding.check:<10}", end=" ", soft_wrap=True)
    out.print(finding.message, markup=False, soft_wrap=True)
    if finding.remedy:
        out.print(f"{'':16}{finding.remedy}", markup=False, soft_wrap=True)


def examine(given: dict[str, Any], *, start_spark: bool = False) -> Iterator[Finding]:
    """Yield what is found, part by part.

    Args:
        given: Options of the command that stand for settings: ``store``, ``address``, ``redis_url``.
        start_spark: Whether to start Spark.
    """
    yield from _look_at_versions()
    settings = _read_settings(given)
    is_sender = not isinstance(settings, Finding) and settings.address is not None and settings.store is None
    yield from _look_at_settings(given, is_sender=is_sender)
    if isinstance(settings, Finding):
        yield settings
        return
    if settings.address is not None:
        yield _look_at_front_end(settings)
    if is_sender:
        return  # it needs nothing else
    yield from _look_at_store(settings)
    yield from _look_at_redis(settings)
    yield from _look_at_java()
    if start_spark:
        yield _start_spark()
    yield _look_at_scratch()


def _look_at_versions() -> Iterator[Finding]:
    found = {each.name: each.version for each in distributions() if each.name.lower().startswith("icedb")}
    releases = sorted(set(found.values()))
    if len(releases) > 1:
        odd = ", ".join(f"{name} {release}" for name, release in sorted(found.items()))
        yield Finding("versions", "fail", f"packages of several releases: {odd}", "install all of them of one release")
        return
    engines = [f"{name} {each}" for name in _ENGINES if (each := _version_of(name))]
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("versions", "ok", ", ".join([f"icedb {' '.join(releases)}", f"Python {python}", *engines]))


def _version_of(name: str) -> str:
    with suppress(PackageNotFoundError):
        return version(name)
    return ""


def _service_settings() -> "dict[str, type[BaseSettings]]":
    return {each.name: each.load() for each in entry_points(group=SETTINGS_GROUP)}


def _look_at_settings(given: dict[str, Any], *, is_sender: bool) -> Iterator[Finding]:
    from icedb_client.settings import ClientSettings  # noqa: PLC0415 - half a second that `icedb --help` does not need
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    kinds = _service_settings()
    users = {} if is_sender else kinds  # without a store no service runs here, though it may be installed
    everyone: list[type[BaseModel]] = [ClientSettings, *kinds.values()]
    known = {f"ICEDB_{name.upper()}" for kind in everyone for name in kind.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith("ICEDB_") and name not in known | NOT_SETTINGS)
    yield from (_unknown(name, known) for name in unknown)
    wrong: dict[str, list[str]] = {}
    for service, kind in users.items():
        try:
            kind(**{name: value for name, value in given.items() if value is not None and name in kind.model_fields})
        except ValidationError as error:
            for problem in _problems_of(error):
                wrong.setdefault(problem, []).append(service)
    for problem, services in wrong.items():
        yield Finding("settings", "fail", f"{problem} (read by {', '.join(services)})", "docs/settings.md has them all")
    if not unknown and not wrong:
        count = count_of(sum(name in known for name in os.environ), "variable")
        yield Finding("settings", "ok", f"{count} ICEDB_…, right for {', '.join(['the command', *users])}")


def _unknown(name: str, known: set[str]) -> Finding:
    from icedb_log.texts import did_you_mean  # noqa: PLC0415 - only for what is wrong

    meant = did_you_mean(name, known, cutoff=0.75) or ": it has no effect"
    return Finding("settings", "warn", f"{name} is no setting{meant}", "correct its name, or take it away")


def _problems_of(error: Any) -> list[str]:
    from icedb_log.texts import describe_problem  # noqa: PLC0415 - only for what is wrong

    found = []
    for problem in error.errors(include_url=False, include_input=False):
        name = f"ICEDB_{str(problem['loc'][0]).upper()}" if problem["loc"] else ""
        words = "is not set" if problem["type"] == "missing" else describe_problem(problem)
        found.append(f"{name}{': ' if name else ''}{words}")
    return found


def _read_settings(given: dict[str, Any]) -> "ClientSettings | Finding":
    from icedb_client.settings import read_client_settings  # noqa: PLC0415 - as above

    try:
        return read_client_settings(given)
    except InvalidRequest as error:
        told = str(error).removeprefix("settings: ")
        return Finding("settings", "fail", told, "nothing else can be looked at until they are right")


def _look_at_front_end(settings: "ClientSettings") -> Finding:
    from icedb_client.http_transport import HttpTransport  # noqa: PLC0415 - urllib3 only where it is used

    try:
        transport = HttpTransport(settings, clock=SystemClock())
        try:
            tables = transport.list_tables()
        finally:
            transport.close()
    except IceDBError as error:
        return Finding("front end", "fail", str(error), "mend the address, the token, or the front end")
    told = f"{settings.address} answers, and knows {count_of(len(tables), 'table')} that this caller has a grant for"
    return Finding("front end", "ok", told)


def _look_at_store(settings: "ClientSettings") -> Iterator[Finding]:
    if settings.store is None:
        yield Finding(
            "store", "fail", "no store is set", "set ICEDB_STORE: file:///absolute/folder or s3://bucket/prefix"
        )
        return
    try:
        warehouse = settings.store_settings.open()
        warehouse.store.list_page(_prefix_of(warehouse), limit=1)
    except IceDBError as error:
        yield Finding("store", "fail", str(error), "mend the address, the credentials, or the store")
        return
    told, folder = f"{settings.store} answers", str(settings.store).removeprefix("file://")
    if Path(folder).is_dir():
        yield _judge_space("store", folder, told=f"{told}, ", remedy="make room: on a full disk nothing can be written")
    else:
        yield Finding("store", "ok", told)
    key = f"{_prefix_of(warehouse)}{PROBE_FOLDER}/{SystemClock().new_id()}"
    yield Finding("list", "ok", "objects can be listed")
    put = _attempt("put", partial(_put, warehouse.store, key), f"grant s3:PutObject; {WRITERS}")
    yield put
    yield _attempt("get", partial(_get, warehouse.store, key), "grant s3:GetObject: nothing works without")
    remedy = (
        "use a store that honours conditional writes" if put.status == "ok" else "grant s3:PutObject, then look again"
    )
    yield _attempt("conditions", partial(_check_conditions, warehouse), remedy)
    if put.status == "ok":
        yield _look_at_clock(warehouse.store, key)
    remedy = "grant s3:ListBucketMultipartUploads and s3:AbortMultipartUpload to the janitor; others need none"
    uploads = _attempt("uploads", partial(_list_uploads, warehouse), remedy)
    yield replace(uploads, status="warn") if uploads.status == "fail" else uploads
    yield _look_at_delete(warehouse.store, key, is_written=put.status == "ok")


def _put(store: "ObjectStore", key: str) -> str:
    store.put(key, b"icedb doctor")
    return "objects can be written"


def _get(store: "ObjectStore", key: str) -> str:
    with suppress(NotFound):  # it could not be written, and whether it is there may be asked
        store.get(key)
    return "objects can be read"


def _list_uploads(warehouse: "Warehouse") -> str:
    # WARN: nothing is older than the beginning of time. Any other bound would end uploads that others are making.
    warehouse.store.abort_stale_uploads(f"{_prefix_of(warehouse)}{PROBE_FOLDER}/", before_ms=0)
    return "unfinished uploads can be listed"


def _prefix_of(warehouse: "Warehouse") -> str:
    return f"{warehouse.root}/" if warehouse.root else ""


def _attempt(check: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(check, "ok", look())
    except IceDBError as error:
        return Finding(check, "fail", str(error), remedy)


def _check_conditions(warehouse: "Warehouse") -> str:
    warehouse.store.probe()
    return "a second create and a replace of another version are refused"


def _look_at_clock(store: "ObjectStore", key: str) -> Finding:
    """Write the scratch object again, and see whether the store tells when."""
    clock = SystemClock()
    try:
        before_ms = clock.now_ms()
        store_ms = check_store_clock(store, key, clock=clock)
        after_ms = clock.now_ms()
    except IceDBError as error:
        return Finding("clock", "fail", str(error), "set the clock that is wrong (NTP), or use another store")
    skew_ms = max(before_ms - store_ms - 1000, store_ms - after_ms, 0)
    if skew_ms > SKEW_WARN_MS:
        told = f"this host's clock is {skew_ms / 1000:g} s off the store's"
        return Finding("clock", "warn", told, "set the wrong one (NTP)")
    return Finding("clock", "ok", "LastModified is the time of the write; the store and this host agree")


def _look_at_delete(store: "ObjectStore", key: str, *, is_written: bool) -> Finding:
    remedy = "grant s3:DeleteObject to janitor, ingest and merger; others need none"
    try:
        report = store.delete([key])
    except IceDBError as error:
        return Finding("delete", "warn", str(error), remedy)
    if report.failed:
        why = f"{report.failed[0].kind}: {report.failed[0].reason}"
        return Finding("delete", "warn", f"objects cannot be deleted ({why})", remedy)
    if not is_written:
        return Finding("delete", "warn", "not tried: no object could be written", remedy)
    return Finding("delete", "ok", "objects can be deleted")


def _look_at_redis(settings: "ClientSettings") -> Iterator[Finding]:
    from icedb_client.wakeups import RedisLook, look_at_redis  # noqa: PLC0415 - redis only where it is used
    from icedb_log.hosts import redact_url  # noqa: PLC0415 - as above

    masters = [each.strip() for each in os.environ.get("ICEDB_REDLOCK_URLS", "").split(",") if each.strip()]
    looks: dict[str, RedisLook | Unavailable] = {}
    for url in dict.fromkeys((settings.redis_url, *masters)):
        try:
            looks[url] = look_at_redis(url, timeout_ms=settings.redis_timeout_ms)
        except Unavailable as error:
            looks[url] = error
    broker = looks[settings.redis_url]
    is_needed = "redis_url" in settings.model_fields_set or bool(_service_settings())
    if isinstance(broker, Unavailable) and not is_needed:
        told = "none answers, and none is set: only workers elsewhere need it; `icedb work` and `--local` do without"
        yield Finding("redis", "ok", told)
    elif isinstance(broker, Unavailable):
        yield Finding(
            "redis", "fail", str(broker), "start it, or correct ICEDB_REDIS_URL; work waits for sweeps meanwhile"
        )
    else:
        queues = ", ".join(f"{name} {count}" for name, count in broker.waiting.items() if count) or "nothing"
        yield Finding("redis", "ok", f"Redis {broker.version} answers; in its queues: {queues}")
    for url, look in looks.items():
        if isinstance(look, RedisLook) and not look.is_master:
            told = f"{redact_url(url)} is a replica: it takes no writes"
            yield Finding("redis", "fail", told, "give the address of a master")
        if isinstance(look, RedisLook) and look.may_evict:
            told = f"{redact_url(url)} throws keys away when it is full: locks and wake-ups are lost"
            yield Finding("redis", "warn", told, "set its maxmemory-policy to noeviction")
    if masters:
        yield _judge_masters([looks[url] for url in masters])


def _judge_masters(looks: list[Any]) -> Finding:
    away = [each for each in looks if isinstance(each, Unavailable)]
    ids = [each.run_id for each in looks if not isinstance(each, Unavailable)]
    majority = len(looks) // 2 + 1
    if len(set(ids)) < len(ids):
        told = "two addresses of ICEDB_REDLOCK_URLS lead to one server"
        return Finding("locks", "fail", told, "each master has to be a server of its own")
    if len(ids) < majority:
        told = f"{len(ids)} of {len(looks)} lock masters answer, {majority} are needed: {away[0]}"
        return Finding("locks", "fail", told, "start them; no flush and no merge runs meanwhile")
    if away:
        told = f"{len(ids)} of {len(looks)} lock masters answer: {away[0]}"
        return Finding("locks", "warn", told, "start it: locks survive no other failure")
    return Finding("locks", "ok", f"{len(ids)} of {len(looks)} lock masters answer")


def _look_at_java() -> Iterator[Finding]:
    try:
        from icedb_engine.spark.spark_session import find_java  # noqa: PLC0415 - PySpark, which not every image has
    except ImportError:
        yield Finding("java", "ok", "Spark is not installed here: only ingest and merger need it")
        return
    try:
        java = find_java()
    except InvalidRequest as error:
        yield Finding("java", "fail", str(error), "ingest and merger do not start without")
        return
    yield Finding("java", "ok", f"Java {java.version} ({java.source})")


def _start_spark() -> Finding:
    try:
        from icedb_engine.spark.spark_jobs import warm_up  # noqa: PLC0415 - as above
        from icedb_engine.spark.spark_session import DEFAULT_MASTER, SparkSettings, close_spark, open_spark  # noqa: PLC0415
    except ImportError as error:
        return Finding("spark", "fail", f"Spark is not installed here ({error})", "run this where ingest or merger run")
    master = os.environ.get("ICEDB_SPARK_MASTER") or DEFAULT_MASTER
    try:
        spark = open_spark(SparkSettings(master=master, app_name="icedb-doctor", driver_memory="512m"))
        try:
            warm_up(spark)
        finally:
            close_spark(spark)
    except IceDBError as error:
        return Finding("spark", "fail", str(error), "docs/spark.md says what each place needs")
    return Finding("spark", "ok", f"a job ran at {master}")


def _look_at_scratch() -> Finding:
    from tempfile import gettempdir  # noqa: PLC0415 - only here

    return _judge_space("scratch", gettempdir(), remedy="merges sort and spill there: point TMPDIR to a larger disk")


def _judge_space(check: str, folder: str, *, told: str = "", remedy: str) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    told = f"{told}{free_bytes / 1024**3:.1f} GiB free in {folder}"
    return Finding(check, "ok", told) if free_bytes >= LEAST_FREE_BYTES else Finding(check, "warn", told, remedy)
