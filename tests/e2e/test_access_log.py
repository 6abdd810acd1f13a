"""The table of the access log after each job is compared with an independent parse of the raw files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Checkpoint, options_for
from storage_core.log.job_run import run
from storage_core.log.lease import INTERVAL_MS
from tests.e2e.conftest import LATE_FILE, Story
from tests.e2e.raw_access_log import Line, counted, lines_of
from tests.support.rejected_lines import rejected_lines
from tidemark import Table

pytestmark = pytest.mark.spark


def live_files(story: Story, step: str) -> dict[Path, int]:
    """Return the files of a version, with the window of each."""
    return {story.root / str(file["path"]): int(str(file["window_start"])) for file in story.table(step).files()}


def file_rows(paths: dict[Path, int]) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(path).read().select(list(Line.__dataclass_fields__)) for path in paths)


def test_the_late_file_straddles_windows_that_were_compacted_before(story: Story) -> None:
    late = {line.window for line in story.raw[LATE_FILE].lines}
    early = {line.window for line in story.lines(late=False)}
    assert len(late) == 84
    assert late == early


def test_every_row_is_the_line_that_landed(story: Story) -> None:
    assert counted(story.table("landed").scan().to_arrow()) == counted(story.lines(late=False))
    assert counted(story.table("caught_up").scan().to_arrow()) == counted(story.lines(late=True))


def test_lines_per_status_and_hour_are_those_of_the_raw_file(story: Story) -> None:
    question = """
        SELECT status, epoch(date_trunc('hour', timestamp))::BIGINT AS hour, count(*) AS lines
        FROM t GROUP BY ALL
    """
    answer = story.table("caught_up").sql(question).to_pylist()
    expected = Counter((line.status, line.window) for line in story.lines(late=True))
    assert {(row["status"], row["hour"]): row["lines"] for row in answer} == expected


def test_rows_and_quarantined_lines_are_all_lines_of_the_files(story: Story) -> None:
    quarantined = {
        (entry["source"], entry["line"]): entry["text"] for entry in rejected_lines(story.table("late").store)
    }
    broken = {(name, number): text for name, log in story.raw.items() for number, text in log.broken.items()}
    assert quarantined == broken
    assert len(broken) == 1
    assert Table.open(story.uri).snapshot.rows + len(quarantined) == 10_000


def test_the_files_of_every_version_hold_the_rows_of_their_window_sorted_as_recorded(story: Story) -> None:
    for step in ("landed", "late", "half", "whole"):
        for path, window in live_files(story, step).items():
            file = pq.ParquetFile(path)
            lines = lines_of(file.read())
            assert {line.window for line in lines} == {window}
            assert [line.sort_key for line in lines] == sorted(line.sort_key for line in lines)
            assert file.metadata.metadata[b"tidemark.sort_schema"] == b"status|method|path|timestamp/V2"
            native = [(each.column_index, each.descending) for each in file.metadata.row_group(0).sorting_columns]
            names = [(file.schema_arrow.names[index], descending) for index, descending in native]
            assert names == [("status", False), ("method", False), ("path", False), ("timestamp", True)]


@pytest.mark.parametrize("step", ["compacted", "whole"])
def test_compaction_leaves_one_split_per_window_that_has_lines(story: Story, step: str) -> None:
    windows = Counter(live_files(story, step).values())
    assert windows == Counter({line.window for line in story.lines(late=step == "whole")})


def test_compaction_of_a_range_leaves_the_other_windows_alone(story: Story) -> None:
    late, half = live_files(story, "late"), live_files(story, "half")
    border = 1431993600  # 2015-05-19T00:00
    assert {path for path, window in late.items() if window >= border} < set(half)
    assert not {path for path, window in late.items() if window < border} & set(half)
    assert max(Counter(window for window in half.values() if window < border).values()) == 1


@pytest.mark.parametrize(("before", "after"), [("landed", "compacted"), ("late", "half"), ("half", "whole")])
def test_compaction_keeps_every_row(story: Story, before: str, after: str) -> None:
    # Compare the rows of the files, and then the rows that time travel reads. The older version must be unchanged.
    assert counted(file_rows(live_files(story, before))) == counted(file_rows(live_files(story, after)))
    assert counted(story.table(before).scan().to_arrow()) == counted(story.table(after).scan().to_arrow())
    assert story.version(after) == story.version(before) + 1
    table = Table.open(story.uri)
    question = "SELECT status, count(*) AS lines, sum(bytes) AS bytes FROM t GROUP BY status ORDER BY status"
    assert table.sql(question, at=story.version(before)) == table.sql(question, at=story.version(after))


def test_a_report_counts_every_put_and_every_byte_of_all_tasks(story: Story) -> None:
    kept = {
        "landed": "splits/",
        "compacted": "splits/",
        "late": "splits/",
        "whole": "splits/",
        "caught_up": "_indices/",
    }
    leases = {"landed": 0, "compacted": 1, "late": 0, "whole": 1, "caught_up": 2}  # one lease per compaction or index
    for name, prefix in kept.items():
        report, files = story.steps[name].report, story.steps[name].new_files
        metrics = report.metrics
        results = {key: size for key, size in files.items() if key.startswith(prefix)}
        made = [key for key in files if not key.startswith("_locks/")]
        assert report.status == "committed"
        # Apart from leases, no object is replaced. Each PUT outside of `_locks/` therefore made one file. Each of these
        # files is a result, a version, or the quarantine.
        beats = leases[name] * int(report.seconds * 1000 // INTERVAL_MS)  # a slow run renews its leases
        assert 0 <= report.requests["put"] - len(made) - leases[name] <= beats, name
        assert (metrics.splits_out, metrics.bytes_out) == (len(results), sum(results.values())), name
        assert report.requests["get"] >= metrics.splits_in, name
        assert 0 < report.spark_seconds <= report.seconds, name


def test_a_report_and_the_history_of_the_table_give_the_same_metrics(story: Story) -> None:
    history = {entry.version: entry for entry in Table.open(story.uri).history()}
    for step in story.steps.values():
        entry, report = history[step.report.version], step.report
        assert entry.commit_id == report.commit_id
        assert dict(entry.metrics) == report.metrics.as_mapping()
    whole = story.steps["whole"].report.metrics
    assert whole.rows_in == whole.rows_out
    assert whole.splits_in - whole.splits_out == len(live_files(story, "half")) - len(live_files(story, "whole"))
    landed = story.steps["landed"].report.metrics
    assert (landed.rows_in, landed.rows_out) == (9_565, 9_564)


def test_every_job_run_again_has_nothing_to_do_and_starts_no_spark(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Checkpoint(table_uri=story.uri), Spark())
    files = without_the_collectors_own(story.root)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    for job in ("ingest", "merge", "compact", "catch_up", "checkpoint", "collect"):
        report = run(options_for(job, table_uri=story.uri), Spark())
        assert (report.job, report.status) == (job, "nothing_to_do")
        assert (report.spark_seconds, report.commit_id) == (0.0, None)
    assert Table.open(story.uri).version == story.version("caught_up")
    assert without_the_collectors_own(story.root) == files


def without_the_collectors_own(root: Path) -> dict[Path, int]:
    """Return the write time of each file, except two files that the collector writes even if there is nothing to do.

    These files are the lease of the collector, and its note of the segments that the catch-up built and merged.
    """
    own = {root / "_locks/collect.json", root / "_gc/candidates.json"}
    files = {path for path in root.rglob("*.*") if path.is_file()} - own
    return {path: path.stat().st_mtime_ns for path in files}
