"""Plant faults one by one, and check that the tests of `make check` catch each fault.

`make planted-faults` runs this program.

    python -m tests.planted_faults [SEED] [TEXT]

Each fault breaks one documented guarantee, called a promise. A promise is a row of docs/guarantees.md, a law of
docs/spec.md, or a row of docs/architecture/lessons.md. A fault names the function that implements the broken guarantee.
Therefore a fault stays valid if the function moves to another module. The program plants each fault in a copy of the
tree. The tests of the fault then run at half the scale, with the cases that SEED selects. At least
one of these tests must fail. TEXT selects the faults whose documented guarantee (`promise`) contains this text.

The program prints a line per fault. The exit code of the program is 1 if the tests miss a fault.
"""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("storage_core", "jobs", "assets", "pipelines", "tidemark")
SECONDS = 900


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that breaks a promise.

    The fault replaces `before` with `after` in the function or constant with the name `within`.

    `law` refers to the text that documents the promise. `guarantee 3` is a row of docs/guarantees.md, and `spec 3.3` is
    a section of the specification. `within` may include the names of enclosing classes or functions, as in
    `Lease.renew`. The text `before` occurs exactly once in all functions named `within`. `tests` are the smallest set
    of tests that catches the fault. An entry is a file, or a test in the notation of pytest.
    """

    law: str
    promise: str
    within: str
    before: str
    after: str
    tests: tuple[str, ...]


FAULTS = (
    # Commits, replay, checkpoints
    Fault(
        "guarantee 1",
        "a commit whose reply is lost is recognized as our own",
        "_is_of",
        "return info is not None and info.commitId == commit_id",
        "return info is None",
        (
            "tests/unit/test_log_lost_replies.py::test_lesson_01_a_commit_whose_reply_was_lost_is_committed_exactly_once",
        ),
    ),
    Fault(
        "guarantee 17",
        "a repeated job is found by its transaction",
        "_is_recorded",
        "return bool(recorded)",
        "return False",
        ("tests/unit/test_conflict_table.py::test_work_that_is_recorded_is_not_committed_again",),
    ),
    Fault(
        "spec 3",
        "a commit conflicts with other deletes of a split that it removes",
        "_check_remove",
        "if live.deleted_rows != (None if seen is None else seen.deleted_rows):",
        "if live is seen is None:",
        ("tests/unit/test_conflict_table.py::test_every_cell_of_the_conflict_table",),
    ),
    Fault(
        "spec 3",
        "rows of another sort schema than the table's conflict",
        "check_settings",
        "if of(head) != of(planned)] if Add in kinds else []",
        "if of(head) != of(planned)] if not kinds else []",
        ("tests/unit/test_conflict_table.py::test_new_splits_do_not_land_on_another_schema_or_order",),
    ),
    Fault(
        "spec 3",
        "no transaction is recorded by a plan from before it was pruned",
        "_check_transactions",
        "if pruned > plan.planned.version and any(",
        "if pruned < 0 and any(",
        ("tests/unit/test_conflict_table.py::test_every_cell_of_the_conflict_table",),
    ),
    Fault(
        "spec 2.6",
        "commit times only grow",
        "SnapshotBuilder.apply",
        "if timestamp <= self._timestamp and commit_info(actions) is not None:",
        "if timestamp < 0 and commit_info(actions) is not None:",
        ("tests/unit/test_log_snapshot.py::test_a_version_that_is_no_later_than_the_one_before_it_is_corrupt",),
    ),
    Fault(
        "spec 2.1",
        "a table with an unknown feature is refused",
        "require_readable",
        "unknown = sorted(set(protocol.readerFeatures or ()) - FEATURES)",
        "unknown = sorted(set(protocol.readerFeatures or ()) - set(protocol.readerFeatures or ()))",
        ("tests/unit/test_log_snapshot.py::test_a_table_that_needs_more_than_we_know_is_refused_by_name",),
    ),
    Fault(
        "spec 2.6",
        "fences never go back",
        "Progress.apply",
        "self.fences[action.resource] = max(action.token, self.fences.get(action.resource, action.token))",
        "self.fences[action.resource] = action.token",
        ("tests/unit/test_log_snapshot.py::test_progress_is_kept_per_name_and_never_goes_back",),
    ),
    Fault(
        "spec 4.5",
        "a version that is missing before later ones is Corrupt",
        "open_head",
        "return found if found.version >= newest else _without_gap(store, found)",
        "return found",
        (
            "tests/unit/test_log_opening.py::test_a_lost_version_between_the_state_and_the_head_is_named_and_nobody_commits_into_the_gap",
        ),
    ),
    Fault(
        "spec 4.5",
        "time travel finds the newest version at or before a time",
        "open_timestamp",
        "if head.timestamp <= timestamp_ms:",
        "if head.timestamp < timestamp_ms:",
        ("tests/unit/test_log_opening.py::test_a_timestamp_opens_the_newest_version_committed_by_then",),
    ),
    Fault(
        "spec 4.3",
        "a hint never goes backwards",
        "advance_hint",
        "if current is not None and current.version >= hint.version and exists(store, current.key):",
        "if current is not None and current.version == hint.version and exists(store, current.key):",
        ("tests/unit/test_log_opening.py::test_a_hint_that_names_nothing_is_replaced_and_a_newer_one_is_kept",),
    ),
    Fault(
        "spec 4.1",
        "a state carries everything that the versions before it say",
        "snapshot_of",
        "segments=progress.segments,",
        "segments={},",
        ("tests/unit/test_log_opening.py::test_lessons_46_and_47_the_answer_never_depends_on_hints_and_states",),
    ),
    Fault(
        "spec 4.1",
        "a state whose manifests do not add up is Corrupt",
        "snapshot_of",
        "if is_own(state) and entries - len(listed.tombstones) != state.num_files:",
        "if is_own(state) and entries < 0:",
        ("tests/unit/test_state_layout.py::test_a_state_that_counts_other_files_than_its_manifests_list_is_corrupt",),
    ),
    Fault(
        "spec 3.1",
        "no merge lands that was planned before a restore",
        "_check_generations",
        "if restored > plan.planned.version:",
        "if restored < 0:",
        ("tests/unit/test_conflict_table.py::test_a_merge_that_was_planned_before_a_restore_plans_again",),
    ),
    Fault(
        "spec 3.1",
        "a restore takes nothing that a collection is about to delete",
        "planned_for_deletion",
        "return frozenset(key for key in keys if key in candidates)",
        "return frozenset(key for key in keys if key not in keys and key in candidates)",
        (
            "tests/unit/test_restore_and_collection.py::test_a_collection_at_any_moment_of_a_restore_takes_nothing_that_it_brings_back",
        ),
    ),
    Fault(
        "spec 2.2.1",
        "a deletion vector with another bit is Corrupt",
        "rows_of",
        "if found != vector.xxh3:",
        "if not found:",
        ("tests/unit/test_hostile_log.py::test_the_bytes_of_a_vector_are_compared_with_everything_it_says",),
    ),
    # Fencing and leases
    Fault(
        "guarantee 7",
        "a maintainer that lost its lease commits nothing",
        "_check_fences",
        "if isinstance(action, Fence) and action.token < head.fences.get(action.resource, action.token):",
        "if isinstance(action, Fence) and action.token < 0:",
        ("tests/unit/test_conflict_table.py::test_a_lower_token_is_fenced_whatever_else_the_commit_could_do",),
    ),
    Fault(
        "spec 3.3",
        "the next lease has a higher token",
        "_next_token",
        "return max(recorded, current.record.fencing_token) + 1",
        "return max(recorded, current.record.fencing_token)",
        ("tests/unit/test_lease.py::test_a_live_lease_is_held_also_against_a_second_start_of_the_same_run",),
    ),
    Fault(
        "spec 3.3",
        "a token is good for one commit",
        "TokenUnused.check",
        "if recorded >= self.token:",
        "if recorded > self.token:",
        ("tests/unit/test_lease.py::test_of_two_holders_of_one_token_only_one_commits",),
    ),
    Fault(
        "spec 3.3",
        "a lease that has not run out is not taken over",
        "acquire.free",
        "return left_ms <= 0",
        "return left_ms <= TTL_MS",
        ("tests/unit/test_lease.py::test_a_live_lease_is_held_also_against_a_second_start_of_the_same_run",),
    ),
    Fault(
        "spec 3.3",
        "a holder sees that somebody took its lease over",
        "Lease._is_mine",
        "return record.acquisition == self._record.acquisition",
        "return record.resource == self._record.resource",
        ("tests/unit/test_lease.py::test_a_live_lease_is_held_also_against_a_second_start_of_the_same_run",),
    ),
    # Writers, regions, merges
    Fault(
        "guarantee 3",
        "a row is durable before it is acknowledged",
        "GroupCommit.submit",
        "self._finish([call])",
        "self._wake_timer()",
        ("tests/unit/test_group_commit.py::test_a_durable_call_comes_behind_those_before_it",),
    ),
    Fault(
        "guarantee 3",
        "a second writer fences the first",
        "WalAppender.append",
        "check_epoch(self.store, self.region, self.epoch)",
        "self.store.list(self.region)",
        (
            "tests/unit/test_region_writer.py::test_a_second_claim_fences_the_first_and_none_of_its_later_rows_is_visible",
        ),
    ),
    Fault(
        "spec 10.2",
        "each claim has a higher epoch",
        "_next",
        "return replace(latest, writer_epoch=latest.writer_epoch + 1, idle_epoch=0)",
        "return replace(latest, writer_epoch=latest.writer_epoch, idle_epoch=0)",
        (
            "tests/unit/test_region_writer.py::test_a_second_claim_fences_the_first_and_none_of_its_later_rows_is_visible",
        ),
    ),
    Fault(
        "spec 10.2",
        "a copy of a writer acknowledges nothing into the entries of the other",
        "WalAppender._require_earlier",
        "if found.writer_epoch >= self.epoch:",
        "if found.writer_epoch > self.epoch:",
        (
            "tests/property/test_copied_writers.py::test_an_entry_of_our_epoch_that_is_not_ours_ends_the_writer_and_names_whose_it_is",
        ),
    ),
    Fault(
        "spec 10.3",
        "what a fenced writer left behind a sentinel was not acknowledged and is not read",
        "_with_rows",
        "if each.entry.writer_epoch == highest and not each.entry.is_sentinel:",
        "if not each.entry.is_sentinel:",
        ("tests/unit/test_wal_tail.py::test_an_entry_of_a_fenced_writer_behind_the_claim_is_not_read",),
    ),
    Fault(
        "spec 10.3",
        "a missing entry in the middle of a log is an error",
        "_until_absent",
        "if not (any(later) if later else exists(store, keys.wal_entry_key(region, entry + 1))):",
        "if True:",
        ("tests/unit/test_wal_tail.py::test_an_entry_that_is_missing_before_another_is_named",),
    ),
    Fault(
        "spec 10.4",
        "merged generations follow each other without a gap",
        "MergeProgress.check",
        "if recorded != self.after:",
        "if recorded < 0:",
        (
            "tests/unit/test_conflict_table.py::test_lesson_25_the_rows_of_an_older_merge_do_not_land_under_a_newer_progress",
        ),
    ),
    Fault(
        "spec 10.4",
        "a flushed generation that the base has is not read over newer rows of the base",
        "_merged",
        "return snapshot.merged_generations.get(manifest.region_id, 0)",
        "return 0",
        ("tests/unit/test_region_merge.py::test_merged_generations_never_outrank_the_base_whatever_was_captured_when",),
    ),
    Fault(
        "guarantee 5",
        "the newest record of a key wins",
        "apply",
        "given = fold(pa.concat_tables([puts(base), given]), key)",
        "given = fold(pa.concat_tables([given, puts(base)]), key)",
        ("tests/unit/test_rows_fold.py::test_a_patch_over_the_base_keeps_the_other_fields_and_may_set_null",),
    ),
    Fault(
        "guarantee 5",
        "a merge hides the rows that it brings newer ones of",
        "find",
        "deleted=deleted | bitmap_of(at[hit]),",
        "deleted=deleted,",
        (
            "tests/unit/test_region_merge.py::test_only_splits_that_hold_a_touched_key_get_a_vector_and_none_is_rewritten",
        ),
    ),
    Fault(
        "guarantee 6",
        "a read finds the rows that came behind a flush",
        "_with_tail",
        "return manifest, [each for each in logged if each.id > behind]",
        "return manifest, []",
        (
            "tests/simulation/test_consistency_under_faults.py::test_every_read_is_explained_by_a_prefix_of_each_region_that_never_goes_back",
        ),
    ),
    Fault(
        "spec 10.4",
        "a bloom filter denies no key that went in",
        "build_bloom",
        "np.bitwise_or.at(words, targets, bits)",
        "np.bitwise_or.at(words, targets[:1], bits[:1])",
        ("tests/unit/test_bloom_filter.py::test_no_key_that_went_in_is_denied",),
    ),
    # Rows and their order
    Fault(
        "spec 9",
        "windows before 1970 are rounded down",
        "window_starts",
        "np.floor_divide(ticks.fill_null(0).to_numpy(), ticks_per_window)",
        "np.trunc(ticks.fill_null(0).to_numpy() / ticks_per_window).astype(np.int64)",
        ("tests/unit/test_rows_windows.py::test_a_window_starts_at_the_multiple_not_above_the_time",),
    ),
    Fault(
        "spec 6",
        "a column with NaN has NaN as its upper bound",
        "_extremes",
        'return (bounds["min"] if bounds["min"].is_valid else nan), nan',
        'return bounds["min"], bounds["max"]',
        ("tests/unit/test_rows_statistics.py::test_bounds_have_one_text_form_per_type_and_read_back",),
    ),
    Fault(
        "spec 6",
        "a greatest text that is cut is rounded up",
        "upper",
        "return next_after_prefix(text[:truncate_at])",
        "return text[:truncate_at]",
        ("tests/unit/test_rows_statistics.py::test_a_long_string_is_cut_and_a_cut_maximum_rounded_up",),
    ),
    Fault(
        "guarantee 15",
        "pruning leaves out no split that may match",
        "_compare_may_match",
        "return at_most(bounds.low(), wanted.greatest)\n        case Comparison.GT:",
        "return at_most(bounds.low(), wanted.greatest, strictly=True)\n        case Comparison.GT:",
        ("tests/property/test_pruning_keeps_answers.py::test_a_comparison_at_a_bound_keeps_the_split",),
    ),
    Fault(
        "spec 2.4.1",
        "rows of another schema are not committed",
        "follows",
        "return bool(later.equals(earlier))",
        "return bool(later)",
        ("tests/unit/test_conflict_table.py::test_new_splits_do_not_land_on_another_schema_or_order",),
    ),
    Fault(
        "guarantee 9",
        "a row exactly at the bound is in time",
        "LateRule.is_late",
        "pc.less(ticks, bounds)",
        "pc.less_equal(ticks, bounds)",
        ("tests/unit/test_rows_late.py::test_a_row_exactly_at_the_bound_is_in_time_and_a_microsecond_older_is_late",),
    ),
    Fault(
        "spec 9.1",
        "a window leaves its retention after its end, not after its start",
        "has_left",
        'latest_start = pc.subtract(cutoff, files.column("windowSeconds").cast(pa.int64()))',
        "latest_start = cutoff",
        ("tests/unit/test_expiry.py::test_a_window_leaves_at_its_end_plus_the_retention_and_not_a_millisecond_before",),
    ),
    Fault(
        "spec 9.1",
        "a window leaves only by the retention that the table still has",
        "SameRetention.check",
        "if head.config.retention_ms != self.retention_ms:",
        "if head.config.retention_ms is self:",
        ("tests/simulation/test_expiry_races.py::test_a_retention_that_is_given_up_before_the_commit_keeps_every_row",),
    ),
    # Compaction and statements
    Fault(
        "guarantee 10",
        "an audit finds a value that a compaction changed",
        "row_faults",
        "elif before != after:",
        "elif before.rows < 0:",
        ("tests/unit/test_audit_merges.py::test_mc_2_a_value_that_changed",),
    ),
    Fault(
        "spec 12",
        "a compaction stays in one window",
        "scope_faults",
        "if windows != {window}:",
        "if not windows:",
        ("tests/unit/test_compaction_invariants.py::test_inputs_of_two_windows_or_scopes_are_refused",),
    ),
    Fault(
        "spec 12",
        "rows that a compaction has not sorted are not committed",
        "require_sorted",
        "if not is_sorted(output, order.present(output.column_names)):",
        "if not output.column_names:",
        ("tests/unit/test_compaction_invariants.py::test_an_unsorted_output_breaks_mc_3",),
    ),
    Fault(
        "guarantee 11",
        "a delete beside a compaction is carried over",
        "_Carried._newly",
        "return {number: rows for number, rows in newly.items() if rows}",
        "return {}",
        ("tests/unit/test_carry_over.py::test_rows_deleted_while_it_runs_stay_deleted_and_no_others",),
    ),
    Fault(
        "guarantee 12",
        "a statement finds the rows of the head that it commits on",
        "Statement._on",
        "if self._last is None or self._last[0] != head.version:",
        "if self._last is None:",
        ("tests/integration/test_statements.py::test_appends_before_every_attempt_but_the_last_are_all_looked_at",),
    ),
    Fault(
        "spec 3.2",
        "the rows that only another deletion vector hides are changes",
        "_without_what_stayed",
        "removed += _only(add, now - then)",
        "removed += _only(add, then - now)",
        ("tests/unit/test_changes.py::test_a_merge_shows_the_rows_it_changed_and_not_those_it_rewrote",),
    ),
    # Ingestion
    Fault(
        "guarantee 8",
        "every window of a landed file is ingested exactly once",
        "window_app",
        'else f"{window}" if seconds is None else',
        "else",
        ("tests/unit/test_ingest_batch.py::test_the_last_windowed_run_completes_the_file",),
    ),
    Fault(
        "guarantee 8",
        "a rejected line is kept with its number",
        "rejected",
        "return RejectedLine(file, number, reason, data.decode())",
        "return RejectedLine(file, 0, reason, data.decode())",
        ("tests/unit/test_ingest_parse.py::test_csv_records_become_rows_and_bad_ones_are_numbered",),
    ),
    Fault(
        "guarantee 18",
        "a region that has a landed file does not get it again",
        "_claim",
        "if held.get(name) != offsets[name]:",
        "if name:",
        ("tests/simulation/test_keyed_landing_crashes.py::test_a_region_with_the_files_keeps_its_newer_rows",),
    ),
    Fault(
        "guarantee 18",
        "a file that another run committed is not landed again after the regions have removed its name",
        "require_unlanded",
        "if head.txns.get(name, 0) != job.before.txns.get(name, 0):",
        "if not name:",
        ("tests/simulation/test_keyed_landing_crashes.py::test_two_runs_that_race_apply_each_record_once",),
    ),
    Fault(
        "guarantee 18",
        "a landed record that is older than the row has no effect",
        "_is_older",
        "is_less = pc.fill_null(pc.less(own_orders, against), fill_value=False)",
        "is_less = pc.fill_null(pc.less(own_orders, own_orders), fill_value=False)",
        ("tests/unit/test_keyed_landing.py::test_a_late_older_record_never_overwrites_a_newer_row",),
    ),
    Fault(
        "guarantee 18",
        "the order of a delete stays until the delete is merged",
        "fold",
        "source = np.where(folded_operations == Operation.DELETE, groups.lasts, source)",
        "source = np.where(folded_operations == Operation.DELETE, _NONE, source)",
        ("tests/unit/test_keyed_landing.py::test_the_order_of_a_delete_is_known_until_it_is_merged",),
    ),
    Fault(
        "spec 14",
        "a landed file that expands without bound is refused",
        "Expansion.add",
        "if self._bytes > self._most:",
        "if self._bytes < 0:",
        (
            "tests/unit/test_ingest_parse.py::test_a_landed_file_expands_to_one_gibibyte_or_to_two_hundred_times_its_size",
        ),
    ),
    Fault(
        "spec 14",
        "a new field sends its line to quarantine by default",
        "DriftRule.fault",
        'if self.new_field == "quarantine":',
        'if self.new_field == "":',
        ("tests/unit/test_schema_drift.py::test_a_new_field_sends_its_line_to_quarantine_by_default",),
    ),
    Fault(
        "guarantee 19",
        "an alert reports a new field while another field is still reported",
        "_alerts_of",
        "if each not in reported][:room]",
        "if not reported][:room]",
        ("tests/unit/test_schema_drift.py::test_a_second_new_field_is_reported_while_the_first_is_still_sent",),
    ),
    Fault(
        "guarantee 19",
        "the commit names the column whose values reject lines",
        "_name_in",
        "return max(found, key=len, default=None)",
        "return None",
        ("tests/unit/test_schema_drift.py::test_one_rejected_line_of_many_is_reported_by_its_field_or_column",),
    ),
    Fault(
        "spec 14",
        "the type of a new column holds all values of the run",
        "joined",
        "if one == other or may_widen(one, other) or is_exact:",
        "if True:",
        ("tests/unit/test_schema_drift.py::test_files_of_one_run_agree_on_one_type",),
    ),
    Fault(
        "guarantee 8",
        "the message of a file that changed while it was read stays in the queue",
        "settle",
        "left = set(changed)",
        "left = set(gone)",
        (
            "tests/integration/test_announced_files.py::test_a_file_that_changes_between_the_look_and_the_read_keeps_its_message",
        ),
    ),
    Fault(
        "guarantee 8",
        "a listing finds the files that nothing announced",
        "until_listing_ms",
        "listed_ms + every_ms - now_ms",
        "listed_ms + every_ms",
        (
            "tests/integration/test_announced_files.py::test_a_listing_finds_what_was_never_announced_and_the_log_has_its_time",
        ),
    ),
    # Raw logs
    Fault(
        "guarantee 4",
        "a record that two chunks hold is read once",
        "_after",
        "if chunk.first > last:",
        "if chunk.first > 0:",
        ("tests/unit/test_raw_history.py::test_records_that_two_chunks_of_a_writer_both_hold_come_once",),
    ),
    Fault(
        "guarantee 4",
        "chunks that no store has are named",
        "_holes",
        "if number > before + 1:",
        "if number > before + 2:",
        ("tests/unit/test_raw_history.py::test_what_no_store_has_is_a_gap_by_sequence_number",),
    ),
    Fault(
        "spec 18",
        "no record is distributed over a missing chunk of its writer",
        "left",
        "if ref.number > offset + 1 or not is_sound:",
        "if not is_sound:",
        ("tests/unit/test_raw_history.py::test_distribution_waits_before_a_missing_chunk_until_it_is_given_up",),
    ),
    Fault(
        "spec 18",
        "a segment that a writer may still write to is not distributed",
        "left",
        "if (writer, ref.segment_ms) not in closed:",
        "if not closed:",
        ("tests/unit/test_distribution.py::test_only_closed_segments_are_distributed",),
    ),
    Fault(
        "spec 18",
        "a record id that came before is left out",
        "Duplicates.without",
        "keep[left_out] = False",
        "keep[left_out] = True",
        (
            "tests/unit/test_unique_records.py::test_one_id_is_one_row_within_a_chunk_a_writer_and_a_round_and_in_later_rounds",
        ),
    ),
    Fault(
        "spec 18.1",
        "a chunk stays until every table has it",
        "RawLogCollector._old",
        "if ref.number > reached or not is_old:",
        "if not is_old:",
        (
            "tests/unit/test_raw_log_collection.py::test_a_table_that_lags_or_is_not_made_yet_protects_every_chunk_that_it_lacks",
        ),
    ),
    Fault(
        "spec 18",
        "an append returns when every mandatory store has the chunk",
        "MandatoryStores.put",
        "failed = [each for each in failures if each is not None]",
        "failed = [each for each in failures[:1] if each is not None]",
        ("tests/unit/test_raw_log.py::test_after_an_unknown_outcome_the_writer_is_done_and_another_goes_on",),
    ),
    # Collection, tags, clones
    Fault(
        "guarantee 16",
        "age counts from the removing commit",
        "_unreachable",
        "since_ms=removal.timestamp_ms if removal else info.last_modified_ms,",
        "since_ms=info.last_modified_ms,",
        (
            "tests/unit/test_garbage_collection.py::test_a_split_that_was_planned_as_an_orphan_ages_anew_from_its_removal",
        ),
    ),
    Fault(
        "spec 15",
        "what is committed during a sweep stays",
        "sweep",
        "_delete(store, [each for each in batch if each.key not in named], swept)",
        "_delete(store, [each for each in batch if named is not None], swept)",
        ("tests/unit/test_garbage_collection.py::test_a_split_committed_before_any_read_of_a_collection_survives_it",),
    ),
    Fault(
        "spec 15",
        "the boundary moves before a version is deleted",
        "sweep",
        "advance_boundary(store, marked.roots.first[KeyKind.VERSION], nonce=log.ids.uuid())",
        "store.head(gc_candidates_key())",
        ("tests/unit/test_garbage_collection.py::test_versions_and_splits_below_the_retained_checkpoint_go_together",),
    ),
    Fault(
        "spec 15",
        "a second collector stops the first",
        "require_own_plan",
        "if store.head(gc_candidates_key()).etag != plan.etag:",
        "if store.head(gc_candidates_key()).etag == '':",
        (
            "tests/unit/test_garbage_collection.py::test_a_sweep_deletes_nothing_once_another_collector_has_replaced_its_plan",
        ),
    ),
    Fault(
        "spec 15",
        "a candidate waits in the plan for the whole horizon",
        "_seen_long_enough",
        "has_passed(candidate.first_seen_ms, horizon.of(candidate), now_ms)",
        "now_ms >= 0",
        ("tests/unit/test_garbage_collection.py::test_an_orphan_waits_in_the_plan_for_the_whole_horizon",),
    ),
    Fault(
        "spec 15",
        "an object goes no sooner than a horizon after it became unneeded",
        "_is_due",
        "old_enough = has_passed(each.since_ms, horizon.of(candidate), now_ms)",
        "old_enough = now_ms >= 0",
        (
            "tests/unit/test_garbage_collection.py::test_a_split_that_was_planned_as_an_orphan_ages_anew_from_its_removal",
        ),
    ),
    Fault(
        "spec 15",
        "the oldest retained version stays",
        "_is_kept",
        "return _number(parsed.version) >= found.first[parsed.kind]",
        "return _number(parsed.version) > found.first[parsed.kind]",
        ("tests/unit/test_garbage_collection.py::test_versions_and_splits_below_the_retained_checkpoint_go_together",),
    ),
    Fault(
        "spec 15",
        "a generation that is not merged stays",
        "_is_kept_by_region",
        "return parsed.directory in region.unmerged_directories",
        "return parsed.directory == region",
        ("tests/unit/test_region_collection.py::test_what_is_not_merged_is_kept_however_old",),
    ),
    Fault(
        "spec 15.1",
        "a tag keeps what its version names",
        "retained",
        "older = [_tagged(log, tag) for tag in live if tag.version < base.version]",
        "older = [_tagged(log, tag) for tag in live if tag.version < 0]",
        ("tests/unit/test_tags.py::test_a_tagged_version_outlives_retention_whole",),
    ),
    Fault(
        "spec 15.1",
        "of two that change a tag one is told",
        "_replaced",
        "if tags.get(name) != before:",
        "if tags.get(name) is tags:",
        ("tests/unit/test_tags.py::test_of_two_settings_of_one_name_at_once_one_is_told",),
    ),
    Fault(
        "spec 15",
        "what a retained version names stays",
        "_is_kept",
        "return parsed.key in found.keys",
        "return parsed.key in found.keys and not old",
        ("tests/unit/test_garbage_collection.py::test_versions_and_splits_below_the_retained_checkpoint_go_together",),
    ),
    Fault(
        "spec 15.2",
        "a clone writes nothing into its source",
        "TableStore.put",
        "return self._store.put(key, data, mode)",
        "return (self.source() or self._store).put(key, data, mode)",
        ("tests/integration/test_clones.py::test_a_clone_deletes_and_writes_nothing_in_its_source",),
    ),
    Fault(
        "spec 15.2",
        "a clone deletes nothing in its source",
        "TableStore.delete",
        "return self._store.delete(keys)",
        "return (self.source() or self._store).delete(keys)",
        ("tests/integration/test_clones.py::test_a_clone_deletes_and_writes_nothing_in_its_source",),
    ),
    Fault(
        "spec 15.2",
        "a shallow clone keeps its version in the source for good",
        "clone",
        "set_tag(source, tag, snapshot, lasts=COPY_LASTS if deep else None)",
        "set_tag(source, tag, snapshot, lasts=COPY_LASTS)",
        (
            "tests/integration/test_clones.py::test_the_tag_of_a_shallow_clone_never_expires_and_a_deep_clone_leaves_none",
        ),
    ),
    # Indexes and search
    Fault(
        "guarantee 14",
        "a search reads the rows that no segment covers",
        "compute_coverage",
        "missing=tuple(snapshot.splits[path] for path in traces.origins),",
        "missing=(),",
        ("tests/integration/test_index_search.py::test_full_text_finds_the_rows_that_a_scan_finds",),
    ),
    Fault(
        "guarantee 14",
        "a deleted row is in no answer",
        "hidden_rows",
        "return {add.path: rows for add, rows in zip(marked, found, strict=True)}",
        "return {add.path: rows for add, rows in zip(marked, found, strict=True) if len(rows) > 1}",
        ("tests/integration/test_deleted_rows.py::test_scans_and_queries_never_return_them",),
    ),
    Fault(
        "spec 13",
        "the watermark is before the oldest split that is not covered",
        "watermark_of",
        "return min((snapshot.splits.added_at(add.path)[0] - 1 for add in covered.missing), default=snapshot.version)",
        "return min((snapshot.splits.added_at(add.path)[0] for add in covered.missing), default=snapshot.version)",
        ("tests/integration/test_index_search.py::test_the_watermark_follows_the_oldest_split_that_is_not_covered",),
    ),
    Fault(
        "spec 13",
        "no split is covered twice by one index",
        "_overlap",
        "return own is None or others is None or not set(own).isdisjoint(others)",
        "return own is not None and others is not None and not set(own).isdisjoint(others)",
        ("tests/unit/test_conflict_table.py::test_two_segments_of_one_index_never_cover_one_split",),
    ),
    Fault(
        "spec 13",
        "a part of a bundle with another byte is Corrupt",
        "verify_part",
        "if checksum(data) != part.xxh3",
        "if not checksum(data)",
        ("tests/unit/test_bundle.py::test_a_part_swapped_for_another_is_corrupt",),
    ),
    Fault(
        "spec 13.1",
        "a translation that no segment needs leaves with its splits",
        "without_worthless",
        "gone = sorted(found - own.keys() - leaving)",
        "gone = sorted(found & own.keys())",
        (
            "tests/integration/test_segments_over_many_appends.py::test_translations_of_an_index_that_is_never_caught_up_do_not_grow_with_compactions",
        ),
    ),
    Fault(
        "spec 13.1",
        "a translation stays while a segment is behind it",
        "worthless",
        "return frozenset(far - leads_to(covered, (), moved)[1])",
        "return frozenset(far)",
        (
            "tests/integration/test_segments_over_many_appends.py::test_a_translation_stays_while_a_segment_is_behind_it",
        ),
    ),
    # Forgetting and repair
    Fault(
        "guarantee 13",
        "a report is not clean while something holds the rows",
        "ForgetReport.is_clean",
        "return not self.held",
        "return all(each.until_ms for each in self.held)",
        (
            "tests/integration/test_forget_command.py::test_it_says_what_holds_the_rows_until_the_collector_has_taken_it",
        ),
    ),
    Fault(
        "guarantee 13",
        "a landed file with the rows is named",
        "_holds",
        "if block.rows.num_rows and judge.mask_quarantined(block.rows).any():",
        "if block.rows.num_rows and judge.mask_quarantined(block.rows).all():",
        (
            "tests/integration/test_forget_command.py::test_a_landed_file_with_the_rows_is_named_for_them_also_if_a_later_block_is_damaged",
        ),
    ),
    Fault(
        "spec 3.4",
        "lines in quarantine with the rows are forgotten",
        "_rest",
        'if judge.text(str(each.get("text"))) is not True)',
        'if judge.text(str(each.get("text"))) is not None)',
        ("tests/integration/test_forgetting.py::test_others_in_a_quarantine_entry_stay_in_quarantine",),
    ),
    Fault(
        "guarantee 2",
        "a split with another byte is Corrupt",
        "whole_file",
        "if add.xxh3 is not None and found != add.xxh3:",
        "if add.xxh3 is not None and not found:",
        ("tests/unit/test_split_reading.py::test_a_flipped_bit_anywhere_is_corrupt",),
    ),
    Fault(
        "spec 5",
        "an object of another path is Corrupt",
        "require_itself",
        "if claimed is not None and claimed != add.path:",
        "if claimed is not None and not claimed:",
        ("tests/unit/test_split_reading.py::test_another_split_of_the_same_shape_in_its_place_is_corrupt",),
    ),
    Fault(
        "spec 10.3",
        "a WAL entry with another byte is Corrupt",
        "_verified_body",
        "if found != digest:",
        "if not found:",
        ("tests/unit/test_region_formats.py::test_every_flipped_bit_of_a_wal_entry_is_noticed",),
    ),
    # Mirrors and catalogs
    Fault(
        "spec 15.3",
        "a Delta mirror shows deletes",
        "_DeltaMirror._actions",
        'if key in before and adds[key].get("deletionVector") == before[key].vector}',
        "if key in before}",
        ("tests/integration/test_published_as_delta.py::test_each_version_that_can_be_shown_is_a_delta_version",),
    ),
    Fault(
        "spec 15.3",
        "a Delta mirror shows what left",
        "_DeltaMirror._actions",
        "for key in sorted(before.keys() - same)",
        "for key in sorted(before.keys() - same - before.keys())",
        ("tests/integration/test_published_as_delta.py::test_delta_rs_finds_the_same_rows_at_every_version",),
    ),
    Fault(
        "spec 15.4",
        "an Iceberg mirror shows no deleted row",
        "_found",
        "hiding = 0 if vectors_wait is None else sum(add.deleted_rows is not None for add in snapshot.splits.marked())",
        "hiding = 0",
        (
            "tests/integration/test_published_as_iceberg.py::test_a_version_with_hidden_rows_waits_for_a_compaction_and_is_no_error",
        ),
    ),
    Fault(
        "spec 21",
        "a split that left is live in no catalog",
        "Changes._take",
        "self.closed.add(action.path)\n                self.added.pop(action.path, None)",
        "self.added.pop(action.path, None)",
        ("tests/integration/test_sql_catalogue.py::test_every_side_answers_the_same_after_every_step",),
    ),
    Fault(
        "spec 21",
        "a statement for a catalog only asks",
        "require_read_statement",
        'if found not in ASKING - ({"explain", "show"} if first == "explain" else set()):',
        "if not found:",
        (
            "tests/integration/test_catalogue_places.py::test_a_statement_of_anybody_touches_no_other_file_and_leaves_the_connection_as_it_was",
        ),
    ),
    # Stores and security
    Fault(
        "guarantee 1",
        "an object that exists is never created again, also by a process that races",
        "LocalStore._create",
        "os.link(temporary, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)",
        "os.replace(temporary, name, src_dir_fd=source, dst_dir_fd=folder)",
        ("tests/unit/test_local_store.py",),
    ),
    Fault(
        "spec 1.1",
        "an object is replaced only by who saw its present content",
        "_holds",
        "return current is not None and current.etag == etag",
        "return current is not None and bool(etag)",
        ("tests/unit/test_memory_store.py",),
    ),
    Fault(
        "spec 1",
        "a key never leaves the table",
        "is_safe_key",
        'if any(segment in ("", ".", "..") for segment in segments)',
        'if any(segment in ("", ".") for segment in segments)',
        ("tests/unit/test_memory_store.py",),
    ),
    Fault(
        "spec 1.1",
        "no symlink below a local table is followed",
        "_READ",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK",
        "os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK",
        ("tests/unit/test_local_store.py::test_a_symlink_to_a_file_is_refused_by_every_call",),
    ),
    Fault(
        "spec 16",
        "a query calls known functions only",
        "_expression_objection",
        'if name not in _CALLED or node.get("export_state"):',
        "if not name:",
        ("tests/integration/test_refusals.py::test_what_cannot_be_is_refused_with_what_to_do_and_changes_nothing",),
    ),
    Fault(
        "lesson 85",
        "a location with a secret is not repeated",
        "without_locations",
        'return _LOCATION.sub(r"\\1…", text)',
        "return text",
        ("tests/unit/test_foreign_text.py", "tests/unit/test_secrets_in_locations.py"),
    ),
    Fault(
        "lesson 86",
        "the webserver refuses pages of other sites",
        "BrowserGuard._is_own",
        "return any(each.has_origin(page) for each in (host, *self._hosts))",
        "return True",
        ("tests/integration/test_webserver_guard.py::test_no_request_of_a_foreign_page_or_name_is_answered",),
    ),
    Fault(
        "lesson 86",
        "the webserver refuses hosts that are not its own",
        "BrowserGuard._refusal",
        "if host.host not in self._names and not _is_address_of(scope, host.host):",
        "if not host.host:",
        ("tests/integration/test_webserver_guard.py::test_no_request_of_a_foreign_page_or_name_is_answered",),
    ),
)


class Sources:
    """The product's modules below a folder."""

    def __init__(self, root: Path) -> None:
        files = (file for package in PRODUCT for file in sorted((root / package).rglob("*.py")))
        self._texts = {file: file.read_text(encoding="utf-8") for file in files}

    def planted(self, fault: Fault) -> tuple[Path, str]:
        """Return the file of the fault's function, and the file's text with the fault.

        Raise `ValueError` unless exactly one place fits the fault.

        The text is that of a module.
        """
        places = [
            (file, start + found.start())
            for file, text in self._texts.items()
            if fault.before in text
            for start, part in _called(text, fault.within)
            for found in re.finditer(re.escape(fault.before), part)
        ]
        if len(places) != 1:
            raise ValueError(f"{fault.within} has {len(places)} places of: {fault.promise}")
        [(file, at)] = places
        text = self._texts[file]
        changed = text[:at] + fault.after + text[at + len(fault.before) :]
        compile(changed, str(file), "exec")
        return file, changed

    def sound(self, file: Path) -> str:
        """Return the original text of a file."""
        return self._texts[file]


def _called(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield the functions, classes and constants with this name, and the start position of each definition."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for path, node in _definitions(ast.parse(text), ""):
        if f".{path}".endswith(f".{name}"):
            start, end = starts[node.lineno - 1], starts[node.end_lineno or node.lineno]
            yield start, text[start:end]


def _definitions(node: ast.AST, path: str) -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield f"{path}.{name}", child
                yield from _definitions(child, f"{path}.{name}")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield f"{path}.{name}", child
            case _:
                yield from _definitions(child, path)


def main(arguments: list[str]) -> int:
    """Plant each fault in turn, and print the test that catches it. Return 1 if the tests miss at least one fault."""
    seed = arguments[0] if arguments else str(random.SystemRandom().randrange(10**6))
    chosen = [each for each in FAULTS if not arguments[1:] or arguments[1] in f"{each.law}: {each.promise}"]
    print(f"{len(chosen)} faults, cases drawn by TIDEMARK_DRAW={seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _copy(tree)
        missed = _run(chosen, tree, seed)
    print(f"{len(chosen) - missed} of {len(chosen)} faults are caught")
    return min(missed, 1)


def _run(chosen: Sequence[Fault], tree: Path, seed: str) -> int:
    """Return the number of faults that no test catches."""
    sources, missed = Sources(tree), 0
    for fault in chosen:
        began = time.monotonic()
        file, changed = sources.planted(fault)
        file.write_text(changed, encoding="utf-8")
        try:
            caught = _failure(fault.tests, tree, seed)
        finally:
            file.write_text(sources.sound(file), encoding="utf-8")
        missed += caught is None
        about = f"{fault.law}: {fault.promise}: {caught or ', '.join(fault.tests)}"
        print(f"{'caught' if caught else 'MISSED'} {time.monotonic() - began:4.0f} s  {about}", flush=True)
    return missed


def _copy(tree: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)


def _failure(tests: Sequence[str], tree: Path, seed: str) -> str | None:
    """Return the first test that fails with the planted fault, or None if all tests pass."""
    environment = {**os.environ, "TIDEMARK_DRAW": seed, "TIDEMARK_SCALE": "0.5", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not nightly", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode and not failed):
        raise RuntimeError(f"{tests} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1] if failed else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
