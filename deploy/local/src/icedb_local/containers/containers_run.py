"""One run: the stack comes up, events come in, and are never lost whatever becomes of the containers meanwhile.

The order: the stack and its tables, made by its own command; each container killed; each stopped and started again; the
load ends when enough rows are in; nothing is left to do; then every row is compared with what was sent. Producers and
readers go on all the time.
"""

import contextlib
import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable

from icedb_local.chaos.aftermath import look_at_the_end
from icedb_local.chaos.batches import BatchLedger
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.load import DEADLINE_MS, Load
from icedb_local.containers.composed import SETTINGS, Composed, ContainersLayout, Release
from icedb_local.containers.images import TARGETS, ImageFacts, Images, read_revision
from icedb_local.containers.podman import Podman
from icedb_local.lake import Lake
from icedb_local.ports import LOOPBACK
from icedb_local.stack_layout import S3_ACCESS_KEY, S3_SECRET_KEY

TABLES: Final = {"events": ("--partition", "d=day(ts)"), "clicks": ()}
"""Each table, and what its creation takes besides the rest."""
POLICIES: Final = ("--sort", "batch", "--set", "target_file_mb=8", "--set", "merge_fan_in=4")
GRACE: Final = ("--set", "log_grace=2m", "--set", "data_grace=2m")
NOT_KILLED: Final = "s3"
"""Its stand-in keeps objects in memory."""
LOG_READER: Final = "containers"
USER_ID: Final = "10001"
MAX_ROWS: Final = 5_000
PAUSE_S: Final = 3.0
POLL_MS: Final = 500
PROMETHEUS_TIMEOUT_S: Final = 10
UNSCRAPED: Final = {"s3"}
"""The stand-in has no metrics."""

Say = Callable[[str], None]


@dataclass(slots=True)
class ContainersRun:
    """A run and, when it has ended, what it found.

    Attributes:
        podman: Where containers run.
        release: What is checked out.
        row_count: So many rows have to be acknowledged.
        folder: For files of the run.
        seed: Of the rows.
        clock: For everything.
        say: Told how far it is.
    """

    podman: Podman
    release: Release
    row_count: int
    folder: Path
    seed: int
    clock: Clock
    say: Say
    images: list[ImageFacts] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    rows_found: dict[str, int] = field(default_factory=dict)
    ledger: BatchLedger = field(default_factory=BatchLedger)
    layout: ContainersLayout = field(init=False)
    checker: ContentChecker = field(init=False)
    load: Load = field(init=False)
    stack: Composed = field(init=False)

    def __post_init__(self) -> None:
        """Make the judge, and what it judges."""
        self.layout = ContainersLayout.make(self.folder)
        self.checker = ContentChecker(self.ledger, seed=self.seed, max_rows=MAX_ROWS)
        self.load = Load(
            self.layout, tuple(TABLES), self.ledger, self.checker,
            seed=self.seed, pause_s=PAUSE_S, clock=self.clock, max_rows=MAX_ROWS,
        )  # fmt: skip
        self.stack = Composed(self.podman, self.layout, self.release, SETTINGS, self.folder, clock=self.clock)

    def run(self) -> None:
        """Do it all. What must not be is in the checker afterwards. Raises Unavailable: it could not be done at all."""
        os.environ.update({"AWS_ACCESS_KEY_ID": S3_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY})
        with self._phase("images"):
            self._build()
        try:
            with self._phase(f"start {self.release.version}"):
                self.stack.up()
                for table, own in TABLES.items():
                    self.stack.run_command("table", "create", table, *own, *POLICIES, *GRACE)
            self._load()
            with self._phase("look at containers"):
                self._look_at_containers()
                self._look_at_prometheus()
            with self._phase("count"):
                self._count()
        finally:
            self.stack.save_logs(self.release.ours + self.release.servers)
            with contextlib.suppress(Unavailable):
                self.stack.down()

    @property
    def phase_seconds(self) -> dict[str, float]:
        """How long each part of the run took."""
        return {name: (end - began) / 1000 for (name, began), (_, end) in pairwise(self.phases) if name}

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.say(name)
        self.phases.append((name, self.clock.monotonic_ms()))
        yield
        self.phases.append(("", self.clock.monotonic_ms()))

    def _note(self, what: str) -> None:
        self.say(f"BROKEN: {what}")
        self.checker.note(what[:2000], table="", reader=LOG_READER)

    def _build(self) -> None:
        images = Images(self.podman, self.say)
        images.make_base()
        images.build_stand_ins(self.release.folder)
        images.build_all(self.release.folder, self.release.version, read_revision(self.release.folder))
        for target in TARGETS:
            facts = images.look_at(target, self.release.version, self.folder)
            self.say(f"{facts.name}: {facts.size_mb} MB, {len(facts.packages)} packages in its bill of materials")
            self.images.append(facts)
            for fault in facts.faults:
                self._note(f"{facts.name} {fault}")

    def _load(self) -> None:
        load, stack = self.load, self.stack
        with load.reading():
            with load.sending():
                with self._phase("load begins"):
                    load.wait_for_progress(what="to begin")
                everybody = [name for name in (*stack.release.ours, *stack.release.servers) if name != NOT_KILLED]
                with self._phase("kill each"):
                    for name in everybody:
                        began_ms = self.clock.monotonic_ms()
                        stack.kill(name)
                        self.say(f"{name} killed, well after {(self.clock.monotonic_ms() - began_ms) / 1000:.0f} s")
                    load.wait_for_progress(what="after the kills")
                with self._phase("restart each"):
                    for name in everybody:
                        began_ms = self.clock.monotonic_ms()
                        code = stack.restart(name)
                        self.say(f"{name} restarted in {(self.clock.monotonic_ms() - began_ms) / 1000:.0f} s")
                        if code:
                            self._note(f"{name} ended with {code} when it was asked to stop")
                    load.wait_for_progress(what="after the restarts")
                with self._phase("load goes on"):
                    self._wait_for_rows()
            self.say(f"{self.load.rows_acknowledged:,} rows acknowledged of {self.load.rows_sent:,} sent")
            with self._phase("quiet"), Lake(self.layout, clock=self.clock) as lake:
                load.wait_for_quiet(lake.warehouse, waits_for_orphans=False, say=self.say)

    def _wait_for_rows(self) -> None:
        before, since_ms = 0, self.clock.monotonic_ms()
        while (count := self.load.rows_acknowledged) < self.row_count:
            if count > before:
                before, since_ms = count, self.clock.monotonic_ms()
            elif self.clock.monotonic_ms() > since_ms + DEADLINE_MS:
                raise Unavailable(f"no row was acknowledged for {DEADLINE_MS // 1000} s, after {count:,}")
            self.clock.sleep_ms(POLL_MS)

    def _look_at_containers(self) -> None:
        """Nobody has crashed, and what the compose file and the images promise of them holds."""
        stack = self.stack
        for name, count in stack.count_crashes().items():
            self._note(f"{name} was restarted {count} times though nobody killed it:\n{stack.read_log(name)[-1500:]}")
        for name in stack.release.ours:
            if not stack.try_inside(name, "sh", "-c", f'test "$(id -u)" = {USER_ID}'):
                self._note(f"{name} does not run as user {USER_ID}")
            if stack.try_inside(name, "sh", "-c", "echo > /var/lib/icedb/x || echo > /opt/icedb/x"):
                self._note(f"{name} can write to its root file system")

    def _look_at_prometheus(self) -> None:
        """Every service is scraped, and all rules are evaluated."""
        deadline_ms = self.clock.monotonic_ms() + DEADLINE_MS
        while wrong := self._find_unscraped():
            if self.clock.monotonic_ms() > deadline_ms:
                self._note(f"Prometheus: {'; '.join(wrong)}")
                return
            self.clock.sleep_ms(POLL_MS)

    def _find_unscraped(self) -> list[str]:
        try:
            targets = self._ask_prometheus("targets")["activeTargets"]
            groups = self._ask_prometheus("rules")["groups"]
        except OSError as error:
            return [f"does not answer: {error}"]
        up = {one["labels"]["job"] for one in targets if one["health"] == "up"}
        jobs = {name for name in self.stack.release.ours if name != "beat"} - UNSCRAPED
        rules = [rule for group in groups for rule in group["rules"]]
        wrong = [f"{job} is not scraped" for job in sorted(jobs - up)]
        wrong += [f"rule {rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] != "ok"]
        return wrong if rules else [*wrong, "there are no rules"]

    def _ask_prometheus(self, path: str) -> dict[str, Any]:
        url = f"http://{LOOPBACK}:{self.layout.prometheus_port}/api/v1/{path}"
        with urllib.request.urlopen(url, timeout=PROMETHEUS_TIMEOUT_S) as answer:  # http on loopback  # nosec B310
            data: dict[str, Any] = json.load(answer)["data"]
            return data

    def _count(self) -> None:
        """Read every row once more, when all of them have to be there."""
        with Lake(self.layout, clock=self.clock) as lake:
            look_at_the_end(lake.warehouse, list(TABLES), self.layout.door_settings, self.checker, clock=self.clock)
            for table in TABLES:
                counts = lake.count_rows(lake.read_snapshot(table))
                self.rows_found[table] = sum(counts.values())
        found = sum(self.rows_found.values())
        least, most = self.load.rows_acknowledged, self.load.rows_sent
        self.say(f"{found:,} rows found; {least:,} were acknowledged, {most:,} sent")
        if not least <= found <= most:
            self._note(f"{found:,} rows found, {least:,} acknowledged, {most:,} sent")
