"""Searches of 200,000 lines of an access log, each with a different question, compared to tantivy with stored lines.

The log has 10,000 real lines. Each copy of the 10,000 lines has times that are four days later than in the copy before.
Many lines therefore have equal scores, as in any log with repeated lines. Each question is a random choice of words,
where frequent words are chosen more often. No question is asked twice. Tidemark and tantivy return the text of ten
lines, and their scores must be equal. The index of tantivy is in memory, and the table is on a local disk.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import tantivy

import tidemark as tm
from benchmarks.metrics import Metric, command, seconds
from examples.datasets import access_log_lines
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import text_files
from tests.support.upkeep import catch_up

COPIES = 20
QUESTIONS = 100
"""The number of questions of each kind."""
ROWS = 10
AIMS_MS = {50: 3.0, 95: 8.0}
"""The maximum time in milliseconds for each percentile."""
_DAYS = 4
_WORD = re.compile(r"[a-z]{3,}")


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield percentiles of the milliseconds of a search, for each kind of question."""
    lines, copies = (access_log_lines()[:2_000], 2) if small else (access_log_lines(), COPIES)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        table, alone = _written(Path(folder), lines, copies)
        searcher = alone.searcher()

        def ours(question: str) -> list[float]:
            found = table.search(question, index="words", limit=ROWS, cache_dir=Path(folder) / "cache")
            return sorted(found.column("score").to_pylist(), reverse=True)

        def theirs(question: str) -> list[float]:
            hits = searcher.search(alone.parse_query(question, ["line"]), limit=ROWS, count=False).hits
            texts = [searcher.doc(address)["line"] for _, address in hits]
            return [score for (score, _), _ in zip(hits, texts, strict=True)]

        ours("warm AND up")
        for kind, questions in _questions(lines, 5 if small else QUESTIONS).items():
            yield from _compared(f"{copies * len(lines):,} log lines, {kind}", questions, ours, theirs)


def _compared(
    name: str, questions: Sequence[str], ours: Callable[[str], list[float]], theirs: Callable[[str], list[float]]
) -> Iterator[Metric]:
    """Yield the time percentiles of Tidemark and tantivy. Each system in turn answers each question once."""
    times, peers = [], []
    for question in questions:
        found, expected = list[float](), list[float]()
        times.append(1000 * seconds(lambda: found.extend(ours(question))))  # noqa: B023
        peers.append(1000 * seconds(lambda: expected.extend(theirs(question))))  # noqa: B023
        if not np.allclose(found, expected, rtol=1e-4):
            raise AssertionError(f"{question!r}: scores {found}, tantivy alone {expected}")
    for percentile, aim_ms in AIMS_MS.items():
        own, peer = np.percentile(times, percentile), np.percentile(peers, percentile)
        label = f"{name}, p{percentile}"
        yield Metric(name=label, value=own, unit="ms", against=f"{aim_ms:g} ms", ratio=aim_ms / own, aim=1)
        yield Metric(name=f"{label}, tantivy with lines", value=peer, unit="ms", against="ours", ratio=own / peer)


def _questions(lines: Sequence[str], count: int) -> Mapping[str, Sequence[str]]:
    """Return distinct questions of each kind. The same lines always result in the same questions."""
    random = np.random.default_rng(11)
    frequency = Counter(word for line in lines for word in {*_WORD.findall(line.lower())})
    common = [word for word, found in frequency.most_common() if found >= len(lines) // 100]
    middle = [word for word, found in frequency.items() if 10 <= found < len(lines) // 100]
    rare = [word for word, found in frequency.items() if found < 10]
    texts = [_WORD.findall(line.lower()) for line in random.choice(lines, 20 * count).tolist()]
    pairs = [pair for words in texts for pair in pairwise(words)]

    def drawn(*classes: Sequence[str]) -> Iterator[list[str]]:
        while True:
            words = [str(random.choice(each)) for each in classes]
            if len({*words}) == len(words):
                yield words

    kinds: Mapping[str, Iterator[str]] = {
        "two words": (" ".join(words) for words in drawn(common, [*common, *middle])),
        "two words AND": (" AND ".join(words) for words in drawn(common, [*common, *middle])),
        "phrase": (f'"{" ".join(words)}"' for words in pairs),
        "one rare word": (word for [word] in drawn(rare)),
    }
    return {kind: _distinct(questions, count) for kind, questions in kinds.items()}


def _distinct(questions: Iterator[str], count: int) -> Sequence[str]:
    found: dict[str, None] = {}
    for question in questions:
        found[question] = None
        if len(found) == count:
            break
    return [*found]


def _written(root: Path, lines: Sequence[str], copies: int) -> tuple[tm.Table, tantivy.Index]:
    """Return a table with indexed lines, and an index of the same lines in memory."""
    words = IndexDefinition(name="words", kind="fulltext", columns=("line",))
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("line", pa.string())])
    table = tm.Table.create(
        str(root / "table"), schema, time_column="at", window="24h", coarse_window=True, indexes=[words]
    )
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("line", stored=True)
    alone = tantivy.Index(builder.build())
    text_files.register(alone, words)  # the same words as in the table
    writer = alone.writer(num_threads=1)
    times = np.array([_time(line) for line in lines], "datetime64[us]")
    for copy in range(copies):
        at = pa.array(times + np.timedelta64(copy * _DAYS, "D")).cast(schema.field("at").type)
        table.append(pa.table([at, pa.array(lines)], schema=schema))
        for line in lines:
            writer.add_document(tantivy.Document(line=line))
    writer.commit()
    writer.wait_merging_threads()
    alone.reload()
    table.refresh()
    catch_up(table)
    return table.refresh(), alone


def _time(line: str) -> datetime:
    _, _, rest = line.partition("[")
    return datetime.strptime(rest.partition(" ")[0], "%d/%b/%Y:%H:%M:%S")  # noqa: DTZ007  # the lines are in UTC


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
