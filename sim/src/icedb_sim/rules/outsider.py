"""How the rules of appends and followers are switched off. Their schedules have outsiders."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, played_by

OUTSIDER_RULES: Final = played_by(
    "outsiders:2",
    breaks(
        "A1",
        "the log is read before the fence is taken",
        edit(
            "ingest.append:_AppendRun.commit_once",
            ("    fence = acquire_fence(", "    early = reader.heads.read()\n    fence = acquire_fence("),
            ("view = reader.heads.read()  # F2", "view = early"),
        ),
    ),
    breaks(
        "A2",
        "a commit under the same id is not looked for",
        edit(
            "ingest.append:_AppendRun.commit_once",
            (
                "is_duplicate = any(self._job.batch_id in file.log.batch_ids for file in view.files)",
                "is_duplicate = False",
            ),
        ),
    ),
    breaks(
        "A2",
        "an id may be of any age",
        edit(
            "ingest.append:_AppendRun._require_young_id", ("if now_ms >= id_ms + config.retry_window_ms:", "if False:")
        ),
    ),
    breaks(
        "A3",
        "files may be of any age",
        edit("ingest.append:_AppendRun._require_young_files", ("if age_ms > config.orphan_age_ms // 2:", "if False:")),
    ),
    breaks(
        "L1",
        "a position names only what it has taken itself",
        edit(
            "feed.follower:Follower.look",
            ("*(name for name in start.taken if name in present), ", ""),
        ),
    ),
    breaks(
        "L2",
        "a position never grows too old",
        edit(
            "feed.follower:Follower._require_unbroken",
            ("if not is_leased and now_ms", "if False and now_ms"),
        ),
    ),
    breaks(
        "L2",
        "a lease that has ended counts",
        edit(
            "feed.follower:Follower._require_unbroken",
            (
                "is_leased = lease is not None and now_ms < lease.expires_ms",
                "is_leased = start.lease_id is not None",
            ),
        ),
    ),
    breaks(
        "L3",
        "the first state is whatever is live when its next piece is read",
        edit(
            "feed.follower:Follower._read_state",
            (
                "    return _fold_some(view, names)",
                "    return tuple(fold(view).live)",
            ),
            ("    if missing:", "    if False:"),
        ),
    ),
)
