"""The three tiers of tests.

- First tier: `make test` runs these tests. The first tier shows the product to a user who runs the tests for the first
  time.
- Extended tier: `make check` also runs these tests. The extended tests start Spark or Dagster, simulate, or try
  generated cases. The extended tier also has tests that try many kills, damages, attacks, processes or sizes (`LONG`
  lists these files with the reason).
- Nightly tier: only `make nightly` runs these tests. `make check` runs one representative of each group (`NIGHTLY`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

NEEDS_SECONDS_TO_START = frozenset({"spark", "dagster"})
"""A test with one of these markers or fixtures is in the extended tier."""

SPEAK_FOR_THE_PRODUCT = frozenset(
    {
        "tests/e2e/test_access_log.py",  # all jobs on Spark
        "tests/integration/test_dagster_runs.py::test_a_ranged_run_ingests_and_compacts_with_all_metrics",
        "tests/integration/test_guide.py::test_the_example_of_the_readme_runs_in_an_empty_folder",
        "tests/property/test_append_tables_that_change.py::test_a_few_courses_of_an_append_table",
        "tests/property/test_ingest_exactly_once.py",
        "tests/property/test_keyed_tables_that_change.py::test_a_few_courses_of_a_keyed_table",
        "tests/property/test_log_state_machine.py",
        "tests/property/test_region_against_a_dictionary.py",
        "tests/simulation/test_lease_crash_matrix.py",
        "tests/simulation/test_writer_crash_matrix.py",
        "tests/unit/test_docs.py",
    }
)
"""Test files and single tests that stay in the first tier, even if they start Spark or Dagster."""

LONG_FOLDERS = ("tests/chaos/", "tests/property/", "tests/simulation/")
"""Folders of tests that repeat one check over many seeds or generated cases. The number of cases can be chosen."""

LONG = {
    "kills, pauses and forks, and processes or threads that race": frozenset(
        {
            "tests/e2e/test_concurrent_appends.py",
            "tests/integration/test_announced_files.py::test_a_run_that_stops_at_any_request_adds_each_row_once",
            "tests/e2e/test_killed_compaction.py",
            "tests/integration/test_consistency.py",
            "tests/integration/test_forked_writers.py",
            "tests/integration/test_killed_writers.py",
            "tests/integration/test_log_two_processes.py",
            "tests/integration/test_paused_maintainer.py",
            "tests/integration/test_paused_writer.py",
            "tests/integration/test_raw_log_processes.py",
            "tests/integration/test_s3_store.py",
            "tests/integration/test_catalogue_places.py",
            "tests/integration/test_shared_cache.py",
            "tests/integration/test_sql_catalogue.py",
            "tests/unit/test_idle_writers.py",
        }
    ),
    "damage and faults in every place": frozenset(
        {
            "tests/integration/test_corruption_matrix.py",
            "tests/integration/test_damaged_vector_segments.py",
            "tests/integration/test_repair.py",
            "tests/integration/test_s3_lost_replies.py",
            "tests/unit/test_refusing_systems.py",
            "tests/unit/test_row_groups.py",
        }
    ),
    "lists of attacks and bombs": frozenset(
        {
            "tests/integration/test_landed_bombs.py",
            "tests/integration/test_sql_attacks.py",
            "tests/unit/test_avro_container.py",
        }
    ),
    "a process or an installation per case": frozenset(
        {
            "tests/e2e/test_benchmarks_run.py",
            "tests/e2e/test_installed_wheel.py",
            "tests/integration/test_published_as_delta.py",
            "tests/integration/test_published_as_iceberg.py",
            "tests/integration/test_who_can_read.py",
            "tests/integration/test_unclosed_writers.py",
            "tests/integration/test_what_is_loaded.py",
            "tests/integration/test_sandbox.py",
            "tests/unit/test_deploy.py",
            "tests/unit/test_reads_on_a_poor_machine.py",
            "tests/unit/test_search_on_a_poor_machine.py",
            "tests/unit/test_secrets_in_locations.py",
        }
    ),
    "tables of many versions, pages or rows": frozenset(
        {
            "tests/integration/test_clones.py",
            "tests/integration/test_features_together.py",
            "tests/integration/test_forgetting.py",
            "tests/integration/test_history_on_s3.py",
            "tests/integration/test_merged_segments.py",
            "tests/integration/test_raw_log_upkeep_on_s3.py",
            "tests/integration/test_segments_follow_rows.py",
            "tests/integration/test_segments_over_many_appends.py",
            "tests/integration/test_statements_on_changed_columns.py",
            "tests/integration/test_read_memory.py",
            "tests/integration/test_writer_memory.py",
            "tests/unit/test_compaction_planning_budget.py",
            "tests/unit/test_history_pages.py",
            "tests/unit/test_log_budgets.py",
            "tests/unit/test_transactions_in_columns.py",
        }
    ),
    "one capability in all its forms, which take long together": frozenset(
        {
            "tests/integration/test_a_project_of_its_own.py",
            "tests/integration/test_bitmap_filters.py",
            "tests/integration/test_cli.py",
            "tests/integration/test_deleted_rows.py",
            "tests/integration/test_disk_cache.py",
            "tests/integration/test_explain.py",
            "tests/integration/test_foreign_suites.py",
            "tests/integration/test_guide.py",
            "tests/integration/test_imports.py",
            "tests/integration/test_index_search.py",
            "tests/integration/test_kept_searchers.py",
            "tests/integration/test_matches.py",
            "tests/integration/test_neighbours_of_processes.py",
            "tests/integration/test_partitioned_tables.py",
            "tests/integration/test_primary_key_index.py",
            "tests/integration/test_ranged_reads.py",
            "tests/integration/test_raw_rows_in_reads.py",
            "tests/integration/test_read_budgets.py",
            "tests/integration/test_regions_made_by_hand.py",
            "tests/integration/test_searches_of_the_log.py",
            "tests/integration/test_segments_follow_merges.py",
            "tests/integration/test_sql_over_several_tables.py",
            "tests/integration/test_streamed_reads.py",
            "tests/integration/test_table_on_s3.py",
            "tests/integration/test_values_of_engines.py",
            "tests/integration/test_vector_search.py",
            "tests/integration/test_what_a_query_fetches.py",
            "tests/integration/test_which_splits_a_query_reads.py",
            "tests/unit/test_log_opening.py",
            "tests/unit/test_plain_english.py",
            "tests/unit/test_region_repartition.py",
            "tests/unit/test_tags.py",
            "tests/unit/test_words.py",
        }
    ),
}
"""Test files that are in the extended tier because they take more than ten seconds. The keys are the reasons."""


NIGHTLY = {
    "drives a browser": frozenset({"tests/e2e/test_report_in_browser.py", "tests/e2e/test_ui_in_browser.py"}),
    "needs PostgreSQL": frozenset(
        {
            "tests/integration/test_catalogue_places.py[postgresql]",
            "tests/integration/test_dagster_code_server_is_killed.py",
            "tests/integration/test_dagster_runs.py[postgresql]",
            "tests/integration/test_sql_catalogue.py[postgresql]",
        }
    ),
    "runs a benchmark": frozenset({"tests/e2e/test_benchmarks_run.py"}),
    "installs packages": frozenset({"tests/e2e/test_installed_wheel.py"}),
}
"""Reasons and the test files that only `make nightly` runs. `[postgresql]` selects the PostgreSQL cases of a file."""

REPRESENTATIVES = frozenset(
    {
        "tests/e2e/test_benchmarks_run.py::test_the_small_benchmark_of_the_log_prints_each_step_against_its_peers",
        "tests/e2e/test_installed_wheel.py::test_the_core_writes_and_reads_tables_without_the_pipeline",
        "tests/e2e/test_installed_wheel.py::test_the_wheel_holds_the_product_and_nothing_for_tests",
        (
            "tests/e2e/test_ui_in_browser.py::test_the_ui_shows_the_asset_graph_a_materialization_with_its_metrics"
            "_its_checks_and_opens_the_report"
        ),
        "tests/integration/test_sql_catalogue.py::test_every_side_answers_the_same_after_every_step",
    }
)
"""Tests of nightly files that `make check` also runs. There is one test for each reason in `NIGHTLY`."""


def is_nightly(file: str, test: str) -> bool:
    """Return True if only `make nightly` runs this test. `test` ends with its case in brackets."""
    if f"{file}::{test.partition('[')[0]}" in REPRESENTATIVES:
        return False
    names = {file, f"{file}[postgresql]"} if "postgresql" in test else {file}
    return any(not names.isdisjoint(files) for files in NIGHTLY.values())


def tier_of(file: str, text: Callable[[], str]) -> str | None:
    """Return the tier that all tests of a file have, "extended" or "first", or None if it differs by test.

    The names in `NEEDS_SECONDS_TO_START` occur in the text of a test file. So the function calls `text` to read
    the file.
    """
    if any(each.startswith(f"{file}::") for each in SPEAK_FOR_THE_PRODUCT):
        return None
    if is_extended(file, "", ()):
        return "extended"
    needs = () if file in SPEAK_FOR_THE_PRODUCT else NEEDS_SECONDS_TO_START
    return None if any(each in text() for each in needs) else "first"


def is_extended(file: str, test: str, needs: Collection[str]) -> bool:
    """Return True for tests of the extended tier. `file` is a path from the root, `needs` are markers and fixtures."""
    if not SPEAK_FOR_THE_PRODUCT.isdisjoint({file, f"{file}::{test}"}):
        return False
    is_long = any(file in files for files in LONG.values())
    return is_long or file.startswith(LONG_FOLDERS) or not NEEDS_SECONDS_TO_START.isdisjoint(needs)
