"""What a cluster loses in the middle of a job: every row is there once afterwards, and what was left lies no longer."""

import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
from cluster_rig import ROWS, make_rows
from icedb_log.clock import SystemClock
from waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.redis, pytest.mark.soak]

CLOCK = SystemClock()
DATA, LOG = r"_data/.*\.parquet", r"_log/"
MAX_TRIES = 10


@dataclass
class Job:
    """An operation, and its first write of a kind, which is held at the store's door."""

    rig: object
    driver: object
    table: object
    what: str
    node: object
    left: ExitStack
    hits: object = None


@dataclass(frozen=True)
class Loss:
    """What is lost.

    Attributes:
        name: In words.
        what: The operation in whose middle it is lost.
        strike: Loses it; what it gives the job's stack to undo is undone when the job is done.
        gate: Whose first write is held, and of what, until it is lost; ``None``: it is lost before the operation begins.
        options: Of the driver's session.
        is_held: Whether the write goes on only when the job is done.
        needs_machines: Whether plain processes cannot lose that.
    """

    name: str
    what: str
    strike: object
    gate: dict | None = field(default_factory=lambda: {"target": DATA})
    options: dict = field(default_factory=dict)
    is_held: bool = False
    needs_machines: bool = False


def kill_executor(job):
    (victim,) = job.node.find(job.driver.application)
    victim.kill()


def cut_off(job):
    job.node.cut()
    job.left.callback(job.node.join)


def restart_master(job):
    job.rig.restart_master()


def restart_forgetful_master(job):
    job.rig.restart_master(forgets=True)
    wait_until(lambda: not job.rig.nodes.find(job.driver.application), "executors that it does not know are killed")


def fill_disk(job):
    job.left.enter_context(job.node.full_disk())


def slow_down(job):
    job.node.slow_down(0.05)
    job.left.callback(job.node.slow_down, None)


def kill_driver(job):
    job.driver.kill()


def decommission(job):
    (executor,) = job.node.find(job.driver.application)
    executor.send_signal(signal.SIGPWR)


def wait_until_idle(job):
    wait_until(lambda: not job.rig.nodes.find(job.driver.application), "idle executors are given back")


SPECULATION = {"spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.1"}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "10s",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "10s",
    "spark.decommission.enabled": "true",
}
LOSSES = [
    Loss("an executor is killed in the middle of a flush", "flush", kill_executor),
    Loss("an executor is killed in the middle of a merge", "merge", kill_executor),
    Loss("the master is restarted", "merge", restart_master),
    Loss("a machine is cut off, and its task ends later", "merge", cut_off, is_held=True, needs_machines=True),
    Loss("the disk of a machine is full", "flush", fill_disk, gate=None, needs_machines=True),
    Loss("the master is restarted without what it knew", "merge", restart_forgetful_master),
    Loss("the driver is killed between its job and its commit", "merge", kill_driver,
         gate={"target": LOG, "client": "app/driver", "action": "hold"}),
    Loss("a machine is slow, with speculation", "merge", slow_down, options=SPECULATION, is_held=True, needs_machines=True),
    Loss("idle executors are given back", "merge", wait_until_idle, gate=None, options=DYNAMIC),
    Loss("an executor is decommissioned in the middle of a merge", "merge", decommission, options=DYNAMIC),
]  # fmt: skip


@contextmanager
def begun(rig, driver, loss, name):
    table = rig.table(name)
    table.stage(range(ROWS))
    if loss.what == "merge":
        driver.do("flush", table=table.name)
        table.stage(range(ROWS, 2 * ROWS))
        driver.do("flush", table=table.name)
    with ExitStack() as left:
        job = Job(rig, driver, table, loss.what, rig.nodes.all[0], left)
        if loss.gate is None:
            loss.strike(job)
        else:
            job.hits = rig.gate(table, **loss.gate)
            left.callback(rig.proxy.release, job.hits)
        driver.begin(loss.what, table=table.name)
        if loss.gate is not None:
            job.node = rig.find_client(job.hits)
        yield job


def ask_until_done(drivers, job, options):
    """Ask as the next sweeps of a worker do, until the operation is done; return the errors on the way."""
    errors = []
    while len(errors) < MAX_TRIES:
        if job.driver.process.poll() is None:
            answer = job.driver.answer()
            if "ok" in answer:
                return errors
            if answer["error"][0] != "LockBusy":  # the lock of a driver that is gone runs out by itself
                errors.append(answer["error"])
            if not answer["alive"]:
                job.driver.close()
        else:
            errors.append(["killed", ""])
        if job.driver.process.poll() is not None:
            job.driver = drivers(options)
        job.driver.begin(job.what, table=job.table.name)
    raise AssertionError(errors)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name.replace(" ", "-"))
def test_nothing_is_lost_or_doubled_when(loss, rig, drivers, capsys):
    if loss.needs_machines and not rig.nodes.are_isolated:
        pytest.skip("machines of their own need root, and the kernel's namespaces")
    name = f"loss_{LOSSES.index(loss)}"
    with begun(rig, drivers(loss.options), loss, name) as job:
        struck_ms = CLOCK.monotonic_ms()
        if job.hits:
            loss.strike(job)
            if not loss.is_held:
                rig.proxy.release(job.hits)
        errors = ask_until_done(drivers, job, loss.options)
        healthy_ms = CLOCK.monotonic_ms() - struck_ms
    rows = make_rows(range(2 * ROWS if loss.what == "merge" else ROWS))
    assert job.table.rows() == rows
    if job.hits and job.hits.fault.action != "hold":
        rig.wait_landed(job.hits)
    assert job.driver.do("merge", table=job.table.name) is not None
    assert job.table.rows() == rows
    orphans = job.table.sweep()
    if loss.strike is restart_forgetful_master:
        job.driver.kill()  # a job that had its last answer has not noticed that no master knows its application
    with capsys.disabled():
        print(f"\n{loss.name}: healthy after {healthy_ms} ms, {len(orphans)} orphans swept, errors: {errors}")
