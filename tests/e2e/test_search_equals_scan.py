"""Search returns the rows of a scan with the same condition, for any index coverage of the splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from tests.e2e.conftest import Story
from tests.e2e.raw_access_log import Line, counted, lines_of, words

pytestmark = pytest.mark.spark

EVERYTHING = 100_000

# At each step, index segments cover no split, all splits, or some splits. Only the last four steps contain the
# late rows.
WITHOUT_LATE = ("landed", "compacted", "indexed")
WITH_LATE = ("late", "half", "whole", "caught_up")
STEPS = (*WITHOUT_LATE, *WITH_LATE)


def has_phrase(line: Line, *phrase: str) -> bool:
    texts = [words(text) for text in (line.request, line.agent)]
    return any(tuple(text[start : start + len(phrase)]) == phrase for text in texts for start in range(len(text)))


# Queries in tantivy's syntax, and their expected meaning.
TEXT_QUERIES: dict[str, Callable[[Line], bool]] = {
    "KIBANA": lambda line: "kibana" in line.words,
    "googlebot favicon": lambda line: bool({"googlebot", "favicon"} & line.words),
    "+logstash -monitorama agent:windows": lambda line: "logstash" in line.words and "monitorama" not in line.words,
    '"logstash monitorama 2013"': lambda line: has_phrase(line, "logstash", "monitorama", "2013"),
    "agent:bot AND request:robots": lambda line: "bot" in words(line.agent) and "robots" in words(line.request),
}

STATUS_QUERIES: dict[str, tuple[str, set[int]]] = {
    "404": ("status = 404", {404}),
    "[403, 500]": ("status IN (403, 500)", {403, 500}),
    "418": ("status = 418", set()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


@pytest.fixture(scope="module")
def scanned(story: Story) -> Callable[[str], list[Line]]:
    """Return a function that returns the scan result at a step. The table is scanned once per step."""
    return cache(lambda step: lines_of(story.table(step).scan().to_arrow()))


def found(rows: pa.Table) -> list[Line]:
    return lines_of(rows.drop_columns(["score"]))


@pytest.mark.parametrize("index", ["text", "status"])
def test_the_steps_are_an_absent_a_complete_and_a_lagging_index(story: Story, index: str) -> None:
    covered = {}
    for step in STEPS:
        (explained,) = story.table(step).explain_search(index=index).indexes
        segments, scanned = explained.segments, explained.scanned
        assert {*segments, *scanned} == set(story.table(step).snapshot.splits)
        covered[step] = (len(segments), len(scanned))
        watermark, version = explained.watermark, story.version(step)
        assert isinstance(watermark, int)
        assert (watermark == version) if not scanned else (watermark < version)
    assert covered == {
        "landed": (0, 86),
        "compacted": (0, 84),
        "indexed": (84, 0),
        "late": (84, 84),
        "half": (84, 84),  # segments also cover rows that a compaction only moved to another split
        "whole": (84, 84),
        "caught_up": (84, 0),
    }


@pytest.mark.parametrize("steps", [WITHOUT_LATE, WITH_LATE], ids=["without_late", "with_late"])
@pytest.mark.parametrize("query", TEXT_QUERIES)
def test_full_text_search_finds_the_rows_with_these_words_and_scores_them_alike_whatever_is_covered(
    story: Story, folder: Path, scanned: Callable[[str], list[Line]], steps: tuple[str, ...], query: str
) -> None:
    means = TEXT_QUERIES[query]
    landed = counted(line for line in story.lines(late=steps == WITH_LATE) if means(line))
    scored = []
    for step in steps:
        table = story.table(step)
        answer = table.search(query, index="text", limit=EVERYTHING, cache_dir=folder)
        lines = found(answer)
        assert counted(lines) == counted(line for line in scanned(step) if means(line)) == landed
        scores = answer["score"].to_pylist()
        assert scores == sorted(scores, reverse=True)
        scored.append(Counter(zip(lines, scores, strict=True)))
    assert all(each == scored[0] for each in scored)
    assert len({score for _, score in scored[0]}) > 1


@pytest.mark.parametrize("step", ["landed", "half", "caught_up"])
def test_the_best_rows_are_the_first_of_all_rows(story: Story, folder: Path, step: str) -> None:
    table = story.table(step)
    everything = table.search("googlebot favicon", index="text", limit=EVERYTHING, cache_dir=folder)
    assert table.search("googlebot favicon", index="text", limit=10, cache_dir=folder) == everything.slice(0, 10)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("query", STATUS_QUERIES)
def test_a_bitmap_search_finds_the_rows_that_are_equal(story: Story, folder: Path, step: str, query: str) -> None:
    table, (condition, values) = story.table(step), STATUS_QUERIES[query]
    answer = table.search(query, index="status", limit=EVERYTHING, cache_dir=folder)
    landed = [line for line in story.lines(late=step in WITH_LATE) if line.status in values]
    assert counted(found(answer)) == counted(table.scan(filter=condition).to_arrow()) == counted(landed)
    assert set(answer["score"].to_pylist()) == ({1.0} if values else set())
