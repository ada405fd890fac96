"""What dashboards show of the janitor: what it deletes, what waits and why, what fails; and of erasures."""

from graphs import Graph, Query, by_table, quantiles, rate

HELD = by_table("max", "icedb:janitor_waiting_objects:max", by="table, guard")
FAILING = by_table("max", "icedb_janitor_failing_since_timestamp_seconds")

VACUUM: tuple[Graph, ...] = (
    Graph(
        "Deleted objects",
        "ops",
        (Query(rate("icedb_janitor_deleted_objects_total", by="kind"), "{{kind}}"),),
        "What the janitor deleted per second.",
    ),
    Graph(
        "Tombstoned data files",
        "short",
        (
            Query(by_table("max", "icedb_table_tombstoned_files"), "{{table}} tombstoned"),
            Query(f"sum by (table) ({HELD})", "{{table}} kept"),
        ),
        "Dead data files that the log still names, and dead objects that a guard keeps. The first should fall "
        "within a grace period after merges pause.",
    ),
    Graph(
        "Objects that wait by guard",
        "short",
        (Query(f"sum by (guard) ({HELD})", "{{guard}}"),),
        "Dead objects that are kept for now, by what keeps them: `icedb vacuum TABLE --dry-run` names them.",
    ),
    Graph(
        "Failed deletes",
        "ops",
        (Query(rate("icedb_janitor_failed_deletes_total", by="kind, reason"), "{{kind}} {{reason}}"),),
        "Deletes that failed, by kind of object and reason; each is tried again in the next round.",
        runbook=("IceDBFailedDeletes", "IceDBDeletesDenied"),
    ),
    Graph(
        "Deletes fail for",
        "s",
        (Query(f"max by (table) ((time() - {FAILING}) * ({FAILING} > bool 0))"),),
        "How long every run over a table has had deletes that failed; 0 while all goes well.",
        ("IceDBDeletesKeepFailing",),
    ),
    Graph(
        "Orphans that wait",
        "short",
        (
            Query(
                f"sum by (guard) ({by_table('max', 'icedb_janitor_waiting_orphan_files', by='table, guard')})",
                "{{guard}}",
            ),
            Query(f"sum({by_table('max', 'icedb_janitor_unknown_objects')})", "unknown objects"),
        ),
        "Unnamed data files that are too young, or too large a share of their table; and objects of no known kind, "
        "which are kept.",
        runbook=("IceDBOrphansHeld", "IceDBUnknownObjects"),
    ),
    Graph(
        "Lost commits",
        "short",
        (
            Query(f"sum({by_table('max', 'icedb_table_lost_commits')})", "proved by fences and log"),
            Query(f"sum({by_table('max', 'icedb_janitor_lost_commits')})", "found by the last vacuum"),
        ),
        "Commits that landed and whose log files are gone: rows are missing. `icedb fsck` names them.",
        ("IceDBCommitLost",),
    ),
    Graph(
        "Audit failures",
        "ops",
        (Query(rate("icedb_janitor_audit_failures_total", by="step"), "{{step}}"),),
        "Audit objects that could not be written. Without an announcement nothing is deleted.",
        runbook=("IceDBAuditFailing",),
    ),
    Graph(
        "Vacuum latency",
        "s",
        quantiles("icedb_janitor_run_duration_seconds", select='task="icedb.janitor.vacuum"'),
        "Time of one vacuum of a table.",
    ),
)

ERASURE: tuple[Graph, ...] = (
    Graph(
        "Open erasures",
        "short",
        (Query(by_table("max", "icedb_table_open_erasures")),),
        "Requests to erase rows for good that are not proved to be done yet.",
    ),
    Graph(
        "Age of the oldest erasure",
        "s",
        (Query(by_table("max", "icedb_table_oldest_erasure_seconds")),),
        "It should end after the grace period, later while a lease holds, and after the orphan age at most.",
        runbook=("IceDBErasureLate",),
    ),
    Graph(
        "Ended erasures",
        "ops",
        (Query(rate("icedb_merge_erasures_total", by="state"), "{{state}}"),),
        "Certificates and refusals per second.",
    ),
)
