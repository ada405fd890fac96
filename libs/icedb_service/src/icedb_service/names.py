"""The names that services, the CLI and producers share: components, queues and tasks.

A task's name is ``icedb.<component>.<what>``; its queue is the component. Changing one of these is a change of
the wire between releases: old workers drop messages for names that they do not know.
"""

from typing import Final, Literal

Component = Literal["ingest", "merge", "janitor", "snapshot"]
Queue = Literal["ingest", "merge", "janitor"]

QUEUES: Final[tuple[Queue, ...]] = ("ingest", "merge", "janitor")

INGEST_FLUSH: Final = "icedb.ingest.flush"
INGEST_SWEEP: Final = "icedb.ingest.sweep"
MERGE_MERGE: Final = "icedb.merge.merge"
MERGE_SWEEP: Final = "icedb.merge.sweep"
JANITOR_VACUUM: Final = "icedb.janitor.vacuum"
JANITOR_SWEEP: Final = "icedb.janitor.sweep"

TASKS: Final[dict[str, Queue]] = {
    INGEST_FLUSH: "ingest",
    INGEST_SWEEP: "ingest",
    MERGE_MERGE: "merge",
    MERGE_SWEEP: "merge",
    JANITOR_VACUUM: "janitor",
    JANITOR_SWEEP: "janitor",
}
"""Every task and the queue that its messages go to."""
