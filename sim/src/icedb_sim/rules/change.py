"""How the rules of deletions, rewrites and removals are switched off."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit

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
            "table.partition_removal:remove_chosen_partitions",
            ("chosen = _plan(session.view, paths, choose)", "chosen = planned"),
        ),
    ),
    breaks(
        "M4",
        "a deletion rewrites what it found before the fence",
        edit("table.row_changes:delete_rows", ("hits = counter.find_hits(session.snapshot)", "hits = hits")),
    ),
    breaks(
        "M4",
        "a removal commits without the fence",
        edit(
            "table.partition_removal:remove_chosen_partitions",
            (
                "    session = MergeSession(\n",
                code(
                    "    from icedb_log.log.codec import encode_log_file",
                    "    from icedb_log.merge.merge_log import build_merge_log",
                    "    view = reader.read()",
                    "    chosen = _plan(view, paths, choose)",
                    "    merged = [_remove(path, markers) for path, markers in chosen.items()]",
                    "    log = build_merge_log(",
                    "        view, merged=merged, folded_log_keys=(), commit_id=clock.new_id(), now_ms=clock.now_ms())",
                    "    key = paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id, is_merged=True)",
                    "    store.put_if_absent(key, encode_log_file(log))",
                    "    return _result(chosen)",
                    "    session = MergeSession(\n",
                ),
            ),
        ),
    ),
    breaks(
        "M4",
        "changes of rows have a fence of their own",
        edit(
            "merge.merge_session:MergeSession.__init__",
            (
                'store, paths, "merge", owner',
                'store, paths, "ingest" if "changer" in owner else "merge", owner',
            ),
        ),
    ),
    breaks(
        "M6",
        "outputs with other values are committed",
        edit("merge.merge_session:MergeSession._require_same_contents", ("if found is None:", "if True:")),
    ),
    breaks(
        "M6",
        "a merge that differs is tried again for ever",
        edit("merge.merge_session:MergeSession._require_same_contents", ("if self._fence.differed:", "if False:")),
    ),
    breaks(
        "M6",
        "any commit makes a difference forgotten",
        edit(
            "merge.merge_session:MergeSession._forget_difference",
            ("and self._fence.differed not in live - inputs", ""),
        ),
    ),
)
