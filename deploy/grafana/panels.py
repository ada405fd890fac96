"""What dashboards show of tables, merges, back-pressure, views, services and clocks; and every panel by its title.

Owns the PromQL, with the modules beside it. `boards.py` says which panel stands on which dashboard.
"""

from gateway_panels import GATEWAY, ICEBERG
from graphs import BOUND, SELECT, Graph, Query, bound, by_table, level, quantiles, rate, share, troubled_runs
from icedb_log.ingest.pressure import BACKLOG_FILES, LOG_FILES
from ingest_panels import FRONT_ENDS, INGEST, QUARANTINE
from janitor_panels import ERASURE, VACUUM
from snapshot_panels import EXPORTER, LEASES, SNAPSHOTS

OURS = 'job=~"ingest|ingest-large|merger|janitor|snapshot|frontend|enqueue|gateway|console"'
FIRING = 'ALERTS{alertname=~"IceDB.*",alertstate="firing"}'
LAG, LAG_BOUND = "icedb:table_lag_seconds:max", "icedb:table_lag_seconds:bound"

NOW: tuple[Graph, ...] = (
    Graph(
        "Alerts that fire",
        "short",
        (Query(f"count({FIRING}) or vector(0)", "alerts"),),
        "The list below names them.",
        red_from=1,
        kind="stat",
    ),
    Graph(
        "Tables that are late",
        "short",
        (Query(f"sum({by_table('max', 'icedb:table_late:bool')})", "tables"),),
        "Tables whose oldest accepted batch, or whose oldest commit that a view has to take, has waited for longer "
        "than a fifth of the table's log grace period: two minutes by default.",
        runbook=("IceDBFreshnessBurnsFast", "IceDBIngestStalled"),
        red_from=1,
        kind="stat",
    ),
    Graph(
        "Latest table",
        "s",
        (Query(f"topk(1, {by_table('max', LAG)})"),),
        "The table whose oldest accepted batch has waited longest, and how long.",
        kind="stat",
    ),
    Graph(
        "Losses",
        "short",
        (Query("max(icedb:lost:sum)", "lost"),),
        "Commits whose log files are gone, and live files that readers did not find in the last 15 minutes. The "
        "objective is 0.",
        runbook=("IceDBCommitLost", "IceDBGatewayFileMissing"),
        red_from=1,
        kind="stat",
    ),
    Graph(
        "Tables that are halted",
        "short",
        (Query(f"sum({by_table('max', 'icedb_table_halted')})", "tables"),),
        "Nothing is written to them until a person has looked.",
        ("IceDBTableHalted",),
        kind="stat",
    ),
    Graph(
        "Services that are down",
        "short",
        (Query(f"count(max by (job) (up{{{OURS}}}) == 0) or vector(0)", "services"),),
        "Services of which no replica answers Prometheus.",
        runbook=("IceDBWorkerDown", "IceDBFrontendDown", "IceDBLagExporterDown"),
        red_from=1,
        kind="stat",
    ),
)

ALERTS = Graph(
    "What fires",
    "short",
    (Query(f"sum by (alertname, severity, table, job) ({FIRING})", "{{alertname}}"),),
    "The runbook has an entry for each.",
    kind="list",
)

OBJECTIVES: tuple[Graph, ...] = (
    Graph(
        "Freshness: burn rate",
        "short",
        (Query(f"{by_table('max', 'icedb:table_late:ratio1h')} / 0.01"),),
        "Share of the last hour in which a table was late, for the one in a hundred that it may be. At 1 the budget "
        "lasts for as long as it should.",
        runbook=("IceDBFreshnessBurnsFast", "IceDBFreshnessBurnsSlowly"),
        red_from=14.4,
    ),
    Graph(
        "Freshness: budget left",
        "percentunit",
        (Query(f"1 - avg_over_time(icedb:table_late:ratio1h{{{SELECT}}}[30d:1h]) / 0.01"),),
        "Of what a table may be late within 30 days.",
        runbook=("IceDBFreshnessBurnsSlowly",),
    ),
    Graph(
        "Snapshot latency: burn rate",
        "short",
        (Query("max(icedb:snapshot_slow:ratio1h) / 0.01", "last hour"),),
        "Share of the calls of GetSnapshot in the last hour that failed or took longer than a second, for the one in a "
        "hundred that may.",
        runbook=("IceDBSnapshotLatencyBurnsFast", "IceDBSnapshotLatencyBurnsSlowly"),
        red_from=14.4,
    ),
    Graph(
        "Snapshot latency: budget left",
        "percentunit",
        (Query("1 - avg_over_time(icedb:snapshot_slow:ratio1h[30d:1h]) / 0.01", "30 days"),),
        "Of the calls that may be slow or fail within 30 days.",
        runbook=("IceDBSnapshotLatencyBurnsSlowly",),
    ),
)

POLICY: tuple[Graph, ...] = (
    Graph(
        "Lag against its bound",
        "percentunit",
        (share(LAG, LAG_BOUND),),
        "How long the oldest batch has waited, as a share of the time from which on the table is late: a fifth of its "
        "log grace period.",
        red_from=1,
    ),
    Graph(
        "Log files against the slow bound",
        "percentunit",
        (share("icedb_table_log_files", LOG_FILES.slow),),
        "From 100 % on the table's commits come less often.",
        runbook=("IceDBPressureSlow",),
        red_from=1,
    ),
    Graph(
        "Backlog against the slow bound",
        "percentunit",
        (share("icedb_table_merge_lag_files", BACKLOG_FILES.slow),),
        "Data files that wait for a merge. From 100 % on the table's commits come less often.",
        runbook=("IceDBPressureSlow",),
        red_from=1,
    ),
)

ONE_TABLE: tuple[Graph, ...] = (
    Graph(
        "Lag and its bound",
        "s",
        (Query(by_table("max", LAG)), bound(LAG_BOUND, "late")),
        "How long the oldest accepted batch, or the oldest commit that a view has to take, has waited.",
        runbook=("IceDBFreshnessBurnsFast", "IceDBIngestStalled"),
    ),
    Graph(
        "Log files and their bounds",
        "short",
        (
            Query(by_table("max", "icedb_table_log_files")),
            level(LOG_FILES.slow, "slow"),
            level(LOG_FILES.stop, "stop"),
        ),
        "At the slow bound commits come less often, at the stop bound front ends refuse batches.",
        runbook=("IceDBPressureSlow", "IceDBPressureStop"),
    ),
    Graph(
        "Backlog and its bounds",
        "short",
        (
            Query(by_table("max", "icedb_table_merge_lag_files")),
            level(BACKLOG_FILES.slow, "slow"),
            level(BACKLOG_FILES.stop, "stop"),
        ),
        "Data files that wait for a merge.",
        runbook=("IceDBPressureSlow", "IceDBPressureStop"),
    ),
    Graph(
        "Erasure and its bound",
        "s",
        (
            Query(by_table("max", "icedb_table_oldest_erasure_seconds")),
            Query(
                f"{by_table('max', 'icedb_table_data_grace_seconds')} + "
                f"{by_table('max', 'icedb_table_orphan_age_seconds')} + 86400",
                f"{{{{table}}}} late{BOUND}",
            ),
        ),
        "Age of the oldest open erasure; late after the grace period, the orphan age and a day for leases together.",
        runbook=("IceDBErasureLate",),
    ),
)

MERGE_LAG: tuple[Graph, ...] = (
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
)

TABLES: tuple[Graph, ...] = (
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
        "Tables whose flushes fail",
        "short",
        (Query(by_table("max", "icedb_table_flushes_failing")),),
        "1: batches for this table are accepted and wait, as no flush of it ends. `icedb status` says why.",
        ("IceDBFlushesFailing",),
    ),
    Graph(
        "Live bytes",
        "bytes",
        (Query(by_table("max", "icedb_table_live_bytes")),),
        "Size of the live data files.",
    ),
    Graph(
        "Cost a day",
        "currencyUSD",
        (Query(by_table("max", "icedb:table_cost_dollars:per_day", by="table, cause"), "{{table}} {{cause}}"),),
        "Dollars that its requests to the store and the bytes that it stores cost a day, at the pace of the last "
        "hour, by what they are for.",
        runbook=("IceDBTableOverBudget",),
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
)

MERGES: tuple[Graph, ...] = (
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
        (Query("max(icedb:merge_write_amplification:ratio1h)", "rewritten / ingested"),),
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
)

PRESSURE: tuple[Graph, ...] = (
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
)

VIEWS: tuple[Graph, ...] = (
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
)

SERVICES: tuple[Graph, ...] = (
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
        (Query(f"sum by (job) (up{{{OURS}}})", "{{job}}"),),
        "Replicas that Prometheus can scrape.",
        runbook=("IceDBWorkerDown", "IceDBFrontendDown"),
    ),
    Graph(
        "Age of the figures",
        "s",
        (Query("time() - max(icedb_snapshot_exporter_last_success_timestamp_seconds)", "exporter"),),
        "Since the exporter last read every table: how old all figures of tables may be.",
        ("IceDBLagExporterStale",),
    ),
    Graph(
        "Requests to the store that fail",
        "reqps",
        (Query(rate("icedb_store_request_failures_total", by="job, reason"), "{{job}} {{reason}}"),),
        "Per second, by service and reason; they are sent again.",
        ("IceDBStoreRequestsFailing",),
    ),
    Graph(
        "Requests to Redis that fail",
        "reqps",
        (Query(rate("icedb_redis_request_failures_total", by="job, use"), "{{job}} {{use}}"),),
        "Per second, by service and use: the queue of wake-ups, or locks, each master by itself.",
        ("IceDBRedisRequestsFailing",),
    ),
    Graph(
        "Callers that are refused",
        "reqps",
        (Query(rate("icedb_access_denied_total", by="job, door, reason"), "{{job}} {{door}} {{reason}}"),),
        "Calls per second without the right credentials or grants.",
        ("IceDBAccessDenied",),
    ),
    Graph(
        "Pages of the console",
        "reqps",
        (Query(rate("icedb_console_requests_total", by="outcome"), "{{outcome}}"),),
        "Requests per second of people who look, by what became of them.",
    ),
    Graph(
        "Queries in the console",
        "ops",
        (Query(rate("icedb_console_queries_total", by="outcome"), "{{outcome}}"),),
        "Per second, by what became of them.",
    ),
)

CLOCKS: tuple[Graph, ...] = (
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
)

PANELS: dict[str, Graph] = {
    graph.title: graph
    for graphs in (
        *(NOW, (ALERTS,), OBJECTIVES, POLICY, ONE_TABLE, MERGE_LAG, TABLES, MERGES, PRESSURE, VIEWS, SERVICES, CLOCKS),
        *(FRONT_ENDS, INGEST, QUARANTINE, VACUUM, ERASURE, SNAPSHOTS, LEASES, EXPORTER, GATEWAY, ICEBERG),
    )
    for graph in graphs
}
"""Every panel by its title: the same panel has the same title on each dashboard."""
