"""A worker in a process of its own: it serves the janitor's queue with a task that the test gives in the place of vacuum."""

import textwrap
from contextlib import contextmanager

from processes import LIMIT_S, running, service_env

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
    return run_worker(WorkerService("janitor", JanitorMetrics(), {engine}, register, threads={threads}), settings)

run_main(ServiceSettings, "janitor", serve)
"""


@contextmanager
def running_worker(redis_url, folder, *, task="pass", before="", engine="NoEngine", threads=None):
    """Run a worker in a folder, which gets its ``log``; yield the process.

    Args:
        redis_url: Where its queue is.
        folder: Where it runs; the warehouse is below it.
        task: Statements, with ``table``.
        before: Statements that the worker begins with.
        engine: A class that they define; it has none by default.
        threads: Tasks side by side; ``None``: one at a time, in a child.
    """
    body = textwrap.indent(textwrap.dedent(task).strip(), " " * 8)
    program = PROGRAM.format(before=textwrap.dedent(before), task=body, engine=engine, threads=threads)
    env = service_env(ICEDB_STORE=f"file://{folder / 'warehouse'}", ICEDB_REDIS_URL=redis_url)
    with running(["-c", program], env, folder) as process:
        yield process
        process.terminate()
        process.wait(LIMIT_S)
