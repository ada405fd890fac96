"""Every alert, provoked once on a real stack: what is wrong is done to the services, the store, Redis or a table.

A real Prometheus scrapes real services and evaluates the rules as they are, but for their times: they look at seconds
where they look at minutes and days (`hasten_rules`). Workers are without Spark, the store is an S3 server behind the
fault proxy. An alert that is not among those here fires in rule tests alone, and `RULE_TESTS_ONLY` says why.
"""

import contextlib
import dataclasses
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest
import yaml
from icedb_client import Client, ClientSettings
from icedb_local.chaos.chaos_layout import ChaosLayout, Pace
from icedb_local.chaos.fault_proxy import FaultProxy, ProxyFault
from icedb_local.ports import find_free_ports
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import S3_ACCESS_KEY, S3_SECRET_KEY
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError
from icedb_log.feed.views import create_view
from icedb_log.holds.erasures import create_erasure
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import LOG_FILES
from icedb_log.ingest.staging import stage_batch
from icedb_log.names import MERGE_RETAIN
from icedb_log.store.object_store import list_all
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_log.units import DAY_MS, MIB
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.access_rig import Authority, token_entry, write_access
from icedb_sim.tables.log_steps import lengthen_log
from icedb_sim.tables.row_files import RowFileWriter, encode_rows
from processes import service_env
from prometheus_rig import JOBS, RULES, Prometheus, running_prometheus, wait_for
from waiting import LIMIT_S

CLOCK = SystemClock()
DEADLINE_S = 180
POLL_S = 0.3
FIRST_DAY = 18_262
"""2020-01-01, from which on certificates of tests are valid, in days since 1970."""
ANYBODY = ssl._create_unverified_context()
LARGE_MB = 1
SHORT = {"log_grace_ms": 5_000, "data_grace_ms": 5_000}
PAUSE_S = 1.5
DENIED = 403
AWAY = 503

Told = tuple[str, str]
"""An alert, and the value of one of its labels."""
Tick = Callable[[], object]
"""What goes on while one waits for alerts."""

RULE_TESTS_ONLY = {
    "IceDBTableOverBudget": "its pace is that of an hour",
    "IceDBEngineFailing": "it takes Spark, and a JVM that dies again and again",
    "IceDBFlushesFailing": "it takes a reader that crashes without any batch, or a store that fails for longer than the other steps",
    "IceDBMergeDiffers": "no merge of ours differs, and a false engine would be no real stack",
    "IceDBJobsInterrupted": "a job's time limit is a minute at least, and it takes Spark",
    "IceDBClockJumps": "tests do not set the machine's clock",
    "IceDBStoreClockJumped": "the fault proxy moves what answers say, not what is stored, and the janitor sees through it",
}
STEPS: list[tuple[frozenset[Told], Callable[["Scene"], AbstractContextManager[Tick]]]] = []


def provokes(*alerts: Told) -> Callable[[Callable[["Scene"], Iterator[Tick]]], None]:
    """Make a step of a function that does something wrong, yields what goes on meanwhile, and mends it."""

    def take(step: Callable[["Scene"], Iterator[Tick]]) -> None:
        STEPS.append((frozenset(alerts), contextmanager(step)))

    return take


@dataclasses.dataclass(frozen=True)
class Scene:
    """The stack that things are done to."""

    layout: ChaosLayout
    stack: LocalStack
    proxy: FaultProxy
    prometheus: Prometheus
    client: Client
    warehouse: Warehouse

    def create(self, name: str, **config: object) -> None:
        """Create a table whose times are short, but for a commit's: a busy machine takes its time."""
        short = {"log_grace_ms": 20_000, "data_grace_ms": 20_000, "orphan_age_ms": 240_000, "merge_fan_in": 2}
        known = {"partition": (PartitionField.parse("p"),), "sort": ("id",), **short, **config}
        create_table(self.warehouse.table(name), TableConfig.create(name=name, **known))

    def view(self, name: str, query: str) -> None:
        """Create a view of the table whose name it begins with."""
        config = TableConfig.create(name=name, view_of=name.removesuffix("_view"), view_query=query)
        create_view(self.warehouse.table(name), config, clock=CLOCK)

    def stage(self, name: str, *, row_count: int = 1) -> str:
        """Stage a batch past the front ends, and return its id."""
        batch_id = new_batch_id(CLOCK)
        body = encode_rows([{"id": number, "p": "a"} for number in range(row_count)])
        stage_batch(self.warehouse.table(name), body=body, staging_format="ndjson", batch_id=batch_id)
        return batch_id

    def commit(self, name: str) -> None:
        """Commit a batch, as an ingest worker elsewhere does."""
        self.stage(name)
        flush_table(self.open(name), RowFileWriter(self.warehouse.store, CLOCK))

    def open(self, name: str) -> Table:
        return Table.open(self.warehouse.table(name), clock=CLOCK, owner="elsewhere")

    def keys(self, prefix: str) -> list[str]:
        return [info.key for info in list_all(self.warehouse.store, prefix).objects]

    def forget(self, name: str) -> None:
        """Take a table away that services would stumble over, object by object."""
        prefix = self.warehouse.table(name).paths.log_prefix.removesuffix("_log/")
        self.warehouse.store.delete(self.keys(prefix))

    def post(self, name: str, body: bytes | None = None) -> None:
        """Send a batch to the front end, whatever it answers."""
        body = body or encode_rows([{"id": 0, "p": "a"}])
        headers = {"Content-Type": "application/x-ndjson"}
        ask(urllib.request.Request(f"{self.layout.http_url}/v1/tables/{name}/batches", data=body, headers=headers))

    def show(self, path: str) -> str:
        """Ask the gateway, whatever it answers."""
        return ask(urllib.request.Request(f"{self.layout.s3_url}/icedb{path}"))

    @contextmanager
    def down(self, *programs: str) -> Iterator[None]:
        """Hold programs down; they are back afterwards."""
        for name in programs:
            self.stack.kill_and_hold_down(name)
        try:
            yield
        finally:
            for name in programs:
                self.stack.start_again(name)

    @contextmanager
    def faulty(self, fault: ProxyFault) -> Iterator[None]:
        """Let requests to the store meet a fault."""
        hits = self.proxy.begin(fault)
        try:
            yield
        finally:
            self.proxy.end(hits)


def ask(request: urllib.request.Request, *, context: ssl.SSLContext | None = None) -> str:
    """Return an answer's body; nothing for an error."""
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return answer.read().decode(errors="replace")
    except (OSError, HTTPException):  # also one that breaks off
        return ""


@contextmanager
def meanwhile(*calls: Callable[[], object]) -> Iterator[None]:
    """Make calls again and again, each in a thread of its own, whatever comes of them."""
    is_over = threading.Event()

    def repeat(call: Callable[[], object]) -> None:
        while not is_over.wait(PAUSE_S):
            with contextlib.suppress(IceDBError):
                call()

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def wait_until(what: str, ask: Callable[[], set[Told]]) -> None:
    """Wait until nothing is left."""
    deadline = time.monotonic() + DEADLINE_S
    while left := ask():
        assert time.monotonic() < deadline, f"{what}: {sorted(left)}"
        time.sleep(POLL_S)


@provokes(
    ("IceDBWorkerDown", "merger"),
    ("IceDBInstanceDown", "merger"),
    ("IceDBMergeLagHigh", "long"),
    ("IceDBMergeLagCritical", "long"),
    ("IceDBPressureSlow", "long"),
    ("IceDBPressureStop", "long"),
    ("IceDBFrontendRefusing", "overloaded"),
    ("IceDBErasureLate", "long"),
)
def nobody_merges(scene: Scene) -> Iterator[Tick]:
    """A log grows beyond the bounds of its table, and an erasure waits."""
    with scene.down("merger"):
        scene.create("long", **SHORT, orphan_age_ms=10_000)
        for _ in range(8):
            scene.commit("long")
        lengthen_log(scene.warehouse.table("long"), LOG_FILES.stop, clock=CLOCK)
        create_erasure(scene.warehouse.table("long"), condition="id = 1", clock=CLOCK)
        yield lambda: scene.post("long")


@provokes(
    ("IceDBWorkerDown", "ingest"),
    ("IceDBIngestStalled", "late"),
    ("IceDBFreshnessBurnsFast", "late"),
    ("IceDBFreshnessBurnsSlowly", "late"),
    ("IceDBViewLagHigh", "late_view"),
)
def nobody_commits(scene: Scene) -> Iterator[Tick]:
    """Batches wait, and so does a view."""
    scene.create("late")
    scene.view("late_view", "select id, p from _rows")
    with scene.down("ingest"):
        scene.commit("late")
        scene.stage("late")
        yield lambda: None
    scene.forget("late_view")
    scene.forget("late")


@provokes(
    ("IceDBTableHalted", "broken"),
    ("IceDBGatewayFailing", "failed"),
    ("IceDBQuarantineGrowing", "bad"),
    ("IceDBLargeBatchesUnserved", "ingest"),
)
def data_is_bad(scene: Scene) -> Iterator[Tick]:
    """A log that is damaged, rows without a partition, and nobody for large batches."""
    scene.create("broken")
    scene.commit("broken")
    scene.warehouse.store.put(
        f"{scene.warehouse.table('broken').paths.log_prefix}1700000000000_{'a' * 32}.jsonl", b"no"
    )
    for name in ("bad", "big"):
        scene.create(name)
    large = encode_rows([{"id": 0, "p": "a", "text": "x" * LARGE_MB * MIB}])
    calls = (
        lambda: scene.post("bad", b'{"id": %d}' % time.monotonic_ns()),
        lambda: scene.post("big", large),
        lambda: scene.show("?list-type=2&prefix=broken/"),
    )
    with meanwhile(*calls):
        yield lambda: None
    scene.forget("broken")


@provokes(("IceDBViewRefuses", "good_view"))
def a_view_cannot_take_rows(scene: Scene) -> Iterator[Tick]:
    """Its query makes numbers of letters."""
    scene.create("good")
    scene.view("good_view", "select cast(p as bigint) as number from _rows")
    with meanwhile(lambda: scene.post("good")):
        yield lambda: None
    scene.forget("good_view")


@provokes(("IceDBCommitLost", "lossy"), ("IceDBGatewayFileMissing", "critical"))
def objects_are_gone(scene: Scene) -> Iterator[Tick]:
    """Somebody else deletes a log file, and a data file."""
    for name, part in (("lossy", "log_prefix"), ("holey", "data_prefix")):
        scene.create(name)
        scene.commit(name)
        (key,) = scene.keys(getattr(scene.warehouse.table(name).paths, part))
        scene.warehouse.store.delete([key])
    listed = scene.show("?list-type=2&prefix=holey/")
    (file,) = re.findall(r"<Key>(.*?)</Key>", listed)
    yield lambda: scene.show(f"/{file}")
    for name in ("lossy", "holey"):
        scene.forget(name)


@provokes(("IceDBLeaseHeldLong", "leased"), ("IceDBLeasesLost", "warning"), ("IceDBSnapshotsRefused", "WatchSnapshots"))
def readers_stay(scene: Scene) -> Iterator[Tick]:
    """One holds a table, one comes too late, and more watch than may."""
    scene.create("leased")
    scene.commit("leased")
    reads = scene.client.answerer
    lasting = reads.acquire_lease("leased", ttl_ms=600_000, at_ms=None)
    short = reads.acquire_lease("leased", ttl_ms=1_000, at_ms=None)
    watched = scene.client.watch(["leased"])
    next(watched)

    calls = (
        lambda: reads.renew_lease("leased", short.lease_id, ttl_ms=1_000),
        lambda: next(scene.client.watch(["leased"])),
    )
    with meanwhile(*calls):
        yield lambda: None
    watched.close()
    reads.release_lease("leased", lasting.lease_id)


@provokes(
    ("IceDBDeletesDenied", "dropped_table"),
    ("IceDBFailedDeletes", "dropped_table"),
    ("IceDBDeletesKeepFailing", "purged"),
    ("IceDBPurgeStuck", "purged"),
)
def deletes_are_denied(scene: Scene) -> Iterator[Tick]:
    """A table is purged, and the store lets nobody delete."""
    scene.create("purged")
    scene.commit("purged")
    with (
        scene.faulty(ProxyFault("status", frozenset({"DELETE"}), status=DENIED)),
        scene.faulty(ProxyFault("status", frozenset({"POST"}), target=r"[?&]delete", status=DENIED)),
    ):
        drop_table(scene.warehouse.table("purged"), clock=CLOCK, request=DropRequest(is_forced=True))
        yield lambda: None


@provokes(("IceDBAuditFailing", "announce"))
def no_audit_is_written(scene: Scene) -> Iterator[Tick]:
    """The store takes everything but what the janitor writes down before it deletes an orphan."""
    scene.create("audited", **SHORT, orphan_age_ms=10_000, merge_fan_in=100)
    for _ in range(9):
        scene.commit("audited")
    paths = scene.warehouse.table("audited").paths
    scene.warehouse.store.put(paths.data_key(partition="p=a", file_id=CLOCK.new_id()), b"x")
    with scene.faulty(ProxyFault("status", frozenset({"PUT"}), target="/_icedb/audit/", status=DENIED)):
        yield lambda: None


@provokes(("IceDBUnknownObjects", "strange"), ("IceDBOrphansHeld", "strange"))
def objects_are_strange(scene: Scene) -> Iterator[Tick]:
    """A note that somebody left, and more data files without a name in the log than with one."""
    scene.create("strange", **SHORT, orphan_age_ms=10_000)
    scene.commit("strange")
    paths = scene.warehouse.table("strange").paths
    scene.warehouse.store.put(f"{paths.log_prefix.removesuffix('_log/')}notes.txt", b"mine")
    for _ in range(5):
        scene.warehouse.store.put(paths.data_key(partition="p=a", file_id=CLOCK.new_id()), b"x" * 10_000)
    yield lambda: None
    scene.forget("strange")


@provokes(
    ("IceDBSnapshotsSlow", "warning"),
    ("IceDBSnapshotLatencyBurnsFast", "critical"),
    ("IceDBSnapshotLatencyBurnsSlowly", "warning"),
)
def the_store_is_slow(scene: Scene) -> Iterator[Tick]:
    """Each look at a log takes two seconds, and readers want to know the newest."""
    scene.create("slow")
    scene.commit("slow")
    with (
        scene.faulty(ProxyFault("slow", frozenset({"GET"}), target="slow/_log", delay_ms=2_000)),
        meanwhile(*[lambda: scene.client.snapshot("slow", max_staleness_ms=0)] * 4),
    ):
        yield lambda: None


@provokes(
    ("IceDBStoreRequestsFailing", "ingest"),
    ("IceDBLagExporterStale", "critical"),
    ("IceDBRunsFailing", "unavailable"),
    ("IceDBFrontendRefusing", "unavailable"),
    ("IceDBGatewayFailing", "unavailable"),
    ("IceDBSnapshotsFailing", "GetSnapshot"),
)
def the_store_is_away(scene: Scene) -> Iterator[Tick]:
    """Every request to it ends with an error."""
    scene.create("plain")
    scene.commit("plain")
    calls = (
        lambda: scene.post("plain"),
        lambda: scene.show("?list-type=2&prefix=plain/"),
        lambda: scene.client.snapshot("plain", max_staleness_ms=0),
    )
    with scene.faulty(ProxyFault("status", status=AWAY)), meanwhile(*calls * 3):
        yield lambda: None


@provokes(("IceDBRedisRequestsFailing", "locks"), ("IceDBLocksUnavailable", "ingest"))
def locks_are_away(scene: Scene) -> Iterator[Tick]:
    """Two of three masters of the locks are down."""
    scene.create("locked")
    with scene.down("lock-1", "lock-2"):
        yield lambda: scene.post("locked")


@provokes(("IceDBSweepsMissing", "merger"), ("IceDBSweepsMissing", "janitor"), ("IceDBSweepsMissing", "ingest"))
def nobody_wakes(scene: Scene) -> Iterator[Tick]:
    """Beat is down, and nothing else."""
    with scene.down("beat"):
        yield lambda: None


@provokes(("IceDBClockSkewed", "ingest"), ("IceDBClockSkewed", "janitor"))
def the_store_is_ahead(scene: Scene) -> Iterator[Tick]:
    """All its answers say that it is a minute later."""
    with scene.faulty(ProxyFault("ahead", delay_ms=60_000)):
        yield lambda: None


@provokes(("IceDBRetentionStopped", "refused"))
def retention_would_take_all(scene: Scene) -> Iterator[Tick]:
    """A table of old rows is told to keep an hour of them."""
    scene.create("old", partition=(PartitionField.parse("d=day(ts)"),), sort=("ts",), retention_ms=3_600_000)
    body = b'{"ts": "2020-01-02T03:04:05Z"}\n{"ts": "2020-01-03T03:04:05Z"}'
    stage_batch(scene.warehouse.table("old"), body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))
    flush_table(scene.open("old"), RowFileWriter(scene.warehouse.store, CLOCK))
    with meanwhile(lambda: scene.client.workers.send(MERGE_RETAIN, "old", arguments={})):
        yield lambda: None
    scene.forget("old")


@provokes(
    ("IceDBWorkerDown", "janitor"),
    ("IceDBFrontendDown", "frontend"),
    ("IceDBFrontendDown", "enqueue"),
    ("IceDBGatewayDown", "gateway"),
    ("IceDBConsoleDown", "console"),
    ("IceDBLagExporterDown", "snapshot"),
)
def services_are_down(scene: Scene) -> Iterator[Tick]:
    """All that were not yet."""
    with scene.down("janitor", "frontend", "enqueue", "gateway", "console", "snapshot"):
        yield lambda: None


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Iterator[Scene]:
    own = {
        "ICEDB_FLUSH_LARGE_MB": str(LARGE_MB),
        "ICEDB_JANITOR_ORPHAN_SHARE": "0.5",
        "ICEDB_SNAPSHOT_MAX_WATCHERS": "1",
        "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "500",
    }
    made = ChaosLayout.make(tmp_path_factory.mktemp("stack"), pace=Pace(), engine="light")
    layout = dataclasses.replace(made, overrides={**made.overrides, **own}, has_console=True)
    with ExitStack() as exits:
        monkeypatch = exits.enter_context(pytest.MonkeyPatch.context())
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET_KEY)
        proxy = exits.enter_context(FaultProxy(layout.ports.s3, layout.proxy_ports, clock=CLOCK))
        stack = exits.enter_context(LocalStack(layout))
        targets = {job: layout.ports.metrics_of(job) for job in JOBS if job != "ingest-large"}
        folder = tmp_path_factory.mktemp("prometheus")
        prometheus = exits.enter_context(running_prometheus(folder, targets, is_hasty=True))
        settings = ClientSettings(
            store=layout.server_settings.url,
            snapshot_address=layout.snapshot_address,
            redis_url=layout.redis_url,
            s3_endpoint=layout.server_settings.s3.endpoint_url,
        )
        client = exits.enter_context(Client(settings=settings))
        yield Scene(layout, stack, proxy, prometheus, client, layout.server_settings.open())


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.redis
@pytest.mark.parametrize(("wanted", "step"), STEPS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_alert_fires_when_it_should(scene, wanted, step):
    wait_until("alerts that fire before anything is wrong", lambda: find_firing(scene.prometheus) & wanted)
    seen: set[Told] = set()
    with step(scene) as tick:

        def missing() -> set[Told]:
            nonlocal seen
            tick()
            seen |= find_firing(scene.prometheus)
            return set(wanted - seen)

        wait_until("alerts that do not fire", missing)


ACCESS = {"IceDBAccessFileBroken", "IceDBAccessDenied", "IceDBCertificateExpires"}
COUNTS = {"IceDBLogFilesHigh", "IceDBLogFilesCritical", "IceDBStagedBacklog"}


@contextmanager
def one_service(name: str, folder: Path, env: dict[str, str]) -> Iterator[Prometheus]:
    """One service on a folder, and a Prometheus that scrapes it."""
    (folder / "warehouse").mkdir(exist_ok=True)
    (folder / "prometheus").mkdir()
    (metrics_port,) = find_free_ports(1)
    own = {"ICEDB_STORE": f"file://{folder / 'warehouse'}", "ICEDB_METRICS_PORT": str(metrics_port)}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", f"icedb_{name}"]
        process = subprocess.Popen(command, env={**service_env(), **own, **env}, stdout=log, stderr=log)
    try:
        with running_prometheus(folder / "prometheus", {name: metrics_port}, is_hasty=True) as prometheus:
            yield prometheus
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def find_firing(prometheus: Prometheus) -> set[Told]:
    """Which alerts fire now, by each of their labels."""
    found = prometheus.query('ALERTS{alertstate="firing"}')
    return {(dict(labels)["alertname"], value) for labels in found for _, value in labels}


@pytest.mark.soak
@pytest.mark.e2e
def test_each_alert_on_access_fires_when_it_should(tmp_path):
    """A gateway with an access file and a certificate that ends tomorrow."""
    tomorrow = CLOCK.now_ms() // DAY_MS - FIRST_DAY + 1
    Authority(days=tomorrow).issue(tmp_path, "server", dns=["localhost"])
    identities = {"reader": {"tokens": [token_entry("icedb_reader-token-0123456789")]}}
    access = write_access(tmp_path / "access.json", {"identities": identities, "grants": []})
    port, iceberg_port = find_free_ports(2)
    env = {
        "ICEDB_GATEWAY_PORT": str(port),
        "ICEDB_GATEWAY_ICEBERG_PORT": str(iceberg_port),
        "ICEDB_ACCESS_FILE": str(access),
        "ICEDB_TLS_CERT_FILE": str(tmp_path / "server.crt"),
        "ICEDB_TLS_KEY_FILE": str(tmp_path / "server.key"),
    }
    with one_service("gateway", tmp_path, env) as prometheus:
        wait_for("the gateway is scraped", lambda: prometheus.query("icedb_access_file_broken"))
        access.write_text("{")

        def missing() -> set[Told]:
            ask(urllib.request.Request(f"https://localhost:{port}/icedb"), context=ANYBODY)
            return {(name, "gateway") for name in ACCESS} - find_firing(prometheus)

        wait_until("alerts that do not fire", missing)


@pytest.mark.soak
@pytest.mark.e2e
def test_each_alert_on_counts_fires_when_it_should(tmp_path):
    """A table of 810 log files and 1,005 staged batches, in a folder: an S3 server of ours takes minutes for them."""
    warehouse = StoreSettings(f"file://{tmp_path / 'warehouse'}", None).open()
    config = TableConfig.create(name="long", partition=(PartitionField.parse("p"),), sort=("id",))
    create_table(warehouse.table("long"), config)
    table = Table.open(warehouse.table("long"), clock=CLOCK, owner="elsewhere")

    def stage() -> None:
        stage_batch(table, body=b'{"id": 1, "p": "a"}', staging_format="ndjson", batch_id=new_batch_id(CLOCK))

    for _ in range(810):
        stage()
        flush_table(table, RowFileWriter(warehouse.store, CLOCK))
    for _ in range(1_005):
        stage()
    env = {"ICEDB_SNAPSHOT_ADDRESS": f"127.0.0.1:{find_free_ports(1)[0]}", "ICEDB_SNAPSHOT_LAG_INTERVAL_MS": "500"}
    with one_service("snapshot", tmp_path, env) as prometheus:
        wait_until("alerts that do not fire", lambda: {(name, "long") for name in COUNTS} - find_firing(prometheus))


def test_every_alert_is_provoked_or_it_is_said_why_not():
    groups = [group for path in RULES.glob("*.yml") for group in yaml.safe_load(path.read_text())["groups"]]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    provoked = {name for wanted, _ in STEPS for name, _ in wanted} | ACCESS | COUNTS
    assert provoked | set(RULE_TESTS_ONLY) == alerts
    assert not provoked & set(RULE_TESTS_ONLY)
