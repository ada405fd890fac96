"""Time travel over random histories: what is answered is the state at that time, as a sequential model knows it (R3).

The model knows rows and the times that commits gave themselves, and nothing of log files, folds or horizons. Committers'
clocks are wrong by up to a few seconds. Rows are read from the data files, so an answer whose files are gone is red, too.
"""

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st
from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.changes.row_changes import delete_rows
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon
from icedb_log.holds.guards import STORE_RESOLUTION_MS
from icedb_log.ingest.flush import flush_table
from icedb_log.keys import parse_log_key
from icedb_log.log.fold import fold
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.row_files import RowFileChanger, RowFileMerger, RowFileWriter, read_live_rows
from icedb_sim.tables.small_table import SmallTable

SKEW_MS = 5000
"""How wrong the clocks of committers are, at most; less than a quarter of the log's grace period (I3)."""
PARTITIONS = "ab"

Step = tuple[str, int, int]
steps = st.tuples(
    st.sampled_from(
        ("append", "append", "append", "merge", "merge", "delete", "drop", "vacuum", "cut", "lease", "wait", "rest")
    ),
    st.integers(0, 7),
    st.integers(-SKEW_MS, SKEW_MS),
)


@dataclass
class Row:
    """A row of the model: when it came, and when it went."""

    number: int
    partition: str
    born_ms: int
    gone_ms: int | None = None

    def is_live(self, time_ms: int) -> bool:
        return self.born_ms <= time_ms and (self.gone_ms is None or self.gone_ms > time_ms)


@dataclass
class Answer:
    """What was answered once and may never change: the numbers of the rows, and the id of the snapshot."""

    numbers: list[int]
    snapshot_id: str


@dataclass
class History:
    """A table, and the model that runs beside it."""

    table: SmallTable
    rows: list[Row] = field(default_factory=list)
    commits_ms: list[int] = field(default_factory=list)
    log_lives: dict[str, int | None] = field(default_factory=dict)
    """Every log file that ever was: when it died, by its committer."""
    leases: list[tuple[int, int]] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)

    def run(self, step: Step) -> None:
        kind, number, skew_ms = step
        table, clock = self.table, FakeClock(self.table.clock.now_ms() + skew_ms, seed=str(len(self.rows)) + kind)
        opened = Table.open(table, clock=clock, owner=kind, reader=table.reader())
        partition = PARTITIONS[number % len(PARTITIONS)]
        before = set(table.keys(table.paths.log_prefix))
        if kind == "append":
            table.stage([{"id": len(self.rows), "p": partition}])
            flush_table(opened, RowFileWriter(table.store, clock))
            self._commit(before, born=Row(len(self.rows), partition, 0))
        elif kind == "merge":
            merge_table(opened, RowFileMerger(table.store, clock), options=MergeOptions(full=number % 2 == 0))
            self._commit(before)
        elif kind == "delete":
            delete_rows(opened, RowFileChanger(table.store, clock), f"id = {number}")
            self._commit(before, gone=lambda row: row.number == number)
        elif kind == "drop":
            choose = lambda _, infos: [info.path for info in infos if info.path == f"p={partition}"]  # noqa: E731
            remove_partitions(opened, choose)
            self._commit(before, gone=lambda row: row.partition == partition)
        elif kind in ("vacuum", "cut"):
            if kind == "cut":  # deleted, and not stripped: the horizon is not written down yet
                table.store.script = [Fault("put_if_match", Effect.REFUSE, key="/_log/") for _ in range(9)]
            table.vacuum()
            table.store.script = []
        elif kind == "lease":
            self._lease(number)
        elif kind == "rest":  # until what died can go: log files, and with a high number data files
            table.clock.advance(table.config.log_grace_ms + number * 8000)
            table.vacuum()
        table.clock.advance(1 + number * (1000 if kind == "wait" else 1))

    def _commit(self, before, *, born=None, gone=lambda _: False) -> None:
        """Take what a commit changed into the model, at the time that it gave itself."""
        new = [parse_log_key(key).time_ms for key in self.table.keys(self.table.paths.log_prefix) if key not in before]
        if not new:
            return
        (time_ms,) = new
        self.commits_ms.append(time_ms)
        for row in self.rows:
            if row.gone_ms is None and gone(row):
                row.gone_ms = time_ms
        if born is not None:
            born.born_ms = time_ms
            self.rows.append(born)

    def _lease(self, number: int) -> None:
        """Lease a time that a janitor cannot have begun to delete from (J4)."""
        table = self.table
        at_ms = table.clock.now_ms() - number * 1000 - STORE_RESOLUTION_MS
        put_lease(table, at_ms=at_ms, ttl_ms=60_000, clock=table.clock)
        self.leases.append((at_ms, table.clock.now_ms() + 60_000))

    def check(self) -> None:
        """Ask for every time at which something changed, and for those just before."""
        view = self.table.view()
        present = {file.key for file in view.files}
        for file in view.files:
            self.log_lives.setdefault(file.key, None)
            self.log_lives |= {t.path: t.tombstoned_ms for t in file.log.log_tombstones}
        died_ms = [ms for key, ms in self.log_lives.items() if key not in present and ms is not None]
        leased = {at_ms for at_ms, until_ms in self.leases if until_ms > self.table.clock.now_ms()}
        for time_ms in {each for ms in self.commits_ms for each in (ms - 1, ms)} | leased | {view.store_now_ms}:
            try:
                snapshot = fold(view, as_of_ms=time_ms, longest_commit_ms=SKEW_MS + 1)
            except BelowHorizon as refusal:
                event("refused")
                assert any(time_ms < ms for ms in died_ms), f"{time_ms} is refused, and no log file is gone: {refusal}"
                assert time_ms not in leased, f"{time_ms} is leased"
                assert f"({max(died_ms)}), the oldest time still readable" in str(refusal)
                continue
            numbers = sorted(row["id"] for row in read_live_rows(self.table.store, snapshot))
            assert numbers == [row.number for row in self.rows if row.is_live(time_ms)], f"as of {time_ms}"
            answer = self.answers.get(time_ms)
            if answer is not None:
                event("asked again, stable")
                assert answer.numbers == numbers, f"as of {time_ms}: stable, and changed"
            if snapshot.is_stable:
                self.answers[time_ms] = Answer(numbers, snapshot.snapshot_id)


@given(st.lists(steps, min_size=10, max_size=30))
@settings(max_examples=60)
def test_r3_what_is_answered_is_the_state_at_that_time(history):
    travel = History(SmallTable(declared={"id": "BIGINT", "p": "VARCHAR"}))
    for step in history:
        travel.run(step)
        travel.check()
