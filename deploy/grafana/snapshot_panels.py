"""What dashboards show of the snapshot service: calls, answers, watchers and leases."""

from graphs import Graph, Query, by_table, quantiles, rate

LOST = 'method="RenewLease",code="NOT_FOUND"'

SNAPSHOTS: tuple[Graph, ...] = (
    Graph(
        "Requests",
        "reqps",
        (Query(rate("icedb_snapshot_requests_total", by="method, code"), "{{method}} {{code}}"),),
        "Calls per second by gRPC status.",
    ),
    Graph(
        "Calls that fail",
        "percentunit",
        (Query("max by (method) (icedb:snapshot_failing:ratio_rate5m)", "{{method}}"),),
        "Share of calls that end with UNAVAILABLE, INTERNAL or DEADLINE_EXCEEDED.",
        ("IceDBSnapshotsFailing",),
    ),
    Graph(
        "Request latency",
        "s",
        quantiles("icedb_snapshot_request_duration_seconds", select='method="GetSnapshot"'),
        "Time in the server of GetSnapshot.",
        ("IceDBSnapshotsSlow",),
    ),
    Graph(
        "Answers",
        "ops",
        (Query(rate("icedb_snapshot_answers_total", by="source"), "{{source}}"),),
        "From memory, within the caller's staleness, or after a read of the log.",
    ),
    Graph(
        "Calls that are refused",
        "percentunit",
        (Query("max by (method) (icedb:snapshot_refused:ratio_rate10m)", "{{method}}"),),
        "Share of calls that end with RESOURCE_EXHAUSTED: a limit is reached.",
        ("IceDBSnapshotsRefused",),
    ),
    Graph(
        "Watchers",
        "short",
        (
            Query("sum(icedb_snapshot_watchers)", "watchers"),
            Query("sum(icedb_snapshot_watched_tables)", "watched tables"),
        ),
        "Streams of WatchSnapshots of all replicas, and the tables whose logs are listed for them.",
    ),
    Graph(
        "Log reads",
        "s",
        quantiles("icedb_snapshot_refresh_duration_seconds"),
        "Time to read and fold a table's log, when what is in memory is too old for the caller.",
    ),
    Graph(
        "Answered bytes",
        "Bps",
        (Query(rate("icedb_snapshot_answer_bytes_total"), "answers"),),
        "Bytes of all answers per second.",
    ),
    Graph(
        "Messages to watchers",
        "ops",
        (Query(rate("icedb_snapshot_events_total"), "messages"),),
        "Sent per second, all watchers together.",
    ),
)

LEASES: tuple[Graph, ...] = (
    Graph(
        "Leases",
        "short",
        (Query(by_table("max", "icedb_table_leases")),),
        "Readers that hold a table. `icedb status` and `icedb vacuum --dry-run` name them.",
    ),
    Graph(
        "Oldest leased time",
        "s",
        (Query(by_table("max", "icedb_table_oldest_lease_seconds")),),
        "How far back readers hold a table: what died since cannot be deleted.",
        ("IceDBLeaseHeldLong",),
    ),
    Graph(
        "Leases lost",
        "short",
        (Query(f"sum(increase(icedb_snapshot_requests_total{{{LOST}}}[30m]))", "renewed too late"),),
        "Renewals within 30 minutes that came after the end: what these readers read may be gone.",
        ("IceDBLeasesLost",),
    ),
)

EXPORTER: tuple[Graph, ...] = (
    Graph(
        "Tables that are watched",
        "short",
        (Query("max(icedb_snapshot_exporter_tables)", "tables"),),
        "Tables whose figures the exporter read in its last round.",
    ),
    Graph(
        "Round of the exporter",
        "s",
        quantiles("icedb_snapshot_exporter_round_duration_seconds"),
        "Time to read the figures of all tables.",
    ),
    Graph(
        "Failures of the exporter",
        "ops",
        (Query(rate("icedb_snapshot_exporter_failures_total", by="what"), "{{what}}"),),
        "Per second, by what could not be read; halted: a table that a person has to look at.",
        runbook=("IceDBLagExporterStale",),
    ),
)
