"""How the rules of commits are switched off: fences, merges, deletions and rewrites, retention."""

from dataclasses import replace
from typing import Any, Final

from icedb_log.table.retention import ExpiredPartition

from icedb_sim.rules.mutations import breaks, code, edit, keeps, played_by
from icedb_sim.rules.switches import answers, around

_DELETE_OUTPUTS: Final = (
    "    committed = self._put(log)",
    code(
        "    try:",
        "        committed = self._put(log)",
        "    except Exception as error:",
        "        if type(error).__name__ in ('CommitConflict', 'Fenced'):",
        "            self.table.store.delete([marker.path for group in merged for marker in group.outputs])",
        "        raise",
    ),
)
_REFUSED_IS_LOST: Final = edit(
    "log.fence:HeldFence.commit",
    ("self._require_landed(key, log, is_key_taken=True)", 'raise Fenced("refused, hence lost") from None'),
)
_UNKNOWN: Final = "    except CommitOutcomeUnknown:\n        self._require_landed(key, log, is_key_taken=False)"

WRITE_RULES: Final = (
    breaks(
        "S1",
        "a merge is named by its own clock alone",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "max([now_ms, *(max(file.log.time_ms, parse_log_key(file.key).time_ms) + 1 for file in involved)])",
                "now_ms",
            ),
        ),
    ),
    breaks(
        "W2",
        "a lost answer is taken for a landed commit",
        edit("log.fence:HeldFence.commit", (_UNKNOWN, "    except CommitOutcomeUnknown:\n        pass")),
    ),
    breaks(
        "W2",
        "a refusal is taken for a landed commit",
        edit("log.fence:HeldFence.commit", ("self._require_landed(key, log, is_key_taken=True)", "pass")),
    ),
    breaks(
        "W2",
        "a lost answer is answered by a second PUT under another name",
        edit(
            "log.fence:HeldFence.commit",
            (
                _UNKNOWN,
                code(
                    "    except CommitOutcomeUnknown:",
                    "        key = self._paths.log_key(",
                    "            time_ms=log.time_ms, commit_id=self._clock.new_id(), is_merged=self._role == 'merge')",
                    "        self._store.put_if_absent(key, encode_log_file(log))",
                ),
            ),
        ),
    ),
    breaks(
        "W2",
        "a refusal is taken for a lost commit, whose outputs are deleted",
        _REFUSED_IS_LOST,
        edit("merge.exchange:ExchangeCommit.land", _DELETE_OUTPUTS),
    ),
    keeps(
        "W2",
        "outputs are deleted when a commit was certainly refused",
        edit("merge.exchange:ExchangeCommit.land", _DELETE_OUTPUTS),
    ),
    keeps("W2", "a refusal is taken for a lost commit, whose outputs stay", _REFUSED_IS_LOST),
    breaks(
        "W3",
        "old work is committed all the same",
        edit("stopwatch:Stopwatch.require_within", ("if elapsed_ms > limit_ms:", "if False:")),
    ),
    breaks(
        "W3",
        "the time is looked at before the intent",
        edit(
            "log.fence:HeldFence.commit",
            (
                "    self._advance(commit=key)\n",
                "    last_check and last_check()\n    last_check = None\n    self._advance(commit=key)\n",
            ),
        ),
    ),
    breaks(
        "F1",
        "the old commit is not sealed",
        edit("log.fence:acquire_fence", ("_settle(store, paths, current.commit)", "False")),
    ),
    breaks(
        "F2",
        "a merge is planned from a log read before the fence",
        edit(
            "table.commit:Commit.__enter__",
            (
                "    self.fence = acquire_fence(",
                "    self._role == 'merge' and self._read_log()\n    self.fence = acquire_fence(",
            ),
            ("        self._read_log()  # F2", "        self._role == 'merge' or self._read_log()  # F2"),
        ),
    ),
    breaks(
        "F2",
        "a flush reads the log before the fence",
        edit(
            "table.commit:Commit.__enter__",
            (
                "    self.fence = acquire_fence(",
                "    self._role == 'ingest' and self._read_log()\n    self.fence = acquire_fence(",
            ),
            ("        self._read_log()  # F2", "        self._role == 'ingest' or self._read_log()  # F2"),
        ),
    ),
    breaks(
        "F3",
        "no intent is written",
        edit("log.fence:HeldFence.commit", ("    self._advance(commit=key)\n", "")),
    ),
    breaks(
        "F3",
        "the intent is written over whatever is there",
        edit(
            "log.fence:write_fence",
            ("store.put_if_match(key, body, etag=etag)", "store.put(key, body)"),
        ),
    ),
    breaks(
        "F4",
        "a seal is merged away like any log file",
        edit("merge.log_index:LogIndex.active_files", ("not file.log.is_seal and ", "")),
        edit("merge.merge_log:build_merge_log", ("and not file.log.is_seal  # F4", "  # F4")),
    ),
)

MERGE_RULES: Final = (
    breaks(
        "M1",
        "live markers of the log files involved are not carried",
        edit("merge.merge_log:_carried_markers", ("[live[path] for path in sorted(live)] + ", "")),
    ),
    breaks(
        "M1",
        "dead markers of the log files involved are not carried",
        edit("merge.merge_log:_carried_markers", (" + [dead[path] for path in sorted(dead)]", "")),
    ),
    breaks(
        "M1",
        "log tombstones of the log files involved are not carried",
        edit(
            "merge.merge_log:_carried_log_tombstones",
            ("for tombstone in file.log.log_tombstones:", "for tombstone in ():"),
        ),
    ),
    breaks(
        "M1",
        "the log files involved get no tombstone",
        edit(
            "merge.merge_log:_carried_log_tombstones",
            ("carried.setdefault(file.key, LogTombstone(file.key, time_ms))", "pass"),
        ),
    ),
    breaks(
        "M1",
        "the inputs get no tombstone",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "for marker in inputs.values()]",
                "for marker in ()]",
            ),
        ),
    ),
    breaks(
        "M1",
        "outputs with columns that the table has not are committed",
        answers("merge.content_check:_find_unknown", []),
    ),
    breaks(
        "S2",
        "a merge forgets what was widened",
        edit("merge.merge_log:build_merge_log", ("        widened=_widened(known),\n", "")),
    ),
    breaks(
        "S2",
        "a merge writes the wider type into its schema line",
        edit(
            "merge.merge_log:build_merge_log",
            ("schema=known.logged,", "schema=known.effective,"),
            ("        widened=_widened(known),\n", ""),
        ),
    ),
    breaks(
        "S2",
        "a merge says of what it carries what it knows of its outputs",
        edit("merge.merge_log:_find_inexact", ("carried=carried", "carried=()")),
    ),
    breaks(
        "S2",
        "a column becomes wider without a look at what merges have committed since",
        edit("table.commit:AppendCommit.land", ("self._require_proven(wider)", "pass")),
    ),
    breaks(
        "S2",
        "a column becomes wider by a commit that the fence of merges does not announce",
        edit("table.commit:AppendCommit.land", (", beside=merging", "")),
    ),
    breaks(
        "S2",
        "a column becomes wider under the fence of ingest alone",
        edit("table.commit:AppendCommit.land", ("if not wider:", "if True:")),
    ),
    keeps(
        "R3",
        "a merge forgets the horizon",
        edit("merge.merge_log:build_merge_log", ("horizon_ms=read_horizon_ms(view) or None", "horizon_ms=None")),
    ),
)

CHANGE_RULES: Final = (
    breaks(
        "M3",
        "a removal carries no other markers of the log files involved",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "    markers += _carried_markers(",
                code(
                    "    is_removal = bool(merged) and not any(group.outputs for group in merged)",
                    "    markers += [] if is_removal else _carried_markers(",
                ),
            ),
        ),
    ),
    breaks(
        "M3",
        "a removal carries live markers only",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "    extra = ",
                code(
                    "    if merged and not any(group.outputs for group in merged):",
                    "        markers = [m for m in markers if m.is_live or m.path in inputs]",
                    "    extra = ",
                ),
            ),
        ),
    ),
    breaks(
        "M3",
        "a data file of which no row is left gets no tombstone",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "for marker in inputs.values()]",
                "for group in merged if group.outputs for marker in group.group.inputs]",
            ),
        ),
    ),
    breaks(
        "M3",
        "a deletion keeps the rows for which the condition holds",
        edit(
            "icedb_sim.simulation.changes:SimRowChanger.keep_rows",
            ("if not test.holds(row)", "if test.holds(row)"),
        ),
        edit("table.row_changes:_require_counted", ("if merged.rows_removed != counted:", "if False:")),
    ),
    breaks(
        "M3",
        "files that are not counted are not rewritten",
        edit(
            "table.row_changes:_RowCounter.find_hits",
            ("    for files in _batched(unknown, MAX_FILES_PER_COUNT):", "    for files in _batched(unknown[:1], 1):"),
        ),
    ),
    breaks(
        "M4",
        "a removal commits what it planned before the fence",
        edit(
            "table.partition_removal:remove_partitions",
            ("chosen = _plan(commit.view, table.paths, choose)", "chosen = planned"),
        ),
    ),
    breaks(
        "M4",
        "a deletion rewrites what it found before the fence",
        edit("table.row_changes:delete_rows", ("hits = counter.find_hits(commit.snapshot)", "hits = hits")),
    ),
    breaks(
        "M4",
        "a removal commits without the fence",
        edit(
            "table.partition_removal:remove_partitions",
            (
                "    with ExchangeCommit(table) as commit:\n",
                code(
                    "    from icedb_log.log.codec import encode_log_file",
                    "    from icedb_log.merge.merge_log import build_merge_log",
                    "    view, paths, clock = table.read_log(), table.paths, table.clock",
                    "    chosen = _plan(view, paths, choose)",
                    "    merged = [_remove(path, markers) for path, markers in chosen.items()]",
                    "    log = build_merge_log(",
                    "        view, merged=merged, folded_log_keys=(), commit_id=clock.new_id(), now_ms=clock.now_ms())",
                    "    key = paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id, is_merged=True)",
                    "    table.store.put_if_absent(key, encode_log_file(log))",
                    "    return _result(chosen)",
                    "    with ExchangeCommit(table) as commit:\n",
                ),
            ),
        ),
    ),
    breaks(
        "M4",
        "changes of rows have a fence of their own",
        edit(
            "table.commit:Commit.__enter__",
            (
                "acquire_fence(self.table, self._role)",
                'acquire_fence(self.table, "ingest" if "changer" in self.table.owner else self._role)',
            ),
        ),
    ),
    breaks(
        "M6",
        "outputs with other values are committed",
        edit("merge.exchange:ExchangeCommit._require_same_contents", ("if found is None:", "if True:")),
    ),
    breaks(
        "M6",
        "a merge that differs is tried again for ever",
        edit("merge.exchange:ExchangeCommit._require_same_contents", ("if self.fence.differed:", "if False:")),
    ),
    breaks(
        "M6",
        "any commit makes a difference forgotten",
        edit(
            "merge.exchange:ExchangeCommit._before_release",
            ("and self.fence.differed not in live - inputs", ""),
        ),
    ),
)


# What fences remember


FENCE_RULES: Final = (
    *played_by(
        "checkers:1",
        breaks(
            "F5",
            "an intent counts as landed",
            edit(
                "log.fence:HeldFence._advance",
                (
                    "commit=commit, sequence=held.sequence + 1",
                    "commit=commit, sequence=held.sequence + 1, landed=add_landed(held.landed, commit or 'none')",
                ),
            ),
        ),
        breaks(
            "F5",
            "what an owner left counts as landed, sealed or not",
            edit("log.fence:acquire_fence", ("if not is_sealed and _has_landed(store, current.commit):", "if True:")),
        ),
        breaks(
            "F5",
            "a commit that lands is not remembered",
            edit("log.fence:HeldFence.commit", ("landed=add_landed(self._state.landed, key)", "landed=()")),
        ),
        breaks(
            "F5",
            "the next table of a name inherits the history",
            edit("log.fence:acquire_fence", ("landed=landed if becomes is None else ()", "landed=landed")),
        ),
    ),
    *played_by(
        "droppers:2",
        breaks(
            "T4",
            "fences do not say which table they belong to",
            edit("log.fence:acquire_fence", ("current.incarnation not in (incarnation, becomes)", "False")),
        ),
    ),
)


# Retention


def _hour_by_its_beginning(original: Any, *args: Any) -> Any:
    found = original(*args)
    return found and replace(found, end_ms=found.start_ms)


def _expired_all_the_same(reason: str) -> Any:
    def judge(original: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
        judged = original(info, *args, **kwargs)
        return ExpiredPartition(info, judged.until_ms or 0) if getattr(judged, "reason", "") == reason else judged

    return around("table.retention:_judge", judge)


def _ask_host(original: Any, infos: Any, config: Any, *, store_now_ms: int, host_now_ms: int) -> Any:
    del store_now_ms
    return original(infos, config, store_now_ms=host_now_ms, host_now_ms=host_now_ms)


def _believe_store(original: Any, infos: Any, config: Any, *, store_now_ms: int, host_now_ms: int) -> Any:
    del host_now_ms
    return original(infos, config, store_now_ms=store_now_ms, host_now_ms=store_now_ms)


RETENTION_RULES: Final = played_by(
    "retainers:2",
    breaks(
        "M5",
        "an hour goes when its beginning is old enough",
        around("table.retention:parse_time_range", _hour_by_its_beginning),
    ),
    breaks("M5", "what is no time goes, too", _expired_all_the_same("unparsable")),
    breaks("M5", "rows that came just now go", _expired_all_the_same("late")),
    breaks("M5", "the host's clock decides", around("table.retention:plan_retention", _ask_host)),
    breaks("M5", "clocks that are hours apart are believed", around("table.retention:plan_retention", _believe_store)),
    breaks("M5", "more than half of the table goes unasked", answers("table.retention:require_allowed", None)),
    breaks(
        "M5",
        "the policy is read before the fence is taken",
        edit(
            "table.retain:retain_table",
            ("        config = table.renewed().config\n", ""),
            (
                "    plans: list[RetentionPlan] = []\n",
                "    plans: list[RetentionPlan] = []\n    config = table.renewed().config\n",
            ),
        ),
    ),
)
