"""One day, from the first process to the last row: start, hours, a deploy at noon, an erasure, quiet, judgement.

Order at the end, which is what makes the accounts exact: producers stop; nothing is staged any more; the erasure is
complete; retention has removed what has expired; then every row is read once.
"""

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.holds.erasures import Erasure, create_erasure, read_erasure
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_all_staged
from icedb_log.names import MERGE_ERASE, MERGE_RETAIN
from icedb_log.table.stored_config import create_table
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS

from icedb_local.background import running_together
from icedb_local.chaos.chaos_producers import Send, make_grpc_door, make_http_door, make_staging_door
from icedb_local.checks import CheckBook
from icedb_local.day.day_meter import HourlyMeter
from icedb_local.day.day_plan import (
    CLOSED_USER,
    DEPLOY_HOUR,
    ERASE_HOUR,
    HOURS,
    PRODUCERS,
    STOP_GRACE_MS,
    TABLES,
    Batch,
    DayPlan,
    Row,
)
from icedb_local.day.day_producers import DayLedger, DayProducer, FreshnessProbe
from icedb_local.lake import Lake
from icedb_local.screen import Screen
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import FRONTENDS, GATEWAY, LARGE, WORKERS, StackLayout
from icedb_local.supervisor_config import Program

POLL_MS: Final = 500
PATIENCE_MS: Final = 10 * MINUTE_MS
"""How long any wait may take beyond the grace periods: a machine may be very busy."""
STOP_WAIT_S: Final = 2 * STOP_GRACE_MS // SECOND_MS
"""How long a service may take to stop: what runs ends first."""
DEPLOY_ORDER: Final = ("ingest", LARGE, "merger", "beat", *FRONTENDS, "snapshot", GATEWAY, "janitor")
"""As docs/upgrades.md has it, one after the other."""
Fate = Literal["live", "refused", "unknown", "quarantined", "erased", "expired"]


@dataclass(frozen=True, slots=True)
class DayLayout(StackLayout):
    """Where the stack lives.

    Attributes:
        engine: ``light`` runs units of work in the workers' own processes, without Spark.
    """

    engine: Literal["spark", "light"] = "spark"

    def programs(self) -> tuple[Program, ...]:
        """Return every program, in the order of starting."""
        return tuple(self._adapt(each) for each in StackLayout.programs(self) if self.has(each.name))

    def has(self, name: str) -> bool:
        """Whether a program runs: no batch here is large."""
        return name != LARGE or self.engine == "spark"

    @property
    def metrics_ports(self) -> dict[str, int]:
        """Name of each service, and the port of its metrics."""
        names = (*WORKERS, LARGE, *FRONTENDS, "snapshot", GATEWAY)
        return {name: self.ports.metrics_of(name) for name in names if self.has(name)}

    def _adapt(self, program: Program) -> Program:
        command = program.command
        if self.engine == "light" and program.name in ("ingest", "merger"):
            command = (command[0], "-m", "icedb_local.chaos.light_worker", program.name)
        return dataclasses.replace(program, command=command, stop_wait_s=STOP_WAIT_S)


@dataclass(slots=True)
class DayRun:
    """A day and, when it is over, what came of it.

    Attributes:
        plan: What happens.
        stack: It runs.
        lake: Its client.
        clock: For everything.
        screen: Where to say how far it is.
        accounts: By table: rows by what became of them.
        restarts: Of each service: seconds until it answered again.
    """

    plan: DayPlan
    stack: LocalStack
    lake: Lake
    clock: Clock
    screen: Screen
    checks: CheckBook = field(default_factory=CheckBook)
    ledger: DayLedger = field(default_factory=DayLedger)
    accounts: dict[str, Counter[Fate]] = field(default_factory=lambda: defaultdict(Counter))
    restarts: dict[str, float] = field(default_factory=dict)
    meter: HourlyMeter = field(init=False)
    probe: FreshnessProbe = field(init=False)
    erasure: Erasure | None = None
    _begin_ms: int = 0

    def __post_init__(self) -> None:
        """Make those who look on."""
        self._begin_ms = self.clock.monotonic_ms()
        layout = self.stack.layout
        assert isinstance(layout, DayLayout)
        self.meter = HourlyMeter(layout.metrics_ports, hour=self.hour)
        self.probe = FreshnessProbe(self.lake.client, clock=self.clock)

    def hour(self) -> float:
        """Return the hour of the day now."""
        return (self.clock.monotonic_ms() - self._begin_ms) / self.plan.duration_ms * HOURS

    def run(self) -> None:
        """Live through the day. What does not hold is in the checks afterwards. Raises IceDBError: it could not."""
        for table in TABLES:
            create_table(self.lake.warehouse.table(table), self.plan.config(table))
        layout = self.stack.layout
        doors: Mapping[str, Send] = {
            "staging": make_staging_door(self.lake.client),
            "http": make_http_door(layout.ports.http),
            "grpc": make_grpc_door(layout.grpc_address),
        }
        producers = [
            DayProducer(each, self.plan, doors, ledger=self.ledger, probe=self.probe, hour=self.hour, clock=self.clock)
            for each in PRODUCERS
        ]
        self._begin_ms = self.clock.monotonic_ms()
        with self.meter:
            with self.screen.step("The day"), running_together(producers):
                self._wait(lambda: self.hour() >= DEPLOY_HOUR, what="noon", limit_ms=self.plan.duration_ms)
                self._deploy()
                self._wait(lambda: self.hour() >= ERASE_HOUR, what="the evening", limit_ms=self.plan.duration_ms)
                self._ask_for_erasure()
                self._wait(lambda: self.hour() >= HOURS, what="midnight", limit_ms=self.plan.duration_ms)
            with self.screen.step("After midnight"):
                self._settle()
        self.probe.close()
        with self.screen.step("The accounts"):
            problems = [each for producer in producers for each in producer.problems]
            self.checks.add("every batch was answered", holds=not problems, detail="; ".join(problems[:3]) or "all")
            self._judge()

    def _deploy(self) -> None:
        """Restart every service, one after the other."""
        for name in DEPLOY_ORDER:
            if name not in self.stack.program_names:
                continue
            self.meter.scrape()
            begin_ms = self.clock.monotonic_ms()
            code = self.stack.stop_program(name)
            self.stack.start_program(name)
            self.restarts[name] = (self.clock.monotonic_ms() - begin_ms) / SECOND_MS
            self.checks.add(f"deploy: {name} stops in good order", holds=code == 0, detail=f"exit code {code}")
        self.screen.say(f"{self._time()}: {len(self.restarts)} services were deployed")

    def _ask_for_erasure(self) -> None:
        first = self.ledger.close_account()
        self._wait(lambda: self.ledger.is_settled(first), what="batches with rows of the user who leaves")
        place = self.lake.warehouse.table("orders")
        self.erasure = create_erasure(
            place, condition=f"user_id = '{CLOSED_USER}'", clock=self.clock, requested_by="the day"
        )
        self.lake.client.workers.wake(MERGE_ERASE, "orders")
        self.screen.say(f"{self._time()}: the erasure of {CLOSED_USER} is asked for")

    def _settle(self) -> None:
        """Wait until nothing is left to do."""
        self._wait(self.ledger.is_settled, what="the last batches")
        for table in TABLES:
            place = self.lake.warehouse.table(table)
            self._wait(lambda place=place: not list_all_staged(place).batches, what=f"the last flush of {table}")  # type: ignore[misc]
        config = self.plan.config("orders")
        limit_ms = PATIENCE_MS + 2 * (config.orphan_age_ms + config.data_grace_ms + config.log_grace_ms)
        erasure = self.erasure
        assert erasure is not None

        def has_ended() -> bool:
            self.erasure = read_erasure(self.lake.warehouse.table("orders"), erasure.erasure_id)
            return self.erasure.has_ended

        self._wait(has_ended, what="the erasure", limit_ms=limit_ms)
        self._wait(self._has_retained, what="retention", limit_ms=limit_ms)

    def _has_retained(self) -> bool:
        result = self.lake.client.workers.run(
            MERGE_RETAIN, "metrics", arguments={"force": True}, timeout_ms=PATIENCE_MS
        )
        return not result.get("partitions", 1) and not result.get("kept_late", 1)

    def _judge(self) -> None:
        for table in TABLES:
            self._judge_table(table)
        unknown = self.ledger.batches("sent", "unknown")
        self.checks.add_equal("batches of which nobody knows", found=len(unknown), expected=0, what="batches")
        refused = self.ledger.batches("refused")
        self.checks.add(
            "doors refuse batches for a table that is not there, and no others",
            holds=bool(refused) and all(batch.is_refused for batch in refused),
            detail=f"{len(refused)} batches; {', '.join(self.ledger.refusals)}",
        )
        assert self.erasure is not None
        erased = self.accounts["orders"]["erased"]
        self.checks.add_equal("rows erased, by the certificate", found=self.erasure.row_count, expected=erased)
        for check in self.checks.checks:
            self.screen.show_check(check)

    def _judge_table(self, table: str) -> None:
        for _ in range(2):  # an hour may end between both
            now_ms = self.clock.now_ms()
            found = self._read(table)
            if now_ms // HOUR_MS == self.clock.now_ms() // HOUR_MS:
                break
        expected: dict[str, tuple[int, int, int]] = {}
        account = self.accounts[table]
        for batch in self.ledger.batches("acknowledged"):
            if batch.table != table:
                continue
            live = [row for row in self.plan.rows(batch) if self._count(account, batch, row, now_ms)]
            account["quarantined"] += len(batch.bad_lines)
            if live:
                numbers = [row.number for row in live]
                expected[str(batch.number)] = len(live), len(set(numbers)), sum(row.value for row in live)
        for batch in self.ledger.batches("refused", "unknown", "sent"):
            if batch.producer.table == table:
                fate: Fate = "refused" if batch.is_refused else "unknown"
                account[fate] += batch.producer.rows + len(batch.bad_lines)
        for number, what in enumerate(("rows", "different rows", "sum of the values")):
            self.checks.add_equal_counts(
                f"{table}: {what} of each batch",
                found={batch: values[number] for batch, values in found.items()},
                expected={batch: values[number] for batch, values in expected.items()},
                what="batches",
            )
        waiting = sum(each.row_count or 0 for each in list_quarantined(self.lake.warehouse.table(table)))
        self.checks.add_equal(f"{table}: rows in quarantine", found=waiting, expected=account["quarantined"])

    def _count(self, account: Counter[Fate], batch: Batch, row: Row, now_ms: int) -> bool:
        """Note what became of a row; return whether it is there."""
        fate: Fate = "live"
        if batch.table == "orders" and row.user_id == CLOSED_USER:
            fate = "erased"
        elif batch.table == "metrics" and row.is_expired(now_ms):
            fate = "expired"
        account[fate] += 1
        return fate == "live"

    def _read(self, table: str) -> dict[str, tuple[int, int, int]]:
        query = f'SELECT batch, count(*), count(DISTINCT "row"), sum("value")::BIGINT FROM {table} GROUP BY batch'
        snapshot = self.lake.read_snapshot(table)
        return {str(row[0]): (row[1], row[2], row[3]) for row in snapshot.sql(query).fetchall()}

    def _time(self) -> str:
        minutes = round(self.hour() * 60)
        return f"{minutes // 60:02}:{minutes % 60:02}"

    def _wait(self, is_met: Callable[[], bool], *, what: str, limit_ms: int = 0) -> None:
        """Wait. Raises Unavailable if it takes too long, or the stack is gone."""
        deadline_ms = self.clock.monotonic_ms() + limit_ms + PATIENCE_MS
        while True:
            with contextlib.suppress(Unavailable):
                if is_met():
                    return
            if self.clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"waited {(limit_ms + PATIENCE_MS) // 1000} s for {what}; see the logs of the run")
            if not self.stack.is_alive():
                raise IceDBError("the stack has ended")
            self.clock.sleep_ms(POLL_MS)

    def to_json(self) -> dict[str, Any]:
        """Return what came of the day."""
        accounts = {table: dict(sorted(account.items())) for table, account in self.accounts.items()}
        return {
            "ok": self.checks.is_ok,
            "minutes": self.plan.minutes,
            "rate": self.plan.rate,
            "seed": self.plan.seed,
            "engine": getattr(self.stack.layout, "engine", ""),
            "accounts": accounts,
            "rows_sent": sum(sum(account.values()) for account in accounts.values()),
            "requests_by_producer": dict(self.ledger.tries),
            "refusals": dict(self.ledger.refusals),
            "restart_seconds": {name: round(seconds, 1) for name, seconds in self.restarts.items()},
            "erasure": None
            if self.erasure is None
            else {
                "state": self.erasure.state,
                "rows": self.erasure.row_count,
            },
            "probes_without_answer": dict(self.probe.failures),
            "checks": [dataclasses.asdict(check) for check in self.checks.checks],
        }
