"""Which rules are switched off, and how, in the order of ``docs/protocol.md``."""

from typing import Final

from icedb_log.testing.simulation_mutations import Edit, Mutation


def _edit(function: str, *changes: tuple[str, str]) -> Edit:
    return Edit(function, changes)


def _break(rule: str, name: str, *edits: Edit) -> Mutation:
    return Mutation(rule, name, edits)


def _keep(rule: str, name: str, *edits: Edit) -> Mutation:
    return Mutation(rule, name, edits, is_harmless=True)


def _code(*lines: str) -> str:
    return "\n".join(lines)


_DELETE_OUTPUTS: Final = (
    "    committed = fence.commit(log, last_check=within)",
    _code(
        "    try:",
        "        committed = fence.commit(log, last_check=within)",
        "    except Exception as error:",
        "        if type(error).__name__ in ('CommitConflict', 'Fenced'):",
        "            store.delete([marker.path for group in merged for marker in group.outputs])",
        "        raise",
    ),
)
_REFUSED_IS_LOST: Final = _edit(
    "fence:HeldFence.commit",
    ("self._require_landed(key, log, is_key_taken=True)", 'raise Fenced("refused, hence lost") from None'),
)
_UNKNOWN: Final = "    except CommitOutcomeUnknown:\n        self._require_landed(key, log, is_key_taken=False)"

WRITE_RULES: Final = (
    _break(
        "S1",
        "a merge is named by its own clock alone",
        _edit(
            "merge_plan:build_merge_log",
            (
                "max([now_ms, *(max(file.log.time_ms, parse_log_key(file.key).time_ms) + 1 for file in involved)])",
                "now_ms",
            ),
        ),
    ),
    _break(
        "W2",
        "a lost answer is taken for a landed commit",
        _edit("fence:HeldFence.commit", (_UNKNOWN, "    except CommitOutcomeUnknown:\n        pass")),
    ),
    _break(
        "W2",
        "a refusal is taken for a landed commit",
        _edit("fence:HeldFence.commit", ("self._require_landed(key, log, is_key_taken=True)", "pass")),
    ),
    _break(
        "W2",
        "a lost answer is answered by a second PUT under another name",
        _edit(
            "fence:HeldFence.commit",
            (
                _UNKNOWN,
                _code(
                    "    except CommitOutcomeUnknown:",
                    "        key = self._paths.log_key(",
                    "            time_ms=log.time_ms, commit_id=self._clock.new_id(), is_merged=self._role == 'merge')",
                    "        self._store.put_if_absent(key, encode_log_file(log))",
                ),
            ),
        ),
    ),
    _break(
        "W2",
        "a refusal is taken for a lost commit, whose outputs are deleted",
        _REFUSED_IS_LOST,
        _edit("merge:merge_table", _DELETE_OUTPUTS),
    ),
    _keep(
        "W2",
        "outputs are deleted when a commit was certainly refused",
        _edit("merge:merge_table", _DELETE_OUTPUTS),
    ),
    _keep("W2", "a refusal is taken for a lost commit, whose outputs stay", _REFUSED_IS_LOST),
    _break(
        "W3",
        "old work is committed all the same",
        _edit("stopwatch:Stopwatch.require_within", ("if elapsed_ms > limit_ms:", "if False:")),
    ),
    _break(
        "W3",
        "the time is looked at before the intent",
        _edit(
            "fence:HeldFence.commit",
            (
                "    self._advance(commit=key)\n",
                "    last_check and last_check()\n    last_check = None\n    self._advance(commit=key)\n",
            ),
        ),
    ),
    _break(
        "F1",
        "the old commit is not sealed",
        _edit("fence:acquire_fence", ("_settle(store, paths, current.commit)", "pass")),
    ),
    _break(
        "F2",
        "a merge is planned from a log read before the fence",
        _edit(
            "merge:merge_table",
            ("if plan_merge(reader.read(),", "if plan_merge(view := reader.read(),"),
            ("    view = reader.read()  # F2", "    # F2"),
        ),
    ),
    _break(
        "F2",
        "a flush reads the log before the fence",
        _edit(
            "flush:flush_table",
            ("    fence = acquire_fence(", "    view = reader.read()\n    fence = acquire_fence("),
            ("    view = reader.read()  # F2\n", ""),
        ),
    ),
    _break(
        "F3",
        "no intent is written",
        _edit("fence:HeldFence.commit", ("    self._advance(commit=key)\n", "")),
    ),
    _break(
        "F3",
        "the intent is written over whatever is there",
        _edit(
            "fence:write_fence",
            ("store.put_if_match(key, body, etag=etag)", "store.put(key, body)"),
        ),
    ),
    _break(
        "F4",
        "a seal is vacuumed at once",
        _edit("vacuum_plan:_expired_seals", ("file.modified_ms + config.seal_age_ms", "file.modified_ms")),
    ),
    _break(
        "F4",
        "a seal is merged away like any log file",
        _edit("merge_plan:_plan_log_fold", ("and not file.log.is_seal", "")),
        _edit("merge_plan:build_merge_log", ("and not file.log.is_seal  # F4", "  # F4")),
    ),
)

MERGE_RULES: Final = (
    _break(
        "M1",
        "live markers of the log files involved are not carried",
        _edit("merge_plan:_carried_markers", ("[live[path] for path in sorted(named & live.keys() - skipped)] + ", "")),
    ),
    _break(
        "M1",
        "dead markers of the log files involved are not carried",
        _edit("merge_plan:_carried_markers", (" + [dead[path] for path in sorted(dead)]", "")),
    ),
    _break(
        "M1",
        "log tombstones of the log files involved are not carried",
        _edit(
            "merge_plan:_carried_log_tombstones", ("for tombstone in file.log.log_tombstones:", "for tombstone in ():")
        ),
    ),
    _break(
        "M1",
        "the log files involved get no tombstone",
        _edit(
            "merge_plan:_carried_log_tombstones",
            ("carried.setdefault(file.key, LogTombstone(file.key, time_ms))", "pass"),
        ),
    ),
    _break(
        "M1",
        "the inputs get no tombstone",
        _edit(
            "merge_plan:build_merge_log",
            (
                "for marker in inputs.values()]",
                "for marker in ()]",
            ),
        ),
    ),
    _break(
        "S2",
        "a merge forgets what was widened",
        _edit("merge_plan:build_merge_log", ("        widened=_widened(snapshot),\n", "")),
    ),
    _break(
        "S2",
        "a merge writes the wider type into its schema line",
        _edit(
            "merge_plan:build_merge_log",
            ("schema=snapshot.logged_schema,", "schema=snapshot.schema,"),
            ("        widened=_widened(snapshot),\n", ""),
        ),
    ),
    _keep(
        "R3",
        "a merge forgets the horizon",
        _edit("merge_plan:build_merge_log", ("horizon_ms=snapshot.horizon_ms or None", "horizon_ms=None")),
    ),
)

READ_RULES: Final = (
    _break(
        "R1",
        "no second look after a listing of many pages",
        _edit("reader:LogReader._read_once", ("self._list() if listing.page_count > 1 else listing", "listing")),
    ),
    _break(
        "R1",
        "a dead log file behind the listing is overlooked",
        _edit("reader:LogReader._read_once", ("if _misses_a_dead_log_file(current, second):", "if False:")),
    ),
    _break(
        "R1",
        "log files are read without If-Match",
        _edit(
            "reader:LogReader._fetch_one",
            ("self._store.get(info.key, if_match=info.etag)", "self._store.get(info.key)"),
        ),
    ),
    _break(
        "R1",
        "the cache is kept by key alone",
        _edit("reader:_is_current", ("file is not None and file.etag == info.etag", "file is not None")),
    ),
    _break(
        "R2",
        "a slow refresh is taken",
        _edit("reader:LogReader._read_once", ("> self._max_refresh_ms", "> 1 << 60")),
    ),
    _break("R3", "no time is refused", _edit("fold:fold", ("if as_of_ms < horizon_ms:", "if False:"))),
    _break(
        "R3",
        "a strip does not record the horizon",
        _edit(
            "vacuum_plan:strip_log_file",
            (
                "horizon_ms=max([read_horizon_ms(view), log.horizon_ms or 0, *stripped_ms]) or None",
                "horizon_ms=log.horizon_ms",
            ),
        ),
    ),
    _break(
        "R3",
        "the horizon ignores log files that are gone without a strip",
        _edit("fold:read_horizon_ms", ("if tombstone.path not in present", "if False")),
    ),
)

JANITOR_RULES: Final = (
    _break(
        "J1",
        "a tombstone's age is its committer's word",
        _edit("vacuum_plan:_guard", ("expires_ms = died_ms + grace_ms", "expires_ms = tombstoned_ms + grace_ms")),
    ),
    _break(
        "J1",
        "a tombstone's age is its proof of landing alone",
        _edit("vacuum_plan:_guard", ("expires_ms = died_ms + grace_ms", "expires_ms = landed_ms + grace_ms")),
    ),
    _break(
        "J1",
        "a new tombstone claims to have landed when its input was made",
        _edit(
            "merge_plan:build_merge_log",
            ("tombstoned_ms=time_ms, landed_ms=None)", "tombstoned_ms=time_ms, landed_ms=view.store_now_ms)"),
        ),
    ),
    _break(
        "J2",
        "staged copies are not deleted before the log files that know them",
        _edit("vacuum:_delete_log_files", ("    _delete(store, staged, failed)\n", "")),
    ),
    _break(
        "J2",
        "log files go although a staged copy could not be deleted",
        _edit("vacuum:_delete_log_files", ("if len(failed) > before:", "if False:")),
    ),
    _break(
        "J2",
        "data files go although a log file still lists them as live",
        _edit(
            "vacuum:vacuum_table", ("sorted(set(plan.data_paths) - live_paths(remaining))", "sorted(plan.data_paths)")
        ),
        _edit("vacuum_plan:plan_vacuum", ("elif path in still_live:", "elif False:")),
    ),
    _break(
        "J2",
        "data files go although their log file could not be deleted",
        _edit(
            "vacuum:vacuum_table", ("sorted(set(plan.data_paths) - live_paths(remaining))", "sorted(plan.data_paths)")
        ),
    ),
    _keep(
        "J2",
        "markers are stripped of data files that could not be deleted",
        _edit("vacuum:vacuum_table", ("gone=(gone_logs, gone_data)", "gone=(gone_logs, set(deletable))")),
    ),
    _break(
        "J2",
        "tombstones are stripped of log files that could not be deleted",
        _edit(
            "vacuum:vacuum_table", ("gone=(gone_logs, gone_data)", "gone=(gone_logs | set(plan.log_keys), gone_data)")
        ),
    ),
    _break(
        "J3",
        "a strip replaces whatever is there",
        _edit("vacuum:_strip", ("store.put_if_match(file.key, body, etag=file.etag)", "store.put(file.key, body)")),
    ),
    _break("J4", "leases are ignored", _edit("vacuum:vacuum_table", ("leases=leases", "leases=()"))),
    _break(
        "J4",
        "a lease believes the time that a committer gave its tombstones",
        _edit("vacuum_plan:_guard", ("if lease.at_ms < seen_dead_ms", "if lease.at_ms < tombstoned_ms")),
    ),
    _break(
        "J4",
        "leases are read before the log",
        _edit(
            "vacuum:vacuum_table",
            ("    view = reader.read()\n", "    leases = read_leases(store, paths)\n    view = reader.read()\n"),
            ("    leases = read_leases(store, paths)\n    plan", "    plan"),
        ),
    ),
    _break(
        "J5",
        "orphans of any age are deleted",
        _edit("orphans:_old", ("info.modified_ms + config.orphan_age_ms", "info.modified_ms")),
    ),
    _break(
        "J5",
        "the log is read before the data files are listed",
        _edit(
            "orphans:sweep_orphans",
            (
                "    listing = list_all(",
                _code(
                    "    reader = reader or LogReader(store, paths, clock=clock)",
                    "    view = reader.read()",
                    "    listing = list_all(",
                ),
            ),
            ("    view = reader.read()  # J5: after the listing\n", ""),
            ("_unnamed(listing, reader.read())", "_unnamed(listing, view)"),
        ),
    ),
    _break(
        "J5",
        "commits under way are not settled",
        _edit("orphans:sweep_orphans", ("settle_fence(store, paths, role)", "pass")),
    ),
    _break(
        "J5",
        "a data file counts as named only while it is live",
        _edit(
            "orphans:_unnamed", ("for marker in file.log.markers}", "for marker in file.log.markers if marker.is_live}")
        ),
    ),
)

INGEST_RULES: Final = (
    _break(
        "I2",
        "staged batches are deleted before the commit",
        _edit(
            "flush:flush_table",
            (
                "committed_key = fence.commit(",
                "store.delete([batch.key for batch in output.accepted])\n            committed_key = fence.commit(",
            ),
        ),
    ),
    _break(
        "I2",
        "staging is listed before the log is read",
        _edit(
            "flush:flush_table",
            (
                "    view = reader.read()  # F2\n",
                "    staged = list_staged(store, paths, limit=limits.max_batches)\n    view = reader.read()\n",
            ),
            ("    staged = list_staged(store, paths, limit=limits.max_batches)\n    sorted", "    sorted"),
        ),
    ),
    _break(
        "I3", "ids in the log are not looked at", _edit("flush:_sort_out", ("if batch.batch_id in known:", "if False:"))
    ),
    _break(
        "I3",
        "a batch may be staged again at any time",
        _edit("flush:refuse_stale_id", ("if batch.staged_ms >= id_ms + config.retry_window_ms:", "if False:")),
    ),
    _break(
        "I3",
        "an id may lie in the future",
        _edit("flush:refuse_stale_id", ("if id_ms > batch.staged_ms + config.id_skew_ms:", "if False:")),
    ),
)

RULES: Final = (*WRITE_RULES, *MERGE_RULES, *READ_RULES, *JANITOR_RULES, *INGEST_RULES)
