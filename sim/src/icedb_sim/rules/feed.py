"""How the rules of views and of followers are switched off."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, played_by

VIEW_RULES: Final = played_by(
    "feeders:2",
    breaks(
        "V1",
        "a feed names only what it has taken itself",
        edit("feed.feeds:_FeedRun._names_taken", ("*(name for name in state.names if name in present), ", "")),
    ),
    breaks(
        "V1",
        "a merge does not carry what the view has taken",
        edit("merge.merge_log:build_merge_log", ("newest_feed(file.log.feed for file in involved)", "None")),
    ),
    breaks(
        "V2",
        "the source is listed before the fence is taken",
        edit(
            "feed.feeds:feed_view",
            (
                "    with AppendCommit(view) as commit:",
                code(
                    "    from dataclasses import replace",
                    "    from types import SimpleNamespace as _Fixed",
                    "    source = replace(source, reader=_Fixed(heads=_Fixed(read=lambda: seen)))",
                    "    with AppendCommit(view) as commit:",
                ),
            ),
        ),
    ),
    breaks(
        "V4",
        "the janitor does not ask for views",
        edit("clean.vacuum:vacuum_table", ("wanted_logs=wanted", "wanted_logs=()")),
    ),
    breaks(
        "V5",
        "reasons that are not written down are forgotten by the next feed",
        edit(
            "feed.feeds:_FeedRun.feed",
            ("self._record_refusals(state, find_unrecorded(self.view, state))", "pass"),
        ),
    ),
)

FOLLOWER_RULES: Final = played_by(
    "outsiders:2",
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
