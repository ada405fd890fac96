"""What a run found: for people, and as JSON. On a violation also what the ledger and the logs say of its batches."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from icedb_local.chaos.chaos_run import ChaosRun
from icedb_local.chaos.content_checker import Violation
from icedb_local.chaos.fault_records import KindFigures, sum_kinds
from icedb_local.screen import Screen, make_table

MAX_LOG_LINES: Final = 12
MAX_LINE_CHARS: Final = 400
REPORT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """A run in figures.

    Attributes:
        run: The run; it has ended.
        seconds: How long it took, from the first process to the last look.
        command: With which it can be begun again.
    """

    run: ChaosRun
    seconds: float
    command: str

    @property
    def kinds(self) -> tuple[KindFigures, ...]:
        """The faults by kind."""
        return sum_kinds(self.run.faults)

    @property
    def fault_count(self) -> int:
        """Faults that met somebody."""
        return sum(kind.fault_count for kind in self.kinds)

    @property
    def is_ok(self) -> bool:
        """Whether nothing was lost, doubled or unseen."""
        return not self.run.checker.violations

    def to_json(self) -> dict[str, Any]:
        """Return everything."""
        run = self.run
        return {
            "version": REPORT_VERSION,
            **run.load.to_json(),
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "phase_seconds": run.phase_seconds,
            "engine": run.layout.engine,
            "disks": run.how_disks,
            "faults": self.fault_count,
            "kinds": [dataclasses.asdict(kind) for kind in self.kinds],
            "tries": sum(entry.tries for entry in run.ledger.entries().values()),
            "pasts_compared": run.checker.compared_count,
            "snapshots": run.snapshot_count,
            "figures": run.figures,
            "store_failures": [dataclasses.asdict(one) for one in run.counted_failures],
            "quarantine": {table: len(reasons) for table, reasons in run.quarantine.items()},
            "quarantine_reasons": sorted({reason for reasons in run.quarantine.values() for reason in reasons})[:5],
            "injected": [
                {
                    "number": fault.planned.number,
                    "kind": fault.planned.kind.name,
                    "target": fault.planned.target,
                    "begin_ms": fault.begin_ms,
                    "end_ms": fault.end_ms,
                    "count": fault.met_count,
                    "services": {name: len(times) for name, times in fault.service_hits_ms.items()},
                    "seen": fault.seen,
                    "trace": fault.trace,
                    "recovery_ms": fault.recovery_ms,
                }
                for fault in run.faults
            ],
        }

    def write(self, path: Path) -> None:
        """Write the JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def show(self, screen: Screen) -> None:
        """Print what a person wants to know."""
        self._show_kinds(screen)
        self._show_outages(screen)
        data = self.to_json()
        batches = data["batches"]
        screen.say(
            f"{self.fault_count} faults in {self.seconds:,.0f} s; {batches['acknowledged']:,} batches acknowledged, "
            f"{batches['unknown']:,} unknown; {data['rows_acknowledged']:,} rows acknowledged"
        )
        screen.say(
            f"{data['reads_checked']:,} reads of {data['snapshots']:,} snapshots checked, {data['rows_checked']:,} rows"
        )
        screen.say(", ".join(f"{value:,.0f} {name}" for name, value in data["figures"].items()))
        made, counted = (sum(getattr(one, what) for one in self.run.counted_failures) for what in ("made", "counted"))
        screen.say(f"{made:,} requests of services were made to fail while they were up; they counted {counted:,}")
        late = sum(data["quarantine"].values())
        screen.say(f"{late} batches wait in quarantine: they crashed their reader, or came too late; all are known")
        screen.say(", ".join(f"{name} {value:,.0f} s" for name, value in data["phase_seconds"].items()))
        count = len(self.run.checker.violations)
        words = "no row lost, none doubled, every fault seen" if self.is_ok else f"{count} violations"
        screen.console.print(Text.assemble("   ", screen.mark(holds=self.is_ok), " ", words))
        for violation in self.run.checker.violations:
            self._show_violation(screen, violation)
        if not self.is_ok:
            screen.console.print(
                f"   again with: {self.command}\n   the data and logs of this run are in {self.run.layout.run_dir}",
                style="bold", markup=False, soft_wrap=True,
            )  # fmt: skip

    def _show_kinds(self, screen: Screen) -> None:
        table = make_table(
            "fault", "what", "faults", "met", "idle", "seen", "unseen", "masked", "recovery s", "longest s", left=2
        )
        for kind in self.kinds:
            table.add_row(
                kind.kind, kind.group, str(kind.fault_count), str(kind.met_count), str(kind.idle_count),
                str(kind.seen_count), str(kind.unseen_count), str(kind.masked_count),
                _seconds(kind.recovery_median_ms), _seconds(kind.recovery_longest_ms),
            )  # fmt: skip
        screen.show_table(table)

    def _show_outages(self, screen: Screen) -> None:
        table = make_table("who", "well", "failed", "longest outage s")
        for one in self.run.load.outages:
            table.add_row(
                one.name, f"{one.success_count:,}", f"{sum(one.failures.values()):,}", _seconds(one.longest_ms)
            )
        screen.show_table(table)

    def _show_violation(self, screen: Screen, violation: Violation) -> None:
        where = " ".join(part for part in (violation.table, violation.reader, violation.snapshot) if part)
        screen.console.print(f"   {where}: {violation.what}", style="red", markup=False, soft_wrap=True)
        for entry in violation.entries[:3]:
            screen.console.print(f"     {entry}", style="dim", markup=False, soft_wrap=True)
        ids = [entry.batch_id for entry in violation.entries[:3]]
        for line in find_log_lines(self.run.layout.run_dir / "logs", ids):
            screen.console.print(f"     {line}", style="dim", markup=False, soft_wrap=True)


def find_log_lines(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the lines of all logs that name one of some ids, cut; also those of commits that these lines name."""
    if not words:
        return []
    found: list[str] = []
    for path in sorted(folder.glob("*.log*")):
        with path.open(errors="replace") as lines:
            found += [
                f"{path.name}: {line.strip()[:MAX_LINE_CHARS]}" for line in lines if any(w in line for w in words)
            ]
    return found[:MAX_LOG_LINES]


def _seconds(value_ms: int | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000:.1f}"
