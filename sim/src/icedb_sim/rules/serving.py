"""How the rules of served answers are switched off. Their schedules have servers."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, keeps, played_by

_READ: Final = "serving.table_cache:CachedTable.read"
_READ_NOW: Final = "serving.table_cache:CachedTable._read_now"

SERVING_RULES: Final = played_by(
    "servers:2",
    breaks(
        "R4",
        "who comes during a read gets its answer",
        edit(_READ, ("needed = self._begun + 1", "needed = self._begun + (not self._is_reading)")),
    ),
    breaks(
        "R4",
        "a state is as old as the end of its read",
        edit(
            _READ_NOW,
            ("started_ms, self._past)", "self._clock.monotonic_ms(), self._past)"),
        ),
    ),
    breaks(
        "R4",
        "a state that is too old is served",
        edit(_READ, ("arrived_ms - state.started_ms <= max_staleness_ms > 0", "max_staleness_ms > 0")),
    ),
    breaks(
        "S1",
        "a log file that went is taken for one that is still there",
        edit(
            "log.compact_fold:fold_compact",
            ("is_growth = len(markers) - len(fresh) == len(known.numbers)", "is_growth = True"),
        ),
    ),
    breaks(
        "S1",
        "a new file is live although a tombstone of it is there",
        edit("log.compact_fold:_grow", ("index in each.dead or path.decode() in tombstoned_ms", "index in each.dead")),
    ),
    breaks(
        "S1",
        "files that died stay live in a fold of what is new",
        edit(
            "log.compact_fold:_grow",
            ("removed = [each.path(index) for each in fresh for index in each.dead]", "removed = []"),
        ),
    ),
    keeps(
        "R3",
        "a time is folded from that of a later one",
        edit("serving.table_cache:PastFolds._nearest", ("if time_ms <= as_of_ms]", "]")),
    ),
    keeps(
        "R3",
        "folds of the past outlive their log files",
        edit(_READ_NOW, ("if last is not None and _versions(last.view) - _versions(view):", "if False:")),
    ),
    breaks(
        "R5",
        "a batch is looked for after the log was read",
        edit(
            "serving.commit_wait:await_commit",
            (
                "        found = look_for_batch(store, paths, batch_id)\n        state = read()\n",
                "        state = read()\n        found = look_for_batch(store, paths, batch_id)\n",
            ),
        ),
    ),
    breaks(
        "R5",
        "any batch that is not staged counts as committed",
        edit(
            "serving.batch_commits:refuse_if_lost",
            ("    table = state.config.name\n", "    return\n    table = state.config.name\n"),
        ),
    ),
    breaks(
        "R6",
        "changes leave out what is in a chunk that looks the same",
        edit(
            "log.live_files:LiveChunk.is_same",
            ("self.digest, len(self), self.size_bytes, self.row_count, self.first", "self.first"),
            ("(other.digest, len(other), other.size_bytes, other.row_count, other.first)", "other.first"),
        ),
    ),
)
