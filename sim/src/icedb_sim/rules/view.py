"""How the rules of views are switched off. Their schedules have feeders."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, played_by

VIEW_RULES: Final = played_by(
    "feeders:2",
    breaks(
        "V1",
        "a feed names only what it has taken itself",
        edit("feed.feeds:_FeedRun._commit", ("*(name for name in state.names if name in present), ", "")),
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
                "    run = _FeedRun(store",
                code(
                    "    from types import SimpleNamespace as _Fixed",
                    "    early = _Fixed(heads=_Fixed(read=lambda: seen))",
                    "    readers = FeedReaders(readers.view, early)",
                    "    run = _FeedRun(store",
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
            ("self._record_refusals(state, find_unrecorded(self.store, self.paths, state))", "pass"),
        ),
    ),
)
