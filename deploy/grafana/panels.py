"""What the dashboard of merge lag shows: its rows, graphs and queries.

Owns the PromQL. `dashboards.py` turns it into Grafana's JSON; `deploy/tests` and `tests/integration` check every metric
name against the services' registries and run every query on a real Prometheus.
"""

from gateway_panels import GATEWAY
from graphs import Graph, Query, by_table, quantiles, rate, troubled_runs
from ingest_panels import FRONT_ENDS, INGEST, QUARANTINE
from snapshot_panels import SNAPSHOTS

WRITE_AMPLIFICATION = (
    'sum(increase(icedb_merge_bytes_total{direction="out"}[1h])) / sum(increase(icedb_ingest_written_bytes_total[1h]))'
)


HELD = 'max by (table, guard) (icedb_janitor_waiting_objects{table=~"$table"})'

FAILING = 'icedb_janitor_failing_since_timestamp_seconds{table=~"$table"}'

ROWS: dict[str, tuple[Graph, ...]] = {
    "Merge lag": (
        Graph(
            "Merge lag",
            "s",
            (Query(by_table("max", "icedb_table_merge_lag_seconds")),),
            "Age of the oldest data file that a merge should have taken and has not. Read from the log, so it keeps "
            "rising when the merger is dead.",
            ("IceDBMergeLagHigh", "IceDBMergeLagCritical"),
        ),
        Graph(
            "Data files that wait for a merge",
            "short",
            (Query(by_table("max", "icedb_table_merge_lag_files")),),
            "How many live data files the next merges should take.",
        ),
        Graph(
            "Bytes that wait for a merge",
            "bytes",
            (Query(by_table("max", "icedb_table_merge_lag_bytes")),),
            "Size of those files: the work ahead of the merger.",
        ),
    ),
    "Tables": (
        Graph(
            "Live data files",
            "short",
            (Query(by_table("max", "icedb_table_data_files")),),
            "What a query opens at most. A saw-tooth is healthy: appends raise it, merges lower it.",
        ),
        Graph(
            "Log files",
            "short",
            (Query(by_table("max", "icedb_table_log_files")),),
            "Objects below `_log`. Existing readers list one page of 1,000 and miss what lies beyond it.",
            ("IceDBLogFilesHigh", "IceDBLogFilesCritical"),
        ),
        Graph(
            "Halted tables",
            "short",
            (Query(by_table("max", "icedb_table_halted")),),
            "1: the log of this table cannot be trusted or its schema conflicts; nothing is written to it.",
            ("IceDBTableHalted",),
        ),
        Graph(
            "Live bytes",
            "bytes",
            (Query(by_table("max", "icedb_table_live_bytes")),),
            "Size of the live data files.",
        ),
        Graph(
            "Live rows",
            "short",
            (Query(by_table("max", "icedb_table_live_rows")),),
            "Rows in the live data files: merges never change it.",
        ),
        Graph(
            "Time since the last commit",
            "s",
            (Query(f"time() - {by_table('max', 'icedb_table_last_commit_timestamp_seconds')}"),),
            "Since an append or a merge last landed.",
        ),
    ),
    "Merges": (
        Graph(
            "Commits",
            "ops",
            (Query(rate("icedb_ingest_commits_total"), "ingest"), Query(rate("icedb_merge_commits_total"), "merge")),
            "Log files committed per second: each one is an object below `_log` until it is folded and vacuumed.",
        ),
        Graph(
            "Merge throughput",
            "Bps",
            (Query(rate("icedb_merge_bytes_total", by="direction"), "{{direction}}"),),
            "Bytes of data files that merges read (in) and wrote (out) per second.",
        ),
        Graph(
            "Write amplification",
            "short",
            (Query(WRITE_AMPLIFICATION, "rewritten / ingested"),),
            "Bytes that merges wrote for each byte that ingest wrote, over the last hour.",
        ),
        Graph(
            "Merged data files",
            "ops",
            (Query(rate("icedb_merge_files_total", by="direction"), "{{direction}}"),),
            "Data files merged (in) and made (out) per second; in above out is what shrinks a table's file count.",
        ),
        Graph(
            "Folded log files",
            "ops",
            (Query(rate("icedb_merge_folded_log_files_total"), "folded"),),
            "Log files that a merge replaced, per second. Falls below the commits: the log grows.",
        ),
        Graph(
            "Merge latency",
            "s",
            quantiles("icedb_merge_run_duration_seconds", select='task="icedb.merge.merge"'),
            "Time of one merge run of a table, all of its commits.",
        ),
    ),
    "Back-pressure": (
        Graph(
            "Back-pressure",
            "short",
            (Query(by_table("max", "icedb_table_pressure_level")),),
            "0: none. 1: commits come less often. 2: front ends refuse batches, too. Read from the log.",
            ("IceDBPressureStop",),
        ),
        Graph(
            "Stretch of flush intervals",
            "short",
            (Query(by_table("max", "icedb_table_pressure_stretch")),),
            "How many times longer than its flush interval a table waits for a commit. A little above 1 is normal for "
            "a table that always has something to commit.",
            ("IceDBPressureSlow",),
        ),
        Graph(
            "Flushes put off",
            "ops",
            (Query(rate("icedb_ingest_put_off_total", by="reason"), "{{reason}}"),),
            "Flush runs that left batches staged, per second: the next commit was not due (interval), or the log had "
            "no room for one (log_full).",
        ),
    ),
    "Front ends": FRONT_ENDS,
    "Ingest": INGEST,
    "Quarantine": QUARANTINE,
    "Vacuum": (
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
            ("IceDBFailedDeletes", "IceDBDeletesDenied"),
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
                    'sum by (guard) (max by (table, guard) (icedb_janitor_waiting_orphan_files{table=~"$table"}))',
                    "{{guard}}",
                ),
                Query(f"sum({by_table('max', 'icedb_janitor_unknown_objects')})", "unknown objects"),
            ),
            "Unnamed data files that are too young, were found for the first time, or are too large a share of their "
            "table; and objects of no known kind, which are kept.",
            ("IceDBOrphansHeld", "IceDBUnknownObjects"),
        ),
        Graph(
            "Lost commits",
            "short",
            (
                Query(f"sum({by_table('max', 'icedb_table_lost_commits')})", "proved by fences and log"),
                Query(f"sum({by_table('max', 'icedb_janitor_lost_commits')})", "written down, and not decided"),
            ),
            "Commits that landed and whose log files are gone: rows are missing. `icedb fsck` names them.",
            ("IceDBCommitLost",),
        ),
        Graph(
            "Audit failures",
            "ops",
            (Query(rate("icedb_janitor_audit_failures_total", by="step"), "{{step}}"),),
            "Audit objects that could not be written. Without an announcement nothing is deleted.",
            ("IceDBAuditFailing",),
        ),
    ),
    "Erasure": (
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
        ),
        Graph(
            "Ended erasures",
            "ops",
            (Query(rate("icedb_merge_erasures_total", by="state"), "{{state}}"),),
            "Certificates and refusals per second.",
        ),
    ),
    "Views": (
        Graph(
            "View lag",
            "s",
            (Query(by_table("max", "icedb_table_view_lag_seconds")),),
            "How long the oldest commit of its source that a view has still to take has waited.",
            alerts=("IceDBViewLagHigh",),
        ),
        Graph(
            "Commits that views have still to take",
            "short",
            (Query(by_table("max", "icedb_table_view_waiting_commits")),),
            "Their log files stay in the source until then: a view that never catches up slows its source down.",
        ),
        Graph(
            "Commits that views refused",
            "short",
            (Query(by_table("max", "icedb_table_view_refused_commits")),),
            "Since ever. Their rows are missing in the view; the reasons lie below its _icedb/refused/.",
        ),
        Graph(
            "Commits fed",
            "ops",
            (Query(rate("icedb_ingest_feed_commits_total", by="outcome"), "{{outcome}}"),),
            "Commits of their sources that views took or refused, per second.",
        ),
    ),
    "Snapshots": SNAPSHOTS,
    "S3 gateway": GATEWAY,
    "Clocks": (
        Graph(
            "Clock skew",
            "s",
            (Query("max by (job, instance) (abs(icedb_clock_skew_seconds))", "{{job}} {{instance}}"),),
            "How far the clock of each service's host is from the store's, in either direction.",
        ),
        Graph(
            "Clock jumps",
            "short",
            (
                Query(
                    "sum by (job, direction) (increase(icedb_clock_jumps_total[$__rate_interval]))",
                    "{{job}} {{direction}}",
                ),
            ),
            "Times that the wall clock of a service's host was set by half a second or more.",
        ),
        Graph(
            "Held back by the vacuum",
            "s",
            (Query(by_table("max", "icedb_janitor_clock_held_back_seconds")),),
            "How far the store's clock ran ahead of what can have passed; ages are measured without it.",
            alerts=("IceDBStoreClockJumped",),
        ),
    ),
    "Services": (
        Graph(
            "Runs that did not end well",
            "ops",
            (troubled_runs("ingest"), troubled_runs("merge"), troubled_runs("janitor")),
            "Runs per second by task and outcome, without those that did their work, found none, or left it to the "
            "worker that holds the lock.",
        ),
        Graph(
            "Replicas that answer",
            "short",
            (Query('sum by (job) (up{job=~"ingest|merger|janitor|snapshot|gateway"})', "{{job}}"),),
            "Replicas that Prometheus can scrape.",
        ),
        Graph(
            "Age of the figures",
            "s",
            (Query("time() - max(icedb_snapshot_exporter_last_success_timestamp_seconds)", "exporter"),),
            "Since the exporter last read every table: how old the table figures above may be.",
            ("IceDBLagExporterStale",),
        ),
    ),
}
