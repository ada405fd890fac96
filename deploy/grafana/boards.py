"""The dashboards: what an operator asks, and which panels answer it.

Owns which panel stands where. `panels.py` and the modules beside it have the panels. `dashboards.py` turns all of it
into Grafana's JSON, `docs/reference.py` into docs/dashboards.md, `docs/pictures.py` into its pictures.
"""

from graphs import Board, Graph
from panels import PANELS


def pick(*titles: str) -> tuple[Graph, ...]:
    """Return panels by their titles. Raises KeyError for a title that no panel has."""
    return tuple(PANELS[title] for title in titles)


OVERVIEW = Board(
    "overview",
    "Overview",
    "Is the warehouse well? Begin here.",
    {
        "Is data late?": (
            "*Tables that are late* and *Lag against its bound*. Which, and why: [ingest](board:ingest), then "
            "[one table](board:table)."
        ),
        "Is anything lost?": "*Losses* is 0, or a person has to act now: [what to do](runbook:IceDBCommitLost).",
        "What do I do?": "*What fires* names alerts; the [runbook](runbook:) has an entry for each.",
        "Do we keep what we promised?": (
            "*Objectives*: 99 % of the time a table is not late, 99 % of snapshots within a second, no loss."
        ),
    },
    {
        "Now": pick(
            "Alerts that fire",
            "Tables that are late",
            "Latest table",
            "Losses",
            "Tables that are halted",
            "Services that are down",
        ),
        "Alerts": pick("What fires"),
        "Objectives": pick(
            "Freshness: burn rate",
            "Freshness: budget left",
            "Snapshot latency: burn rate",
            "Snapshot latency: budget left",
        ),
        "Tables": pick("Lag against its bound", "Merge lag", "Log files against the slow bound"),
        "Work": pick(
            "Rows made live", "Refused batches", "Calls that fail", "Deleted objects", "S3 requests that fail"
        ),
        "Services": pick(
            "Replicas that answer",
            "Runs that did not end well",
            "Age of the figures",
            "Requests to the store that fail",
            "Requests to Redis that fail",
            "Callers that are refused",
            "Pages of the console",
            "Queries in the console",
        ),
        "Clocks": pick("Clock skew", "Clock jumps", "Held back by the vacuum"),
    },
)

MERGE_LAG = Board(
    "merge-lag",
    "Merge lag",
    "Do merges and the log keep up with ingest?",
    {
        "Are small files piling up?": (
            "*Merge lag* rises and *Live data files* with it: merges do not keep up, or do not run."
        ),
        "Why?": (
            "*Merge throughput* is 0: no merger works ([down](runbook:IceDBWorkerDown), "
            "[failing](runbook:IceDBRunsFailing)). It is not: there is more to do than one worker can. For "
            "one table: `icedb merge TABLE --dry-run`."
        ),
        "What does it cost?": (
            "*Back-pressure*: from the slow bound on commits come less often, at the stop bound front ends "
            "refuse batches."
        ),
        "What do I do?": "[IceDBMergeLagHigh](runbook:IceDBMergeLagHigh).",
    },
    {
        "Merge lag": pick("Merge lag", "Data files that wait for a merge", "Bytes that wait for a merge"),
        "Tables": pick("Live data files", "Log files", "Time since the last commit"),
        "Merges": pick(
            "Commits",
            "Merge throughput",
            "Merged data files",
            "Write amplification",
            "Folded log files",
            "Merge latency",
        ),
        "Back-pressure": pick(
            "Back-pressure",
            "Stretch of flush intervals",
            "Flushes put off",
            "Log files against the slow bound",
            "Backlog against the slow bound",
        ),
    },
)

TABLE = Board(
    "table",
    "One table",
    "All that the log says of one table, against its own policy.",
    {
        "Is it late?": (
            "*Lag and its bound*. Batches wait and nothing is committed: "
            "[stalled](runbook:IceDBIngestStalled). Commits are stretched: *Stretch of flush intervals*."
        ),
        "Is it growing out of bounds?": (
            "*Log files and their bounds*, *Backlog and its bounds*: [merge lag](board:merge-lag) says "
            "whether merges run, [janitor](board:janitor) whether dead files go."
        ),
        "Is something wrong with its rows?": (
            "*Quarantined batches*, *Halted tables*, *Tables whose flushes fail*, *Lost commits*."
        ),
        "What does it cost?": "*Cost a day*, by what it is for: [over its budget](runbook:IceDBTableOverBudget).",
        "What do I do?": "`icedb status TABLE` says it in words; so does the console's page of the table.",
    },
    {
        "Is it late?": pick("Lag and its bound", "Staged batches", "Staged bytes", "Time since the last commit"),
        "Is it merged?": pick(
            "Merge lag",
            "Backlog and its bounds",
            "Log files and their bounds",
            "Live data files",
            "Live bytes",
            "Live rows",
        ),
        "Is it slowed down?": pick("Back-pressure", "Stretch of flush intervals"),
        "Is something wrong?": pick(
            "Halted tables",
            "Tables whose flushes fail",
            "Quarantined batches",
            "Lost commits",
            "Freshness: budget left",
        ),
        "What is kept?": pick(
            "Tombstoned data files", "Leases", "Oldest leased time", "Open erasures", "Erasure and its bound"
        ),
        "What does it cost?": pick("Cost a day"),
        "A view, or shown to Iceberg": pick(
            "View lag", "Commits that views have still to take", "Commits that views refused", "Held back from Iceberg"
        ),
    },
    is_for_one_table=True,
)

INGEST = Board(
    "ingest",
    "Ingest",
    "From a batch's acceptance to its commit.",
    {
        "Is data late?": (
            "*Lag against its bound* above 100 %, and for which table. It rises without end: "
            "[stalled](runbook:IceDBIngestStalled)."
        ),
        "Why?": (
            "*Flush latency* (a slow store, large batches), *Flushes put off* (back-pressure), *Deferred "
            "batches* (too many partitions in a batch), *Large batches* (nobody serves their queue)."
        ),
        "Are producers sent away?": "*Refused batches*, by reason: [what to do](runbook:IceDBFrontendRefusing).",
        "Are rows set aside?": "*Quarantined batches*: [send them again](runbook:send-quarantined-batches-again).",
    },
    {
        "Is data late?": pick(
            "Lag against its bound",
            "Age of the oldest staged batch",
            "Staged batches",
            "Staged bytes",
            "Rows made live",
        ),
        "Front ends": pick(
            "Batches at the front ends",
            "Refused batches",
            "Acknowledgement latency",
            "Batches in a staged object",
            "Wait for other batches",
            "Accepted bytes",
            "Bodies in memory",
        ),
        "Flushes": pick(
            "Flush latency",
            "Batches",
            "Batches in a commit",
            "Data files in a commit",
            "Deferred batches",
            "Large batches",
        ),
        "Back-pressure": pick("Back-pressure", "Stretch of flush intervals", "Flushes put off"),
        "Quarantine": pick("Quarantined batches", "Rejected batches", "Bad rows"),
        "Views": pick("View lag", "Commits that views have still to take", "Commits that views refused", "Commits fed"),
    },
)

JANITOR = Board(
    "janitor",
    "Janitor",
    "What is deleted, what is kept and why.",
    {
        "Does dead data go?": "*Tombstoned data files* falls within a grace period after merges pause.",
        "Why is it kept?": (
            "*Objects that wait by guard*: grace, a lease, a tag, a view; `icedb vacuum TABLE --dry-run` names each."
        ),
        "Do deletes fail?": "*Failed deletes* by reason: [what to do](runbook:IceDBFailedDeletes).",
        "Is an erasure late?": "*Age of the oldest erasure*: [what to do](runbook:IceDBErasureLate).",
    },
    {
        "Deletes": pick(
            "Deleted objects",
            "Tombstoned data files",
            "Objects that wait by guard",
            "Failed deletes",
            "Deletes fail for",
            "Vacuum latency",
        ),
        "A person has to look": pick("Orphans that wait", "Lost commits", "Audit failures"),
        "Readers that hold something": pick("Leases", "Oldest leased time", "Held back by the vacuum"),
        "Erasure": pick("Open erasures", "Age of the oldest erasure", "Ended erasures"),
    },
)

SNAPSHOT = Board(
    "snapshot",
    "Snapshots",
    "The service that names the live files of a table.",
    {
        "Do readers get answers?": "*Calls that fail*: [what to do](runbook:IceDBSnapshotsFailing).",
        "Are they slow?": (
            "*Request latency*; mostly from the log and not from memory (*Answers*), and *Log reads* says how "
            "long one takes: [what to do](runbook:IceDBSnapshotsSlow)."
        ),
        "Do readers lose what they read?": "*Leases lost*: [what to do](runbook:IceDBLeasesLost).",
        "Are all figures of tables current?": "*Age of the figures*: [what to do](runbook:IceDBLagExporterStale).",
    },
    {
        "Objective": pick("Snapshot latency: burn rate", "Snapshot latency: budget left"),
        "Calls": pick(
            "Requests",
            "Calls that fail",
            "Calls that are refused",
            "Request latency",
            "Answers",
            "Log reads",
            "Answered bytes",
            "Watchers",
            "Messages to watchers",
        ),
        "Leases": pick("Leases", "Oldest leased time", "Leases lost"),
        "Figures of tables": pick(
            "Age of the figures", "Tables that are watched", "Round of the exporter", "Failures of the exporter"
        ),
    },
)

GATEWAY = Board(
    "gateway",
    "S3 gateway",
    "Tables as a bucket, and as an Iceberg catalog.",
    {
        "Do engines get answers?": "*S3 requests that fail*, by reason: [what to do](runbook:IceDBGatewayFailing).",
        "Are they slow?": "*S3 time to the first byte*; *Log reads of the gateway*; *Files being sent* at its bound.",
        "Who is refused?": "*Refused signatures*: a wrong key, or a clock that is off.",
        "Does Iceberg see the newest state?": (
            "*Held back from Iceberg* is 1 where it does not; `icedb status TABLE` says why."
        ),
    },
    {
        "Requests": pick(
            "S3 requests",
            "S3 requests that fail",
            "S3 time to the first byte",
            "S3 bytes sent",
            "Files being sent",
            "Refused signatures",
        ),
        "Iceberg": pick(
            "Held back from Iceberg", "Publications for Iceberg", "Time of a publication", "Log reads of the gateway"
        ),
    },
)

BOARDS: tuple[Board, ...] = (OVERVIEW, MERGE_LAG, TABLE, INGEST, JANITOR, SNAPSHOT, GATEWAY)
