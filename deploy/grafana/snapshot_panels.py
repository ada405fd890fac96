"""What the dashboard shows of the snapshot service: calls, answers, watchers and leases."""

from graphs import Graph, Query, by_table, quantiles, rate

FAILED = 'code=~"UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED",method!~"Check|WatchSnapshots"'
EXHAUSTED = 'code="RESOURCE_EXHAUSTED"'
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
        (
            Query(
                f"{rate('icedb_snapshot_requests_total', by='method', select=FAILED)} / "
                + rate("icedb_snapshot_requests_total", by="method"),
                "{{method}}",
            ),
        ),
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
        (
            Query(
                f"{rate('icedb_snapshot_requests_total', by='method', select=EXHAUSTED)} / "
                + rate("icedb_snapshot_requests_total", by="method"),
                "{{method}}",
            ),
        ),
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
        "Held back from Iceberg",
        "short",
        (Query(by_table("max", "icedb_table_iceberg_held_back")),),
        "1: engines that speak Iceberg are shown an older state than the newest, or none. `icedb status` says why.",
    ),
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
