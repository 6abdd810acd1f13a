"""Faults that are planted one by one, to see that the tests of `make check` catch each: `make planted-faults`.

    python -m tests.planted_faults [SEED]

Each fault breaks one guarantee of the README or one row of docs/architecture/lessons.md by a change of one place. It is
planted in a copy of the tree. The tests beside it run as in the check: at half the scale, with the cases that SEED
draws. One of them has to fail. Prints a line per fault, and ends with 1 when a fault passes every test.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 900


@dataclass(frozen=True, slots=True)
class Fault:
    """A guarantee, the place that keeps it (`before` occurs once in `file`), how it breaks, and the tests of it."""

    guarantee: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "01 a commit whose reply is lost is recognized as our own",
        "storage_core/log/commit.py",
        "return info is not None and info.commitId == commit_id",
        "return info is None",
        ("tests/unit/test_log_lost_replies.py", "tests/simulation/test_log_under_faults.py"),
    ),
    Fault(
        "03 a repeated job is found by its transaction",
        "storage_core/log/conflicts/settle.py",
        "    return bool(recorded)\n",
        "    return False\n",
        ("tests/unit/test_log_commit.py", "tests/property/test_log_state_machine.py"),
    ),
    Fault(
        "07 the next lease has a higher token",
        "storage_core/leases/lease.py",
        "return max(recorded, current.record.fencing_token) + 1",
        "return max(recorded, current.record.fencing_token)",
        ("tests/unit/test_lease.py", "tests/property/test_leases.py"),
    ),
    Fault(
        "10 a maintainer that lost its lease commits nothing",
        "storage_core/log/conflicts/settle.py",
        "if isinstance(action, Fence) and action.token < head.fences.get(action.resource, action.token):",
        "if isinstance(action, Fence) and action.token < 0:",
        ("tests/unit/test_conflict_table.py", "tests/property/test_log_state_machine.py"),
    ),
    Fault(
        "13 a commit conflicts with other deletes of a split that it removes",
        "storage_core/log/conflicts/splits.py",
        "if live.deleted_rows != (None if seen is None else seen.deleted_rows):",
        "if live is seen is None:",
        ("tests/unit/test_conflict_table.py",),
    ),
    Fault(
        "25 merged generations follow each other without a gap",
        "storage_core/log/conflicts/requirements.py",
        "        recorded = head.merged_generations.get(self.region, 0)\n        if recorded != self.after:",
        "        recorded = head.merged_generations.get(self.region, 0)\n        if recorded < 0:",
        ("tests/unit/test_conflict_table.py", "tests/property/test_log_state_machine.py"),
    ),
    Fault(
        "a row is durable before it is acknowledged",
        "storage_core/region/group_commit.py",
        "        self._finish([call])\n",
        "        self._wake_timer()\n",
        ("tests/unit/test_group_commit.py", "tests/simulation/test_writer_crash_matrix.py"),
    ),
    Fault(
        "a second writer fences the first",
        "storage_core/region/wal.py",
        "            check_epoch(self.store, self.region, self.epoch)\n            self._require_earlier()\n",
        "            self._require_earlier()\n",
        ("tests/unit/test_region_writer.py", "tests/simulation/test_writer_crash_matrix.py"),
    ),
    Fault(
        "a copy of a writer acknowledges nothing into the entries of the other",
        "storage_core/region/wal.py",
        "        if found.writer_epoch >= self.epoch:",
        "        if found.writer_epoch > self.epoch:",
        ("tests/property/test_copied_writers.py", "tests/integration/test_forked_writers.py"),
    ),
    Fault(
        "what a fenced writer left behind a sentinel was not acknowledged and is not read",
        "storage_core/region/wal.py",
        "if each.entry.writer_epoch == highest and not each.entry.is_sentinel:",
        "if not each.entry.is_sentinel:",
        (
            "tests/unit/test_region_writer.py",
            "tests/unit/test_wal_tail.py",
            "tests/simulation/test_writers_under_faults.py",
        ),
    ),
    Fault(
        "a missing entry in the middle of a log is an error",
        "storage_core/region/wal.py",
        "if not (any(later) if later else exists(store, keys.wal_entry_key(region, entry + 1))):",
        "if True:",
        ("tests/unit/test_wal_tail.py", "tests/property/test_hostile_region_objects.py"),
    ),
    Fault(
        "the newest record of a key wins",
        "storage_core/rows/fold.py",
        "given = fold(pa.concat_tables([puts(base), given]), key)",
        "given = fold(pa.concat_tables([given, puts(base)]), key)",
        ("tests/unit/test_rows_fold.py", "tests/property/test_rows_folding.py"),
    ),
    Fault(
        "26 a delete beside a compaction is carried over",
        "storage_core/compaction/carry_over.py",
        "        return {number: rows for number, rows in newly.items() if rows}",
        "        return {}",
        ("tests/unit/test_carry_over.py", "tests/simulation/test_compaction_schedules.py"),
    ),
    Fault(
        "MC-2 an audit finds a value that a compaction changed",
        "storage_core/compaction/invariants.py",
        "    elif before != after:",
        "    elif before.rows < 0:",
        ("tests/unit/test_compaction_invariants.py", "tests/unit/test_audit_merges.py"),
    ),
    Fault(
        "CS-2 a compaction stays in one window",
        "storage_core/compaction/invariants.py",
        "    if windows != {window}:",
        "    if not windows:",
        ("tests/unit/test_compaction_invariants.py", "tests/unit/test_audit_merges.py"),
    ),
    Fault(
        "40 age counts from the removing commit",
        "storage_core/gc/mark.py",
        "since_ms=removal.timestamp_ms if removal else objects[key].last_modified_ms,",
        "since_ms=objects[key].last_modified_ms,",
        ("tests/unit/test_garbage_collection.py", "tests/property/test_collection_safety.py"),
    ),
    Fault(
        "43 what is committed during a sweep stays",
        "storage_core/gc/sweep.py",
        "_delete(store, [each for each in batch if each.key not in named], swept)",
        "_delete(store, [each for each in batch if named is not None], swept)",
        (
            "tests/unit/test_garbage_collection.py",
            "tests/unit/test_restore_and_collection.py",
            "tests/simulation/test_overlapping_collections.py",
        ),
    ),
    Fault(
        "06 the boundary moves before a version is deleted",
        "storage_core/gc/sweep.py",
        "        advance_boundary(store, marked.roots.first_version, nonce=log.ids.uuid())\n",
        "        store.head(gc_candidates_key())\n",
        ("tests/unit/test_garbage_collection.py", "tests/simulation/test_collection_crashes.py"),
    ),
    Fault(
        "a second collector stops the first",
        "storage_core/gc/sweep.py",
        "    if store.head(gc_candidates_key()).etag != plan.etag:",
        "    if store.head(gc_candidates_key()).etag == '':",
        ("tests/unit/test_garbage_collection.py", "tests/simulation/test_overlapping_collections.py"),
    ),
    Fault(
        "a tag keeps what its version names",
        "storage_core/gc/retention.py",
        "    older = [_tagged(log, tag) for tag in live if tag.version < base.version]",
        "    older = [_tagged(log, tag) for tag in live if tag.version < 0]",
        ("tests/unit/test_tags.py", "tests/unit/test_garbage_collection.py"),
    ),
    Fault(
        "a generation that is not merged stays",
        "storage_core/gc/mark.py",
        "            if parsed.directory in region.unmerged_directories:",
        "            if parsed.directory == region:",
        ("tests/unit/test_region_collection.py", "tests/property/test_collection_safety.py"),
    ),
    Fault(
        "65 windows before 1970 are rounded down",
        "storage_core/rows/windows.py",
        "    return seconds - seconds % duration",
        "    return int(seconds / duration) * duration",
        ("tests/unit/test_rows_windows.py", "tests/property/test_rows_window_floor.py"),
    ),
    Fault(
        "62 a column with NaN has NaN as its upper bound",
        "storage_core/rows/statistics.py",
        '    return (bounds["min"] if bounds["min"].is_valid else nan), nan',
        '    return bounds["min"], bounds["max"]',
        ("tests/unit/test_rows_statistics.py", "tests/property/test_pruning_keeps_answers.py"),
    ),
    Fault(
        "pruning leaves out no split that may match",
        "storage_core/read/compared_bounds.py",
        "            return at_most(bounds.low(), wanted.greatest)\n        case Comparison.GT:",
        "            return at_most(bounds.low(), wanted.greatest, strictly=True)\n        case Comparison.GT:",
        ("tests/unit/test_pruning.py", "tests/property/test_pruning_keeps_answers.py"),
    ),
    Fault(
        "a row exactly at the bound is in time",
        "storage_core/rows/late.py",
        "pc.less(ticks, bounds)",
        "pc.less_equal(ticks, bounds)",
        ("tests/unit/test_rows_late.py", "tests/property/test_late_data.py"),
    ),
    Fault(
        "every window of a landed file is ingested exactly once",
        "storage_core/ingest/progress.py",
        '    mark = "null" if window is None else f"{window}" if seconds is None else f"{window}+{seconds}"',
        '    mark = "null" if window is None else f"{window}+{seconds}"',
        ("tests/unit/test_landing.py", "tests/unit/test_ingest_batch.py", "tests/property/test_ingest_exactly_once.py"),
    ),
    Fault(
        "61 an object of another path is Corrupt",
        "storage_core/split/verification.py",
        "    if claimed is not None and claimed != add.path:",
        "    if claimed is not None and not claimed:",
        (
            "tests/unit/test_split_files.py",
            "tests/unit/test_split_reading.py",
            "tests/integration/test_corruption_matrix.py",
        ),
    ),
    Fault(
        "80 a key never leaves the table",
        "storage_core/objectstore/key_safety.py",
        'if any(segment in ("", ".", "..") for segment in segments)',
        'if any(segment in ("", ".") for segment in segments)',
        ("tests/unit/test_memory_store.py", "tests/unit/test_local_store.py"),
    ),
    Fault(
        "an object that exists is never created again, also by a process that races",
        "storage_core/objectstore/local.py",
        "os.link(temporary, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)",
        "os.replace(temporary, name, src_dir_fd=source, dst_dir_fd=folder)",
        ("tests/unit/test_local_store.py", "tests/integration/test_log_two_processes.py"),
    ),
    Fault(
        "09 an object is replaced only by who saw its present content",
        "storage_core/objectstore/memory.py",
        "            return current is not None and current.etag == etag",
        "            return current is not None and bool(etag)",
        ("tests/unit/test_memory_store.py",),
    ),
    Fault(
        "a search reads the rows that no segment covers",
        "storage_core/index/coverage.py",
        "        missing=tuple(snapshot.splits[path] for path in traces.origins),\n        origins=",
        "        missing=(),\n        origins=",
        ("tests/integration/test_index_search.py",),
    ),
    Fault(
        "a deleted row is in no answer",
        "storage_core/read/deleted_rows.py",
        "    return {add.path: rows for add, rows in zip(marked, found, strict=True)}",
        "    return {add.path: rows for add, rows in zip(marked, found, strict=True) if len(rows) > 1}",
        ("tests/integration/test_deleted_rows.py",),
    ),
    Fault(
        "83 a query calls known functions only",
        "storage_core/engine/statement.py",
        'if name not in _CALLED or node.get("export_state"):',
        "if not name:",
        ("tests/integration/test_refusals.py", "tests/integration/test_sql_attacks.py"),
    ),
    Fault(
        "85 a location with a secret is not repeated",
        "storage_core/foreign_text.py",
        'return _LOCATION.sub(r"\\1…", text)',
        "return text",
        ("tests/unit/test_foreign_text.py", "tests/unit/test_secrets_in_locations.py"),
    ),
    Fault(
        "time travel finds the newest version at or before a time",
        "storage_core/log/replay.py",
        "    if head.timestamp <= timestamp_ms:",
        "    if head.timestamp < timestamp_ms:",
        ("tests/unit/test_log_opening.py", "tests/unit/test_as_of.py"),
    ),
)


def main(arguments: list[str]) -> int:
    """Plant each fault in turn, and print which test catches it. Return 1 when none catches one."""
    seed = arguments[0] if arguments else str(random.SystemRandom().randrange(10**6))
    print(f"{len(FAULTS)} faults, cases drawn by TIDEMARK_DRAW={seed}", flush=True)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _copy(tree)
        for fault in FAULTS:
            caught = _caught_by(fault, tree, seed)
            missed += caught is None
            print(
                f"{'caught' if caught else 'MISSED'}: {fault.guarantee}: {caught or ', '.join(fault.tests)}", flush=True
            )
    print(f"{len(FAULTS) - missed} of {len(FAULTS)} faults are caught")
    return min(missed, 1)


def planted(fault: Fault, text: str) -> str:
    """Return the text of the fault's file with the fault in it. Raises `ValueError` unless it has one such place."""
    if text.count(fault.before) != 1:
        raise ValueError(f"{fault.file} has {text.count(fault.before)} places of: {fault.guarantee}")
    return text.replace(fault.before, fault.after)


def _copy(tree: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)


def _caught_by(fault: Fault, tree: Path, seed: str) -> str | None:
    """Return the first test that fails with the fault planted; None when all pass."""
    file = tree / fault.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(planted(fault, sound), encoding="utf-8")
    try:
        return next(_failures(fault, tree, seed), None)
    finally:
        file.write_text(sound, encoding="utf-8")


def _failures(fault: Fault, tree: Path, seed: str) -> Iterator[str]:
    environment = {**os.environ, "TIDEMARK_DRAW": seed, "TIDEMARK_SCALE": "0.5", "PYTHONPATH": str(tree)}
    for tests in fault.tests:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not nightly", "-p", "no:cacheprovider", tests]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        if failed:
            yield failed[1]
        elif done.returncode:
            raise RuntimeError(f"{tests} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
