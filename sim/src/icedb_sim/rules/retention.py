"""How the rules of retention are switched off. Their schedules have retainers."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, played_by

_PLAN: Final = "table.retention:plan_retention"
_JUDGE: Final = "table.retention:_judge"

RETENTION_RULES: Final = played_by(
    "retainers:2",
    breaks(
        "M5",
        "an hour goes when its beginning is old enough",
        edit(
            _JUDGE, ("expires_ms = time_range.end_ms + retention_ms", "expires_ms = time_range.start_ms + retention_ms")
        ),
    ),
    breaks(
        "M5",
        "what is no time goes, too",
        edit(_JUDGE, ('return KeptPartition(info, "unparsable", None)', "return ExpiredPartition(info, 0)")),
    ),
    breaks(
        "M5",
        "rows that came just now go",
        edit(_JUDGE, ("if settled_ms > now_ms and", "if False and")),
    ),
    breaks(
        "M5",
        "the host's clock decides",
        edit(
            _PLAN,
            ("difference_ms = abs(store_now_ms - host_now_ms)", "difference_ms, store_now_ms = 0, host_now_ms"),
        ),
    ),
    breaks(
        "M5",
        "clocks that are hours apart are believed",
        edit(_PLAN, ("if difference_ms > MAX_CLOCK_DIFFERENCE_MS:", "if False:")),
    ),
    breaks(
        "M5",
        "more than half of the table goes unasked",
        edit("table.retention:require_allowed", ("if plan.refusal:", "if False:")),
    ),
    breaks(
        "M5",
        "the policy is read before the fence is taken",
        edit(
            "table.retain:retain_table",
            ("        config = read_table_config(store, paths)\n", ""),
            (
                "    plans: list[RetentionPlan] = []\n",
                "    plans: list[RetentionPlan] = []\n    config = read_table_config(store, paths)\n",
            ),
        ),
    ),
)
