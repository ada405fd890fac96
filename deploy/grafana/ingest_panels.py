"""What dashboards show of ingest: front ends, flushes, and batches that wait in quarantine."""

from graphs import Graph, Query, by_table, quantiles, rate

_SHARED = "icedb_frontend_staged_object_batches"

FRONT_ENDS: tuple[Graph, ...] = (
    Graph(
        "Batches at the front ends",
        "ops",
        (Query(rate("icedb_frontend_batches_total", by="door, outcome"), "{{door}} {{outcome}}"),),
        "Batches offered per second, by door and by what became of them.",
    ),
    Graph(
        "Acknowledgement latency",
        "s",
        quantiles("icedb_frontend_ack_seconds"),
        "Time from a whole batch to its acknowledgement: it is durable then.",
    ),
    Graph(
        "Refused batches",
        "percentunit",
        (Query("max by (outcome) (icedb:frontend_refused:ratio_rate5m)", "{{outcome}}"),),
        "Share of all batches that front ends could not take although nothing was wrong with them: back-pressure "
        "(overloaded), a full process (busy), the store (unavailable), a bug (failed).",
        ("IceDBFrontendRefusing",),
    ),
    Graph(
        "Batches in a staged object",
        "short",
        (
            Query(f"{rate(f'{_SHARED}_sum')} / {rate(f'{_SHARED}_count')}", "mean"),
            *quantiles(_SHARED),
        ),
        "How many batches share one PUT. Near 1 with many senders, requests are most of what batches cost: a longer "
        "`ICEDB_FRONTEND_LINGER_MS` makes fewer.",
    ),
    Graph(
        "Wait for other batches",
        "s",
        quantiles("icedb_frontend_linger_seconds"),
        "How long batches wait for others of their table, or for a PUT to end, before their own begins: the part of "
        "the acknowledgement latency that the linger time is.",
    ),
    Graph(
        "Accepted bytes",
        "Bps",
        (Query(rate("icedb_frontend_accepted_bytes_total", by="door"), "{{door}}"),),
        "Bytes of accepted batches per second, as they were sent.",
    ),
    Graph(
        "Bodies in memory",
        "bytes",
        (Query("sum(icedb_frontend_held_bytes)", "held"),),
        "What requests hold while they are read and staged; bounded by a setting of the front end.",
    ),
)

INGEST: tuple[Graph, ...] = (
    Graph(
        "Rows made live",
        "rowsps",
        (Query(rate("icedb_ingest_rows_total"), "rows"),),
        "Rows committed per second.",
    ),
    Graph(
        "Flush latency",
        "s",
        quantiles("icedb_ingest_flush_duration_seconds"),
        "Time of one commit: from staged batches to the log file that names their rows.",
    ),
    Graph(
        "Batches",
        "ops",
        (Query(rate("icedb_ingest_batches_total", by="outcome"), "{{outcome}}"),),
        "Batches that left staging per second: committed, rejected (quarantine) or duplicate (a retry).",
    ),
    Graph(
        "Staged batches",
        "short",
        (Query(by_table("max", "icedb_table_staged_batches")),),
        "Accepted batches that are not committed yet.",
        ("IceDBStagedBacklog",),
    ),
    Graph(
        "Staged bytes",
        "bytes",
        (Query(by_table("max", "icedb_table_staged_bytes")),),
        "Their size as they were staged, mostly compressed.",
    ),
    Graph(
        "Age of the oldest staged batch",
        "s",
        (Query(by_table("max", "icedb_table_staged_lag_seconds")),),
        "How far queries lag behind what producers sent.",
        runbook=("IceDBIngestStalled",),
    ),
    Graph(
        "Batches in a commit",
        "short",
        quantiles("icedb_ingest_commit_batches"),
        "Many batches in one log file: what keeps the log short.",
    ),
    Graph(
        "Data files in a commit",
        "short",
        quantiles("icedb_ingest_commit_files"),
        "One for each partition, more for those above the target size.",
    ),
    Graph(
        "Deferred batches",
        "ops",
        (Query(rate("icedb_ingest_deferred_batches_total"), "deferred"),),
        "Batches per second that were parsed and then left to the next commit, because one commit takes only so "
        "many partitions.",
    ),
    Graph(
        "Large batches",
        "ops",
        (Query(rate("icedb_ingest_large_batches_total", by="outcome"), "{{outcome}}"),),
        "Per second; flushed_here: nobody serves their own queue, and all tables wait meanwhile.",
        runbook=("IceDBLargeBatchesUnserved",),
    ),
)

QUARANTINE: tuple[Graph, ...] = (
    Graph(
        "Quarantined batches",
        "short",
        (
            Query(by_table("max", "icedb_table_quarantined_batches")),
            Query(by_table("max", "icedb_table_bad_row_batches"), "{{table}}, bad rows only"),
        ),
        "Batches, or bad rows of committed batches, set aside with a reason, until somebody mends or removes them.",
        runbook=("IceDBQuarantineGrowing",),
    ),
    Graph(
        "Rejected batches",
        "ops",
        (Query(rate("icedb_ingest_batches_total", select='outcome="rejected"'), "rejected"),),
        "Batches per second that went to quarantine whole.",
    ),
    Graph(
        "Bad rows",
        "rowsps",
        (Query(rate("icedb_ingest_bad_rows_total"), "rows"),),
        "Rows per second that went to quarantine while the others of their batches were committed.",
    ),
)
