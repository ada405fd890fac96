"""The judge of a day: what was acknowledged is there, once, and nothing else; whatever is amiss is told."""

from types import SimpleNamespace

import pytest
from icedb_local.day import day_run
from icedb_local.day.day_plan import BAD_LINES, CLOSED_USER, NO_TABLE, PRODUCERS, RETENTION_MS, DayPlan
from icedb_local.day.day_run import DayLayout, DayRun
from icedb_local.stack_layout import LARGE, StackPorts
from icedb_log.units import HOUR_MS
from icedb_sim.fakes.manual_clock import ManualClock

SHOP, BROKEN, DEVICES = (
    next(each for each in PRODUCERS if each.name == name) for name in ("shop", "broken partner", "devices")
)


class FakeLake:
    """Tables as lists of rows: batch, number, value."""

    def __init__(self):
        self.rows = {}
        self.bad_rows = 0
        self.warehouse = SimpleNamespace(table=lambda name: name)
        self.client = None

    def read_snapshot(self, table):
        found = {}
        for batch, number, value in self.rows.get(table, ()):
            found.setdefault(batch, []).append((number, value))
        rows = [
            (batch, len(each), len({number for number, _ in each}), sum(value for _, value in each))
            for batch, each in found.items()
        ]
        return SimpleNamespace(sql=lambda _: SimpleNamespace(fetchall=lambda: rows))


@pytest.fixture
def run(tmp_path, monkeypatch):
    clock = ManualClock()
    layout = DayLayout(tmp_path, "s3", StackPorts(), has_frontend=True, engine="light")
    begin_ms = (clock.now_ms() // HOUR_MS - 24) * HOUR_MS
    day = DayRun(DayPlan(15, 1, 1, begin_ms), SimpleNamespace(layout=layout), FakeLake(), clock, SimpleNamespace())
    monkeypatch.setattr(day_run, "list_quarantined", lambda _: [SimpleNamespace(row_count=day.lake.bad_rows)])
    yield day
    day.probe.close()


def send(run, producer, hour=1.0, *, table=None, state="acknowledged", closed=False):
    if closed:
        run.ledger.close_account()
    batch = run.ledger.begin(producer, table or producer.table, hour)
    run.ledger.end(batch, state)
    if state == "acknowledged":
        run.lake.bad_rows += len(batch.bad_lines)
        rows = run.lake.rows.setdefault(batch.table, [])
        rows += [(batch.number, row.number, row.value) for row in run.plan.rows(batch) if not is_gone(run, batch, row)]
    return batch


def is_gone(run, batch, row):
    is_erased = batch.table == "orders" and row.user_id == CLOSED_USER
    return is_erased or (batch.table == "metrics" and row.is_expired(run.clock.now_ms()))


def judge(run, table):
    run._judge_table(table)
    return [check.name for check in run.checks.checks if not check.holds]


def test_all_that_was_acknowledged_is_accounted_for(run):
    for number in range(60):
        send(run, SHOP, closed=number == 40)
    send(run, BROKEN)
    send(run, BROKEN, table=NO_TABLE, state="refused")
    assert judge(run, "orders") == []
    account = run.accounts["orders"]
    assert account["quarantined"] == len(BAD_LINES)
    assert account["refused"] == BROKEN.rows + len(BAD_LINES)
    assert account["erased"] > 0
    assert sum(account.values()) == 60 * SHOP.rows + 2 * (BROKEN.rows + len(BAD_LINES))


def test_hours_that_retention_has_removed_are_accounted_for(run):
    for hour in (1.0, 6.0, 23.0):
        send(run, DEVICES, hour)
    assert judge(run, "metrics") == []
    account = run.accounts["metrics"]
    assert account["expired"] >= 2 * DEVICES.rows > account["live"] > 0
    run.clock.advance(RETENTION_MS)  # more has expired, and is there
    assert judge(run, "metrics") != []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows.pop(), ["rows", "different rows", "sum of the values"]),
        (lambda rows: rows.append(rows[-1]), ["rows", "sum of the values"]),
        (lambda rows: rows.append((rows[-1][0], rows[-1][1], 0)), ["rows"]),
        (lambda rows: rows.__setitem__(0, (rows[0][0], rows[0][1], rows[0][2] + 1)), ["sum of the values"]),
        (lambda rows: rows.append((99, 0, 1)), ["rows", "different rows", "sum of the values"]),
    ],
)
def test_a_row_that_is_lost_doubled_changed_or_of_nobody_is_told(run, change, told):
    send(run, SHOP)
    change(run.lake.rows["orders"])
    assert judge(run, "orders") == [f"orders: {what} of each batch" for what in told]


def test_a_batch_of_which_nobody_knows_is_unknown(run):
    send(run, SHOP, state="unknown")
    assert judge(run, "orders") == []
    assert run.accounts["orders"] == {"unknown": SHOP.rows}


def test_a_bad_row_that_is_not_in_quarantine_is_told(run):
    send(run, BROKEN)
    run.lake.bad_rows -= 1
    assert judge(run, "orders") == ["orders: rows in quarantine"]


def test_without_spark_nobody_waits_for_large_batches(run):
    names = [program.name for program in run.stack.layout.programs()]
    assert LARGE not in names
    assert LARGE not in run.stack.layout.metrics_ports
    commands = {program.name: program.command for program in run.stack.layout.programs()}
    assert "icedb_local.chaos.light_worker" in commands["merger"]
