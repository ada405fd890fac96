"""A worker in a process of its own: it serves the janitor's queue with a task that the test gives in the place of vacuum."""

import textwrap
from contextlib import contextmanager

import psutil
from processes import is_running, read_metrics, running, service_env
from waiting import LIMIT_S, wait_until

PROGRAM = """
from pathlib import Path
from icedb_janitor.metrics import JanitorMetrics
from icedb_log.clock import SystemClock
from icedb_service.main import run_main
from icedb_log.results import Work
from icedb_service.settings import ServiceSettings
from icedb_service.tasks import define_task
from icedb_service.worker import Engine, NoEngine, WorkerService, run_worker

{before}

def register(app, context):
    def vacuum(table):
        '''Delivery: once.'''
{task}
        return Work(is_idle=False)
    define_task(app, context, "icedb.janitor.vacuum", vacuum)

def serve(settings):
    return run_worker(WorkerService("janitor", {metrics}, {engine}, register, threads={threads}), settings)

run_main(ServiceSettings, "janitor", serve)
"""


@contextmanager
def running_worker(
    redis_url, folder, *, task="pass", before="", engine="NoEngine", threads=None, metrics="JanitorMetrics()"
):
    """Run a worker in a folder, which gets its ``log``; yield the process.

    Args:
        redis_url: Where its queue is.
        folder: Where it runs; the warehouse is below it.
        task: Statements, with ``table``.
        before: Statements that the worker begins with.
        engine: A class that they define; it has none by default.
        threads: Tasks side by side; ``None``: one at a time, in a child.
        metrics: What it serves.
    """
    body = textwrap.indent(textwrap.dedent(task).strip(), " " * 8)
    program = PROGRAM.format(before=textwrap.dedent(before), task=body, engine=engine, threads=threads, metrics=metrics)
    env = service_env(ICEDB_STORE=f"file://{folder / 'warehouse'}", ICEDB_REDIS_URL=redis_url)
    with running(["-c", program], env, folder) as process:
        yield process
        process.terminate()
        process.wait(LIMIT_S)


def require_engine_replaced(process, folder, *, port, component, engine):
    """Kill the engine of an idle worker: nobody has to ask for it to be counted, and its process replaced.

    Args:
        process: The worker; it is stopped in the end.
        folder: Where its ``log`` is.
        port: Of its metrics.
        component: As metrics name it.
        engine: Name of the engine's process.
    """
    died, is_up = f'icedb_{component}_engine_failures_total{{reason="died"}}', f"icedb_{component}_engine_up"
    wait_until(lambda: read_metrics(port).get(is_up) == 1, "the engine is open")
    (child,) = psutil.Process(process.pid).children()
    (victim,) = [each for each in child.children() if each.name() == engine]
    before = read_metrics(port)
    victim.kill()
    # Nothing but /metrics is asked: no task, no /healthz.
    wait_until(lambda: read_metrics(port).get(died, 0) > before.get(died, 0), "the death is counted")
    wait_until(lambda: not is_running(child), "the process is replaced")
    wait_until(lambda: read_metrics(port).get(is_up) == 1, "another engine is open")
    after = read_metrics(port)
    assert after[died] == before[died] + 1, "the count outlives the process that counted"
    assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
    assert process.poll() is None, "the worker's parent stays"
    process.terminate()
    assert process.wait(LIMIT_S) == 0
    log = (folder / "log").read_text()
    assert log.count('"engine_died"') == 1
    assert "process_stuck" not in log
