"""The demo, step by step, on a running stack: enqueue, merge, clean up, and count at every turn."""

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.units import MIB
from rich.progress import Progress

from icedb_local.checks import CheckBook
from icedb_local.demo_plan import GRACE_MS, TARGET_FILE_BYTES, USER_COLUMN, DemoPlan, DemoTable
from icedb_local.demo_report import Count, make_counts_table, make_files_table
from icedb_local.lake import Lake
from icedb_local.producers import Ledger, Producers
from icedb_local.screen import Screen, make_table
from icedb_local.table_health import Leftovers, find_leftovers, group_by_partition
from icedb_local.watcher import Sampler, Watcher

POLL_MS: Final = 100
PRODUCER_COUNT: Final = 2
CHECKPOINT_COUNT: Final = 3
"""Exact counts while events come in."""
COMMIT_DEADLINE_MS: Final = 300_000
CLEANUP_DEADLINE_MS: Final = 300_000
MAX_MERGE_ROUNDS: Final = 6
DAY: Final = "d"


class DemoRun:
    """One run."""

    def __init__(self, plan: DemoPlan, lake: Lake, screen: Screen, *, clock: Clock) -> None:
        self.plan = plan
        self.checks = CheckBook()
        self.counts: list[Count] = []
        self.sampler = Sampler(lake.warehouse, [table.name for table in plan.tables], clock=clock)
        self._lake = lake
        self._screen = screen
        self._clock = clock
        self._ledgers = {table.name: Ledger() for table in plan.tables}
        self._watcher = Watcher(lake, self._ledgers, numbers_batches=plan.numbers_batches, clock=clock)

    def run(self) -> None:
        """Run every step; what does not hold is in :attr:`checks` afterwards.

        Raises:
            IceDBError: A step could not be done at all.
        """
        with self._screen.step("Create the tables"):
            self._create_tables()
        with self.sampler, self._watcher:
            with self._screen.step("Enqueue events while merges run"):
                self._enqueue()
            self._screen.rate_last_step(sum(one.read_acknowledged().row_count for one in self._ledgers.values()))
            with self._screen.step("Merge what is left to merge"):
                self._merge()
            with self._screen.step(f"Clean up (grace period {GRACE_MS // 1000} s)"):
                self._clean_up()
        with self._screen.step("Count again"):
            self._count_at_the_end()

    def _create_tables(self) -> None:
        shown = make_table("table", "partition", "sort", "takes", left=4)
        for table in self.plan.tables:
            self._lake.create_table(table)
            share = "every batch" if table.takes_every == 1 else f"every {table.takes_every}th batch"
            shown.add_row(table.name, ", ".join(table.partition), ", ".join(table.sort), share)
        self._screen.show_table(shown)
        for table in self.plan.tables:
            self._count_exactly("before", table)

    def _enqueue(self) -> None:
        plan = self.plan
        parts = CHECKPOINT_COUNT + 1
        ends = [plan.batch_count * part // parts for part in range(parts)]
        producers = Producers(
            plan.batches,
            tables=plan.tables,
            ledgers=self._ledgers,
            enqueue=self._lake.client.enqueue,
            thread_count=PRODUCER_COUNT,
        )
        with self._screen.make_progress() as progress, producers:
            bars = _Bars(progress, plan, self._ledgers, self._watcher, self.sampler)
            for part in range(1, parts):
                producers.send(ends[part] - ends[part - 1])
                self._wait(lambda: producers.is_done, bars.update, what="producers")
                self._checkpoint(f"at {100 * part // parts} %", bars)
                if part == parts - 1:
                    self._see_a_merge(bars)
            producers.send()
            self._wait(lambda: producers.is_done, bars.update, what="producers")
            self._checkpoint("all in", bars)
            bars.finish()
        self._screen.show_table(make_counts_table(self.counts, self._screen))
        for table in plan.tables:
            reasons = [batch.reason for batch in list_quarantined(self._lake.warehouse.table(table.name))]
            detail = "; ".join(reasons[:2]) or "0 batches"
            self.checks.add(f"{table.name}: nothing in quarantine", holds=not reasons, detail=detail)

    def _see_a_merge(self, bars: "_Bars") -> None:
        """Make sure that merges run while events come in, also on a slow machine: wait for the first one."""
        main = self.plan.tables[0].name
        with contextlib.suppress(Unavailable):
            self._wait(lambda: self.sampler.merge_count(main) > 0, bars.update, what="a merge")
        count = self.sampler.merge_count(main)
        self.checks.add(f"{main}: merges run while events come in", holds=count > 0, detail=f"{count} so far")

    def _checkpoint(self, moment: str, bars: "_Bars") -> None:
        """Wait until all that is acknowledged is committed, then count; merges go on meanwhile."""
        for table in self.plan.tables:
            prefix = self._lake.warehouse.table(table.name).paths.staging_prefix
            self._wait(
                lambda prefix=prefix: not self._lake.list_objects(prefix),  # type: ignore[misc]
                bars.update,
                what=f"the ingest worker to commit what is staged for {table.name}",
            )
            count = self._count_exactly(moment, table)
            if not self._screen.is_live:  # no bars there: say how far it is
                self._screen.say(f"{moment}: {table.name} has {count.counted_rows:,} rows")

    def _count_exactly(self, moment: str, table: DemoTable) -> Count:
        acknowledged = self._ledgers[table.name].read_acknowledged()
        snapshot = self._lake.read_snapshot(table.name)
        counted = {key[0]: count for key, count in self._lake.count_rows(snapshot, by=(DAY,)).items()}
        total = self.checks.add_equal(
            f"{table.name}, {moment}: rows in the snapshot",
            found=sum(counted.values()),
            expected=acknowledged.row_count,
        )
        per_day = self.checks.add_equal_counts(
            f"{table.name}, {moment}: rows of each day", found=counted, expected=acknowledged.rows_per_day, what="days"
        )
        count = Count(
            moment=moment,
            table=table.name,
            acknowledged_rows=acknowledged.row_count,
            counted_rows=sum(counted.values()),
            file_count=len(snapshot.files),
            is_exact=total.holds and per_day.holds,
        )
        self.counts.append(count)
        return count

    def _merge(self) -> None:
        names = [table.name for table in self.plan.tables]
        before = {name: group_by_partition(self._lake.read_snapshot(name)) for name in names}
        with self._screen.make_progress() as progress:
            bar = progress.add_task("merge", total=len(names), note="")
            for name in names:
                progress.update(bar, note=name)
                self._merge_fully(name)
                progress.advance(bar)
        after = {name: group_by_partition(self._lake.read_snapshot(name)) for name in names}
        self._screen.say(
            f"data files of each partition; least: its size by the target of {TARGET_FILE_BYTES / MIB:g} MiB"
        )
        self._screen.show_table(make_files_table(before, after))
        for name in names:
            unmerged = [one.partition for one in after[name] if not one.is_merged(TARGET_FILE_BYTES)]
            files = sum(len(one.sizes_bytes) for one in after[name])
            detail = f"{files} files in {len(after[name])} partitions"
            if unmerged:
                detail = f"{', '.join(unmerged[:3])}: two files would fit into one of {TARGET_FILE_BYTES:,} bytes"
            check = self.checks.add(
                f"{name}: as few files as the target size allows", holds=not unmerged, detail=detail
            )
            self._screen.show_check(check)

    def _merge_fully(self, table: str) -> None:
        """Merge until no two files of a partition fit together: outputs are smaller than their inputs."""
        for _ in range(MAX_MERGE_ROUNDS):
            self._lake.merge_fully(table)
            partitions = group_by_partition(self._lake.read_snapshot(table))
            if all(one.is_merged(TARGET_FILE_BYTES) for one in partitions):
                return

    def _clean_up(self) -> None:
        names = [table.name for table in self.plan.tables]
        left: dict[str, Leftovers] = {}

        def look() -> bool:
            left.update({name: find_leftovers(self._lake.warehouse, name, clock=self._clock) for name in names})
            return not any(one.total for one in left.values())

        with self._screen.make_progress() as progress:
            look()
            most = max(1, sum(one.total for one in left.values()))
            bar = progress.add_task("dead objects gone", total=most, note="")

            def show() -> None:
                now = sum(one.total for one in left.values())
                progress.update(bar, completed=max(0, most - now), note=f"{now} left")

            deadline_ms = self._clock.monotonic_ms() + CLEANUP_DEADLINE_MS
            while not look() and self._clock.monotonic_ms() < deadline_ms:
                show()
                self._clock.sleep_ms(5 * POLL_MS)
            show()
        for name in names:
            wrong = {what: count for what, count in asdict(left[name]).items() if count}
            log_files = len(self._lake.list_objects(self._lake.warehouse.table(name).paths.log_prefix))
            detail = f"{log_files} log file{'' if log_files == 1 else 's'} left"
            if wrong:
                detail = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in wrong.items())
            check = self.checks.add(f"{name}: nothing dead is left in the store", holds=not wrong, detail=detail)
            self._screen.show_check(check)

    def _count_at_the_end(self) -> None:
        before = len(self.counts)
        for table in self.plan.tables:
            self._count_exactly("after cleanup", table)
            self._check_batches(table)
        self._screen.show_table(make_counts_table(self.counts[before:], self._screen))
        self._check_buckets()
        watcher = self._watcher
        check = self.checks.add(
            "every snapshot in between was whole",
            holds=not watcher.problems and watcher.look_count > 0,
            detail="; ".join(watcher.problems)
            or f"{watcher.look_count} counts of {watcher.snapshot_count} different snapshots",
        )
        self._screen.show_check(check)

    def _check_batches(self, table: DemoTable) -> None:
        if not self.plan.numbers_batches:
            return
        snapshot = self._lake.read_snapshot(table.name)
        found = {str(key[0]): count for key, count in self._lake.count_rows(snapshot, by=("upload",)).items()}
        sent = self._ledgers[table.name].read_acknowledged().rows_per_batch
        expected = {str(number): count for number, count in sent.items()}
        check = self.checks.add_equal_counts(
            f"{table.name}: rows of each batch", found=found, expected=expected, what="batches"
        )
        self._screen.show_check(check)

    def _check_buckets(self) -> None:
        """A user must be in one bucket only, whichever batch, flush or merge its rows went through."""
        for table in self.plan.tables:
            if not any("bucket" in field for field in table.partition):
                continue
            snapshot = self._lake.read_snapshot(table.name)
            pairs = self._lake.count_rows(snapshot, by=(USER_COLUMN, "u"))
            users = {pair[0] for pair in pairs}
            check = self.checks.add_equal(
                f"{table.name}: each user in one bucket", found=len(pairs), expected=len(users), what="users"
            )
            self._screen.show_check(check)

    def _wait(self, is_met: Callable[[], bool], update: Callable[[], None], *, what: str) -> None:
        deadline_ms = self._clock.monotonic_ms() + COMMIT_DEADLINE_MS
        asked_ms = self._clock.monotonic_ms()
        while not is_met():
            took_ms = self._clock.monotonic_ms() - asked_ms
            if self._clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"waited {COMMIT_DEADLINE_MS // 1000} s for {what}; see the logs of the run")
            update()
            self._clock.sleep_ms(max(POLL_MS, 2 * took_ms))
            asked_ms = self._clock.monotonic_ms()
        update()


class _Bars:
    """The progress bars of the enqueue step."""

    def __init__(
        self, progress: Progress, plan: DemoPlan, ledgers: dict[str, Ledger], watcher: Watcher, sampler: Sampler
    ) -> None:
        self._progress = progress
        self._table = plan.tables[0].name
        self._ledgers = ledgers
        self._watcher = watcher
        self._sampler = sampler
        self._enqueued = progress.add_task("enqueued", total=plan.row_count, note="")
        self._visible = progress.add_task("visible", total=plan.row_count, note="")

    def update(self) -> None:
        """Show where things are."""
        samples = self._sampler.samples[self._table]
        note = f"{samples[-1].data_files} data, {samples[-1].log_files} log files" if samples else ""
        acknowledged = self._ledgers[self._table].read_acknowledged()
        self._progress.update(
            self._enqueued, completed=acknowledged.row_count, note=f"{acknowledged.batch_count} batches"
        )
        self._progress.update(self._visible, completed=self._watcher.row_count(self._table), note=note)

    def finish(self) -> None:
        """Show that all is there: it was counted a moment ago."""
        row_count = self._ledgers[self._table].read_acknowledged().row_count
        self._progress.update(self._enqueued, completed=row_count)
        self._progress.update(self._visible, completed=row_count)
