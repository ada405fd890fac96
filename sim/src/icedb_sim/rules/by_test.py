"""Which test fails when a rule is switched off that few schedules miss, or none: the one that plays its history.

``python -m icedb_sim.simulation --mutations`` runs these tests, each with its rule switched off
(:mod:`icedb_sim.rules.rules_off`), and so does ``tests/simulation/test_rules_by_test.py``. Every other rule has to
be missed by schedules.
"""

import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

import icedb_log
import orjson
from icedb_log.errors import InvariantViolated

Outcome = Literal["noticed", "passed", "broken"]
"""``noticed``: the test failed; ``passed``: it did not; ``broken``: the edited code does not run."""

OPTION: Final = "--rules-off"
_PLUGIN: Final = "icedb_sim.rules.rules_off"

_TESTS: Final[dict[str, dict[str, str]]] = {
    "libs/icedb_log/tests/test_fsck_lost_commits.py": {
        "an intent counts as landed": "test_f5_an_intent_is_remembered_by_who_takes_over_if_it_is_read_back_as_landed",
        "what an owner left counts as landed, sealed or not": (
            "test_f5_an_intent_that_another_one_sealed_is_not_remembered"
        ),
        "a commit that lands is not remembered": (
            "test_f5_a_commit_is_remembered_when_the_fence_is_written_next_and_no_earlier"
        ),
        "the next table of a name inherits the history": "test_f5_the_next_table_of_a_name_has_a_history_of_its_own",
        "a sweep reads the fences after the log": (
            "test_what_lands_or_is_vacuumed_between_two_reads_is_not_called_lost"
        ),
        "a vacuum does not read the log again before it calls a commit lost": (
            "test_a_commit_that_lands_after_a_vacuum_has_read_the_log_is_not_called_lost"
        ),
        "a vacuum writes no loss down": "test_the_horizon_hides_no_loss_from_the_sweep",
        "a loss is forgotten when the horizon has passed it": "test_a_sweep_remembers_what_the_horizon_has_passed",
        "a rebuild forgets a loss before it has committed": (
            "test_a_rebuild_that_is_cut_off_is_ended_by_the_next_and_forgets_nothing_before"
        ),
        "a rebuild does not believe what a fence says of a lost commit": (
            "test_one_of_seven_log_files_is_lost_and_its_rows_come_back"
        ),
        "a lost merge counts although its inputs were merged again": (
            "test_of_a_lost_merge_whose_inputs_were_merged_again_the_later_one_counts"
        ),
        "a lost flush counts although a later one looks the same": (
            "test_a_lost_flush_with_a_later_twin_is_decided_by_a_person"
        ),
    },
    "libs/icedb_log/tests/test_flush.py": {
        "staging is listed before the log is read": (
            "test_i2_the_log_is_read_before_staging_is_listed_and_after_the_fence"
        ),
    },
    "tests/simulation/test_found_by_simulation.py": {
        "a lease believes the time that a committer gave its tombstones": (
            "test_j4_a_lease_protects_from_tombstones_that_a_slow_clock_dated_back"
        ),
        "a drop that was taken back comes again": "test_t1_a_drop_that_was_taken_back_meanwhile_does_not_come_back",
        "a table stays in the trash for the grace period exactly": (
            "test_t1_files_that_a_reader_was_given_by_who_remembers_the_table_stay_for_their_grace_period"
        ),
        "a name is free as soon as its table is purged": (
            "test_t6_the_name_is_not_free_while_a_flush_of_the_old_table_may_delete_what_is_sent_again"
        ),
    },
    "libs/icedb_log/tests/test_exact_values.py": {
        "a merge says of what it carries what it knows of its outputs": (
            "test_s2_a_merge_that_takes_log_files_along_carries_what_they_say"
        ),
        "a log file that says nothing of its values proves that they are exact": (
            "test_s2_where_an_older_release_said_nothing_data_files_are_looked_at"
        ),
        "what another commit said of its values counts": "test_s2_the_word_of_another_commit_does_not_count",
        "a column becomes wider without a look at what merges have committed since": (
            "test_s2_a_merge_that_makes_long_integers_after_the_proof_keeps_the_column_narrow"
        ),
        "a column becomes wider by a commit that the fence of merges does not announce": (
            "test_s2_a_widening_that_stalls_before_its_put_is_settled_by_the_next_merge"
        ),
        "a column becomes wider under the fence of ingest alone": (
            "test_s2_a_merge_that_is_at_work_loses_its_fence_to_a_widening"
        ),
    },
    "libs/icedb_log/tests/test_merge_log.py": {
        "log tombstones of the log files involved are not carried": (
            "test_m1_log_tombstones_of_involved_log_files_are_carried_and_each_of_them_gets_one"
        ),
    },
    "libs/icedb_log/tests/test_content_check.py": {
        "outputs with columns that the table has not are committed": (
            "test_m1_a_column_of_an_output_that_the_table_has_not_is_a_difference"
        ),
    },
    "libs/icedb_log/tests/test_merge_contents.py": {
        "outputs with other values are committed": (
            "test_m6_the_first_difference_fails_the_run_and_the_second_halts_whoever_runs"
        ),
        "a merge that differs is tried again for ever": (
            "test_m6_the_first_difference_fails_the_run_and_the_second_halts_whoever_runs"
        ),
        "any commit makes a difference forgotten": (
            "test_m6_other_commits_do_not_make_it_forgotten_that_a_merge_differed"
        ),
    },
    "libs/icedb_log/tests/test_reader.py": {
        "log files are read without If-Match": (
            "test_r1_a_log_file_that_is_replaced_between_list_and_get_starts_the_read_again"
        ),
    },
    "libs/icedb_log/tests/test_fold.py": {
        "the horizon ignores log files that are gone without a strip": (
            "test_r3_between_delete_and_strip_the_horizon_follows_from_what_vanished"
        ),
    },
    "libs/icedb_log/tests/test_vacuum_plan.py": {
        "a tombstone's age is its committer's word": "test_j1_a_tombstone_that_landed_late_counts_from_its_landing",
        "a tombstone's age is its proof of landing alone": (
            "test_j1_a_tombstone_of_a_clock_that_is_ahead_counts_from_its_time"
        ),
    },
    "libs/icedb_log/tests/test_id_conflicts.py": {
        "a copy of a refused id goes whatever its content is": (
            "test_i8_other_content_under_a_refused_id_is_kept_beside_it"
        ),
        "what a commit does not tell is taken for the same": (
            "test_i8_what_an_older_release_has_committed_cannot_be_compared_and_is_kept"
        ),
        "what is told of contents counts for any commit": (
            "test_dig_that_a_merge_of_an_older_release_has_carried_counts_for_nothing_and_goes"
        ),
        "an entry of other content is only looked at": (
            "test_j11_a_copy_that_was_accepted_again_makes_its_entry_young"
        ),
        "a copy goes although the janitor drops its entry": (
            "test_i8_a_copy_waits_while_the_janitor_drops_the_entry_of_its_content"
        ),
    },
    "libs/icedb_log/tests/test_vacuum.py": {
        "a vacuum lists staging before it reads the log": "test_j2_staging_is_listed_after_the_log_was_read",
        "a strip replaces whatever is there": (
            "test_j3_a_strip_does_not_bring_back_a_log_file_that_was_merged_and_deleted"
        ),
        "log files go although a batch that they refused is still staged": (
            "test_j2_a_log_file_stays_while_a_batch_that_it_refused_is_still_staged"
        ),
    },
    "libs/icedb_log/tests/test_lease_holding.py": {
        "a lease ends before its time": "test_j4_a_renewal_may_come_in_the_last_moment",
    },
    "libs/icedb_log/tests/test_flush_refusals.py": {
        "the reason of bad rows is written without a look at the fence": (
            "test_i5_a_flush_that_lost_its_fence_says_nothing_of_bad_rows"
        ),
    },
    "libs/icedb_log/tests/test_erasure_faults.py": {
        "what others added to the record after the listing is taken for gone": (
            "test_what_another_worker_finds_after_a_listing_is_not_gone_by_it"
        ),
    },
    "libs/icedb_log/tests/test_erasures.py": {
        "unnamed data objects are not searched in the end": (
            "test_an_orphan_that_appears_after_the_deletion_is_found_by_the_last_look"
        ),
    },
    "libs/icedb_log/tests/test_feed_races.py": {
        "the source is listed before the fence is taken": (
            "test_a_feed_that_slept_since_before_its_fence_forgets_nothing_that_others_took_meanwhile"
        ),
    },
    "libs/icedb_log/tests/test_feeds.py": {
        "reasons that are not written down are forgotten by the next feed": (
            "test_a_refusal_whose_record_was_not_written_is_recorded_by_the_next_feed"
        ),
        "a merge does not carry what the view has taken": "test_what_was_taken_outlives_merges_and_vacuums_of_the_view",
    },
    "libs/icedb_log/tests/test_pin_faults.py": {
        "a pending pin holds nothing": "test_j7_a_pending_pin_holds_everything_cannot_be_read_and_runs_out",
        "a pin is proven by a log that was read before it was there": (
            "test_j7_a_maker_that_sleeps_before_its_pin_is_there_looks_again"
        ),
    },
    "libs/icedb_log/tests/test_append.py": {
        "the log is read before the fence is taken": "test_the_log_is_read_under_the_fence",
        "files may be of any age": "test_files_that_are_too_old_are_not_committed",
    },
    "services/snapshot/tests/test_snapshot_table_cache.py": {
        "a configuration is believed without a look after the log": (
            "test_t5_a_read_that_sleeps_before_its_listing_does_not_serve_what_a_purge_left"
        ),
        "seals alone count as a log": "test_t5_a_purged_table_is_not_an_empty_one_to_who_knows_it_as_empty",
    },
    "libs/icedb_log/tests/test_trash.py": {
        "an undrop leaves no trace": "test_t1_no_state_of_the_table_comes_back",
    },
    "libs/icedb_log/tests/test_purge_races.py": {
        "fences do not say which table they belong to": "test_t4_whoever_commits_sleeps_through_it_all",
        "the janitor goes by the configuration that it read first": (
            "test_t4_the_janitor_never_goes_by_the_grace_periods_of_the_old_table"
        ),
        "a name is free although purgers may still delete": (
            "test_t5_a_batch_that_is_sent_again_into_the_new_table_is_not_deleted_by_a_purge_of_the_old_one"
        ),
    },
    "libs/icedb_log/tests/test_leftovers.py": {
        "an entry whose retry has begun goes": "test_a_retry_that_has_begun_is_left_to_a_person",
        "an entry is taken by looking alone": "test_a_retry_that_begins_meanwhile_stages_the_batch_or_finds_none",
        "an entry goes that was written anew since it was listed": (
            "test_an_entry_that_was_written_anew_since_the_walk_is_young"
        ),
        "an entry of a batch that is staged goes": "test_an_entry_of_a_batch_that_is_staged_again_is_left_alone",
    },
    "libs/icedb_log/tests/test_lease_faults.py": {
        "a lease that was renewed after its end is alive again": (
            "test_j4_a_lease_whose_renewal_failed_and_that_has_ended_is_not_alive_again"
        ),
    },
    "libs/icedb_log/tests/test_pins.py": {
        "a pin is not proven": "test_j7_files_that_died_long_ago_cannot_be_pinned_and_the_error_says_what_can",
    },
    "libs/icedb_log/tests/test_guards.py": {
        "a lease holds what died after it was written, not what died after its time": (
            "test_j4_a_lease_holds_what_died_after_its_time_as_readers_saw_it"
        ),
        "one version too few is kept": "test_j8_versions_count_appends_and_merges_and_no_seals",
    },
    "libs/icedb_log/tests/test_fence_commit.py": {
        "a lost answer is answered by a second PUT under another name": (
            "test_w2_a_lost_answer_of_a_commit_that_landed_is_found_out"
        ),
    },
    "libs/icedb_log/tests/test_retain.py": {
        "the policy is read before the fence is taken": (
            "test_a_retention_that_is_made_longer_while_the_run_waits_for_the_fence_counts"
        ),
    },
    "libs/icedb_log/tests/test_follower.py": {
        "a lease that has ended counts": "test_a_lease_that_ended_is_no_lease",
    },
    "libs/icedb_log/tests/test_partition_removal.py": {
        "a removal commits without the fence": "test_m4_a_removal_during_a_merge_fences_it",
    },
}
"""By file: the name of the mutation, and that of the test."""

TEST_OF_RULE: Final[dict[str, str]] = {
    rule: f"{path}::{test}" for path, tests in _TESTS.items() for rule, test in tests.items()
}
"""By name of the mutation, as pytest has them."""


def run_tests_of_rules(names: Collection[str]) -> dict[str, Outcome]:
    """Run the tests of some rules in a process of its own, each with its rule switched off.

    Raises:
        InvariantViolated: There are no such tests here: it takes a checkout of the project.
    """
    if not names:
        return {}
    root = Path(icedb_log.__file__).parents[4]
    tests = sorted({TEST_OF_RULE[name] for name in names})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", _PLUGIN, "-p", "no:cacheprovider", OPTION, str(out), *tests],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes: dict[str, Outcome] = orjson.loads(out.read_bytes()) if out.exists() else {}
    missing = [name for name in names if name not in outcomes]
    if missing:
        raise InvariantViolated(f"{missing[0]}: {TEST_OF_RULE[missing[0]]} did not run: {run.stdout[-2000:]}")
    return outcomes
