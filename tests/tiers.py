"""Which tests are `extended`: `make test` leaves them to `make test-all` and `make check`.

The rule: what starts Spark or Dagster, kills processes, simulates, or tries cases that are drawn is extended, but for
the files that speak for the product to somebody who runs the tests for the first time.
"""

from __future__ import annotations

from collections.abc import Collection

NEEDS_SECONDS_TO_START = frozenset({"spark", "dagster"})
"""Markers of tests that are extended."""

SPEAK_FOR_THE_PRODUCT = frozenset(
    {
        "tests/e2e/test_access_log.py",  # every job, on Spark
        "tests/integration/test_dagster_definitions.py",
        "tests/integration/test_dagster_runs.py",
        "tests/property/test_ingest_exactly_once.py",
        "tests/property/test_log_state_machine.py",
        "tests/property/test_region_against_a_dictionary.py",
        "tests/simulation/test_lease_crash_matrix.py",
        "tests/simulation/test_writer_crash_matrix.py",
        "tests/unit/test_docs.py",
    }
)
"""Files that are not extended, whatever they start."""

LONG_FOLDERS = ("tests/chaos/", "tests/property/", "tests/simulation/")
"""Folders of tests that repeat one thing over many seeds or drawn cases: so long as one likes."""

LONG = frozenset(
    {
        "tests/e2e/test_benchmarks_run.py",
        "tests/e2e/test_concurrent_appends.py",
        "tests/e2e/test_installed_wheel.py",
        "tests/e2e/test_killed_compaction.py",
        "tests/integration/test_consistency.py",
        "tests/integration/test_corruption_matrix.py",
        "tests/integration/test_history_on_s3.py",
        "tests/integration/test_killed_writers.py",
        "tests/integration/test_log_two_processes.py",
        "tests/integration/test_paused_maintainer.py",
        "tests/integration/test_paused_writer.py",
        "tests/integration/test_raw_log_processes.py",
        "tests/integration/test_s3_lost_replies.py",
        "tests/integration/test_writer_memory.py",
    }
)
"""Files that are extended for other reasons: kills, pauses, processes that race, matrices of faults."""


def is_extended(file: str, markers: Collection[str]) -> bool:
    """Return whether a test of this file (its path from the repository's root) with these markers is extended."""
    if file in SPEAK_FOR_THE_PRODUCT:
        return False
    return file in LONG or file.startswith(LONG_FOLDERS) or not NEEDS_SECONDS_TO_START.isdisjoint(markers)
