"""One run, from the first process to the last look: start, load, faults, quiet, judgement.

Order at the end, which is what makes the judgement certain: faults end; requests that were held back land; every
program runs; batches sent from now on come through all doors and are read; producers stop; nothing is left to do and
the grace periods have passed; readers stop; then everything is read once more past the proxy.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse

from icedb_local.chaos.aftermath import look_at_the_end, save_bucket
from icedb_local.chaos.batches import BatchLedger
from icedb_local.chaos.chaos_layout import BROKER, LOCK_MASTERS, ChaosLayout
from icedb_local.chaos.conductor import Conductor
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.fault_plan import KINDS, PlanShape, draw_faults
from icedb_local.chaos.fault_proxy import FaultProxy
from icedb_local.chaos.fault_records import InjectedFault
from icedb_local.chaos.injector import Injector
from icedb_local.chaos.load import DEADLINE_MS, POLL_MS, Load
from icedb_local.chaos.metric_history import (
    ENOUGH_FROM_S,
    FLUSHED_GROUPS,
    KILLS_WITH_GROUP,
    Scraper,
    lack_of_work,
    read_metrics,
    sum_figures,
)
from icedb_local.chaos.outages import find_recovery_ms
from icedb_local.chaos.small_disks import SmallDisks
from icedb_local.chaos.staged_groups import StagedGroups
from icedb_local.chaos.verdicts import CountedFailures, count_failures
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import S3_ACCESS_KEY, S3_SECRET_KEY

TABLES: Final = ("events", "clicks")
SETTLE_MS: Final = 5_000
"""How long after the end of a fault, and the time after which a request is given up, it may show."""
MORE_MS: Final = 5_000
"""After how long a run whose time is over looks again whether it has merged and deleted enough."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """What a run is to do.

    Attributes:
        seed: Of faults and rows.
        seconds: How long faults go on; up to twice as long where little has come of them until then.
        fault_count: So many that met somebody are enough, if enough has come of them; 0: go by time alone.
        shape: Of the plan of faults.
        each_kind_once: Stop as soon as each kind has been tried once.
        pause_s: Of each producer between two batches.
        scrape_s: Between scrapes.
        waits_for_orphans: Whether the quiet lasts until orphans are swept, too.
    """

    seed: int
    seconds: int
    fault_count: int = 0
    shape: PlanShape = field(default_factory=PlanShape)
    each_kind_once: bool = False
    pause_s: float = 0.3
    scrape_s: float = 0.5
    waits_for_orphans: bool = True

    @property
    def has_to_work(self) -> bool:
        """Whether the run has time for what :func:`lack_of_work` asks for."""
        return self.seconds >= ENOUGH_FROM_S and not self.each_kind_once


@dataclass(slots=True)
class ChaosRun:
    """A run and, when it has ended, what it found.

    Attributes:
        plan: What to do.
        layout: The stack's.
        clock: For everything.
        say: Told how far it is.
    """

    plan: ChaosPlan
    layout: ChaosLayout
    clock: Clock
    say: Say
    ledger: BatchLedger = field(default_factory=BatchLedger)
    groups: StagedGroups = field(default_factory=StagedGroups)
    faults: list[InjectedFault] = field(default_factory=list)
    quarantine: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    counted_failures: tuple[CountedFailures, ...] = ()
    snapshot_count: int = 0
    phases: list[tuple[str, int]] = field(default_factory=list)
    how_disks: str = ""
    checker: ContentChecker = field(init=False)
    load: Load = field(init=False)

    def __post_init__(self) -> None:
        """Make the judge, and what it judges."""
        plan = self.plan
        self.checker = ContentChecker(self.ledger, seed=plan.seed)
        self.load = Load(
            self.layout, TABLES, self.ledger, self.checker, seed=plan.seed, pause_s=plan.pause_s, clock=self.clock
        )

    def run(self) -> None:
        """Do it all. What must not be is in the checker afterwards. Raises Unavailable if the stack does not start."""
        self._enter("start")
        layout = self.layout
        os.environ.update({"AWS_ACCESS_KEY_ID": S3_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY})
        folders = {name: layout.scratch_dir(name) for name in ("ingest", "merger")}
        with contextlib.ExitStack() as exits:
            disks = exits.enter_context(SmallDisks(folders))
            self.how_disks = disks.how
            proxy = exits.enter_context(
                FaultProxy(layout.ports.s3, layout.proxy_ports, clock=self.clock, on_done=self.groups.note)
            )
            stack = exits.enter_context(LocalStack(layout, start_deadline_ms=2 * DEADLINE_MS, clock=self.clock))
            self.say(f"the stack is up; disks get full by {disks.how}")
            warehouse = layout.server_settings.open()
            for table in TABLES:
                create_table(warehouse.table(table), self._config(table))
            scraper = exits.enter_context(
                Scraper(layout.metrics_ports, interval_s=self.plan.scrape_s, clock=self.clock)
            )
            self._enter("begin")
            injector = Injector(layout, stack, proxy, disks, self.ledger, clock=self.clock)
            load = self.load
            with load.reading():
                with load.sending():
                    load.wait_for_progress(what="to begin")
                    self._enter("faults")
                    conductor = self._fail(injector, scraper)
                    self._enter("recovery")
                    self._mend(injector, proxy, stack)
                    load.wait_for_progress(what="to recover")
                self._enter("quiet")
                load.wait_for_quiet(warehouse, waits_for_orphans=self.plan.waits_for_orphans, say=self.say)
                self._look_for_survivors(stack)
            self._enter("judgement")
            conductor.judge()
            self.counted_failures = count_failures(
                self.faults, scraper.history, settle_ms=self._settle_ms, has_spark=self._has_spark
            )
            self._judge(warehouse)
            if self.checker.violations:
                count = save_bucket(warehouse, layout.run_dir / "bucket")
                self.say(f"{count} objects of the bucket are kept in {layout.run_dir / 'bucket'}")
            self.figures = self._sum_figures(scraper)
            if self.plan.has_to_work and (lack := lack_of_work(self.figures)):
                self.checker.note(f"there was little to break: {lack}", table="", reader="figures")
            self.snapshot_count = len({name for reader in load.readers for name in reader.snapshots})
            self._enter("stop")
        self._enter("")

    @property
    def phase_seconds(self) -> dict[str, float]:
        """How long each part of the run took."""
        return {name: (end - began) / 1000 for (name, began), (_, end) in pairwise(self.phases)}

    def _enter(self, phase: str) -> None:
        self.phases.append((phase, self.clock.monotonic_ms()))

    def _sum_figures(self, scraper: Scraper) -> dict[str, float]:
        kills = sum(fault.has_effect and fault.planned.kind.name == "kill_with_group" for fault in self.faults)
        return sum_figures(scraper.history) | {FLUSHED_GROUPS: self.groups.flushed_count, KILLS_WITH_GROUP: kills}

    def _config(self, table: str) -> TableConfig:
        pace = self.layout.pace
        return TableConfig.create(
            name=table,
            partition=(PartitionField.parse("d=day(ts)"),) if table == TABLES[0] else (),
            sort=("batch",),
            merge_fan_in=2,
            target_file_bytes=1024 * 1024,
            log_grace_ms=pace.log_grace_ms,
            data_grace_ms=pace.data_grace_ms,
            orphan_age_ms=pace.orphan_age_ms,
        )

    def _fail(self, injector: Injector, scraper: Scraper) -> Conductor:
        conductor = Conductor(
            injector,
            scraper,
            up=scraper.history.is_up,
            say=self._say_fault,
            clock=self.clock,
            settle_ms=self._settle_ms,
            has_spark=self._has_spark,
        )
        self.faults = conductor.faults
        plan = self.plan
        end_ms = self.clock.monotonic_ms() + 1000 * plan.seconds
        last_ms = end_ms + 1000 * plan.seconds
        look_ms, lacks_work = 0, plan.has_to_work

        def is_over() -> bool:
            nonlocal look_ms, lacks_work
            now_ms = self.clock.monotonic_ms()
            is_enough = 0 < plan.fault_count <= conductor.effect_count
            is_whole = plan.each_kind_once and len({fault.planned.kind.name for fault in self.faults}) == len(KINDS)
            if is_whole or self.checker.violations:
                return True
            if now_ms < end_ms and not is_enough:
                return False
            if lacks_work and now_ms >= look_ms:
                lacks_work, look_ms = bool(lack_of_work(self._sum_figures(scraper))), now_ms + MORE_MS
            return not lacks_work or now_ms >= last_ms

        conductor.run(draw_faults(self.plan.seed, self.plan.shape), is_over)
        # What the last fault did shows in the scrapes that come.
        rounds = scraper.rounds
        deadline_ms = self.clock.monotonic_ms() + DEADLINE_MS
        while scraper.rounds < rounds + 3 and self.clock.monotonic_ms() < deadline_ms:
            self.clock.sleep_ms(POLL_MS)
        for violation in self.checker.violations:
            self.say(f"{violation.table} {violation.reader}: {violation.what}")
        self.say(f"{conductor.effect_count} faults that met somebody; now everything is mended")
        return conductor

    @property
    def _has_spark(self) -> bool:
        return self.layout.engine == "spark"

    @property
    def _settle_ms(self) -> int:
        return SETTLE_MS + self.layout.pace.read_timeout_ms + int(2_000 * self.plan.scrape_s)

    def _mend(self, injector: Injector, proxy: FaultProxy, stack: LocalStack) -> None:
        proxy.faults.clear()
        proxy.open_doors()
        for name in (BROKER, *LOCK_MASTERS):
            injector.ensure_running(name)
        deadline_ms = self.clock.monotonic_ms() + DEADLINE_MS
        waiting = list(stack.program_names)
        while waiting or proxy.late_count:
            for name in tuple(waiting):
                with contextlib.suppress(Unavailable):
                    stack.find_process(name)
                    waiting.remove(name)
            if self.clock.monotonic_ms() > deadline_ms:
                self.checker.note(f"{', '.join(waiting)} did not come back", table="", reader="supervisor")
                return
            self.clock.sleep_ms(POLL_MS)

    def _look_for_survivors(self, stack: LocalStack) -> None:
        """Every service must answer on its metrics port, be it the first process or the twentieth."""
        deadline_ms = self.clock.monotonic_ms() + DEADLINE_MS
        for name, port in self.layout.metrics_ports.items():
            while read_metrics(port) is None:
                if self.clock.monotonic_ms() > deadline_ms:
                    tail = stack.read_log_tail(name, line_count=3)
                    self.checker.note(f"{name} serves no metrics any more: {tail}", table="", reader="scraper")
                    break
                self.clock.sleep_ms(POLL_MS)

    def _judge(self, warehouse: Warehouse) -> None:
        for fault in self.faults:
            if fault.end_ms is not None and fault.has_effect:
                fault.recovery_ms = find_recovery_ms(
                    fault.end_ms, list(self.ledger.entries().values()), self.checker.first_seen_ms
                )
            if fault.seen == "unseen":
                words = (
                    f"fault {fault.planned.number} ({fault.planned.kind.name} {fault.planned.target}) left no trace: "
                )
                self.checker.note(words + fault.trace, table="", reader="metrics")
        for one in self.counted_failures:
            if not one.is_whole:
                words = f"{one.service} has counted {one.counted} of {one.made} requests that were made to fail"
                self.checker.note(words, table="", reader="metrics")
        settings = self.layout.server_settings
        self.quarantine = look_at_the_end(warehouse, TABLES, settings, self.checker, clock=self.clock)

    def _say_fault(self, fault: InjectedFault) -> None:
        planned = fault.planned
        words = f"fault {planned.number}: {planned.kind.name} {planned.target}".rstrip()
        self.say(f"{words}, {planned.duration_ms} ms")
