"""The names that services, the CLI and producers share: components, queues, tasks and the keys of wake-ups.

A task's name is ``icedb.<component>.<what>``; its queue is the component, or, of a command that somebody waits for,
the component's queue of commands. Changing one of these is a change of the wire between releases: old workers drop
messages for names that they do not know.
"""

from typing import Final, Literal

Component = Literal[
    "ingest", "ingest-large", "frontend", "enqueue", "merge", "janitor", "snapshot", "gateway", "console"
]  # fmt: skip
Queue = Literal["ingest", "ingest-large", "enqueue", "merge", "janitor"]

QUEUES: Final[tuple[Queue, ...]] = ("ingest", "ingest-large", "enqueue", "merge", "janitor")

COMMAND_QUEUES: Final[dict[Queue, str]] = {
    "ingest": "ingest-commands",
    "merge": "merge-commands",
    "janitor": "janitor-commands",
}
"""Where commands wait, beside the queue of the same workers: these take from both in turn, so that a command waits
behind one wake-up and not behind those of all tables."""

INGEST_FLUSH: Final = "icedb.ingest.flush"
INGEST_SWEEP: Final = "icedb.ingest.sweep"
INGEST_ENQUEUE: Final = "icedb.ingest.enqueue"
INGEST_IMPORT: Final = "icedb.ingest.import"
INGEST_CHECK_QUERY: Final = "icedb.ingest.check_query"
INGEST_FEED: Final = "icedb.ingest.feed"
INGEST_LARGE_FLUSH: Final = "icedb.ingest-large.flush"
MERGE_MERGE: Final = "icedb.merge.merge"
MERGE_COLD: Final = "icedb.merge.cold"
MERGE_CHANGE: Final = "icedb.merge.change"
MERGE_DROP_PARTITIONS: Final = "icedb.merge.drop_partitions"
MERGE_RETAIN: Final = "icedb.merge.retain"
MERGE_ERASE: Final = "icedb.merge.erase"
MERGE_SWEEP: Final = "icedb.merge.sweep"
JANITOR_VACUUM: Final = "icedb.janitor.vacuum"
JANITOR_ORPHANS: Final = "icedb.janitor.sweep_orphans"
JANITOR_PURGE: Final = "icedb.janitor.purge"
JANITOR_SWEEP: Final = "icedb.janitor.sweep"

TASKS: Final[dict[str, Queue]] = {
    INGEST_FLUSH: "ingest",
    INGEST_SWEEP: "ingest",
    INGEST_ENQUEUE: "enqueue",
    INGEST_IMPORT: "ingest",
    INGEST_CHECK_QUERY: "ingest",
    INGEST_FEED: "ingest",
    INGEST_LARGE_FLUSH: "ingest-large",
    MERGE_MERGE: "merge",
    MERGE_COLD: "merge",
    MERGE_CHANGE: "merge",
    MERGE_DROP_PARTITIONS: "merge",
    MERGE_RETAIN: "merge",
    MERGE_ERASE: "merge",
    MERGE_SWEEP: "merge",
    JANITOR_VACUUM: "janitor",
    JANITOR_ORPHANS: "janitor",
    JANITOR_PURGE: "janitor",
    JANITOR_SWEEP: "janitor",
}
"""Every task and the queue that its messages go to."""

WAKE_KEY_PREFIX: Final = "icedb:wake:"


def wake_key(task: str, table: str | None) -> str:
    """Return the Redis key that stands for a wake-up on its way."""
    return f"{WAKE_KEY_PREFIX}{task}:{table or ''}"


COMMITS_CHANNEL: Final = "icedb:commits"
"""The Redis channel in which each commit of a worker is announced: the message is the table's name."""

WORKERS_KEY: Final = "icedb:workers"
"""The Redis hash in which each worker says what it does, under its name: a JSON object (`WorkerLook`)."""

PROGRESS_HEADER: Final = "icedb_progress"
"""Of a message whose sender waits for the result, and wants to be told meanwhile how far the task is."""


def turn_key(table: str) -> str:
    """Return the Redis key that is there while the next commit of a table is not due, whoever made the last one."""
    return f"icedb:turn:{table}"


def progress_key(task_id: str) -> str:
    """Return the Redis key under which a worker says how far a task is: a JSON list of what, done and total."""
    return f"icedb:progress:{task_id}"
