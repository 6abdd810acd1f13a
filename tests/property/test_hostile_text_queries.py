"""For any text of a full-text query, the query finds rows or is refused, and the process survives."""

from __future__ import annotations

import math
import random
import re
import tempfile
from pathlib import Path

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.fulltext import matches, number_of_matches, snippets
from storage_core.index.text_files import open_searcher
from storage_core.index.text_queries import MAX_CHARACTERS
from tests.support.hostile_worker import survives, work
from tests.support.listed_hits import listed
from tests.support.scale import scaled

DEFINITION = IndexDefinition("text", "fulltext", ("body", "head"), {"tokenizer.head": "ngram_2_3"})
ROWS = pa.table({"body": ["ebb tide", "flood tide", "ebb flood", None], "head": ["a", "neap", None, "spring tide"]})
PIECES = (
    *(
        "_row:",
        "ebb*",
        "*",
        "/*",
        "~1",
        "main.py*",
        "e\u0301*",
        "x" * 300 + "*",
        "東京*",
        '"a b c"~3',
        '"*',
        "भा*",
        "~",
    ),
    *("ebb", "tide", "a", "body:", "head:", "none:", "(", ")", "NOT ", "AND ", "OR ", "NOT", "TO", " TO ", "IN ["),
    *("-", "+", '"', "'", "^", "^2", "^0", "~", "~2", "~4294967295", "[", "]", "{", "}", "*", "/", "\\", ":", " "),
    *(
        "<",
        ">",
        "<=",
        "\n",
        "\0",
        "\ud800",
        "\u202e",
        "日本",
        "🌊",
        "`",
        "!",
        "1e999",
        "^1e9",
        "9" * 400,
        "2020-01-01T00",
    ),
)
WRAPPERS = (
    *(
        ("(", ")"),
        ("(a ", ")"),
        ("NOT ", ""),
        ("-(", ")"),
        ("-(a ", ")"),
        ("+(", " b)"),
        ("(NOT ", ")"),
        ("body:(", ")"),
    ),
    *(("(a OR ", ")"), ("(a AND NOT ", ")"), ("(", ")^2"), ("a ", ""), ("a OR ", ""), ("a AND ", ""), ("", " b")),
    *(('"', '"'), ("[", "]"), ("\\", ""), ("body:IN [", "]"), ("", "^9"), ("/", "/"), ("w", ""), ("-", ""), ("", "~9")),
)
LONGEST_ERROR = 2_000
SNIPPETS_SHARE = 0.1


def query(chance: random.Random) -> str:
    """Return a random query: fragments in a row, a fragment in many brackets or operators, or nested fragments."""
    chain = "".join(chance.choices(PIECES, k=chance.randint(1, 12)))
    if chance.random() < 0.4:
        return chain
    before, after = chance.choice(WRAPPERS)
    times = int(10 ** chance.uniform(0, 4.5))
    inner = chance.choice(["ebb", "", chain, " ".join(f"w{number}" for number in range(min(times, 500)))])
    wrapped = before * times + inner + after * (times if chance.random() < 0.8 else times // 2)
    return wrapped if chance.random() < 0.7 else f"{chain} {wrapped} {chain}"


class Searched:
    """One segment over `ROWS`, and checks of what queries find in it."""

    def __init__(self, folder: Path) -> None:
        part = folder / "part"
        part.mkdir()
        for name, data in fulltext.build(ROWS, DEFINITION).items():
            (part / name).write_bytes(data)
        self.searcher = open_searcher([part], DEFINITION, folder)

    def judge(self, chance: random.Random) -> str | None:
        text, syntax = query(chance), chance.choice(fulltext.SYNTAXES)
        try:
            parsed = fulltext.parse(text, DEFINITION, syntax=syntax)
            hits = listed(parsed.hits(self.searcher, 100))
        except InvalidInput as error:
            if syntax == fulltext.LENIENT and len(text) <= MAX_CHARACTERS:
                return f"a lenient search failed: {error}"
            return None if len(str(error)) <= LONGEST_ERROR else f"an error of {len(str(error))} characters"
        if not all(math.isfinite(hit.score) and 0 <= hit.row < ROWS.num_rows for hit in hits):
            return f"{hits} for {text[:200]!r}"
        matching = [row for _, rows in matches(parsed, self.searcher) for row in rows]
        if matching != sorted(hit.row for hit in hits) or number_of_matches(parsed, self.searcher) != len(hits):
            return f"{matching} match, {hits} are found for {text[:200]!r}"
        if chance.random() < SNIPPETS_SHARE:
            for row, found in zip(ROWS.to_pylist(), snippets(parsed, ROWS).to_pylist(), strict=True):
                if any(found[name] and re.sub("</?b>", "", found[name]) not in row[name] for name in found):
                    return f"{found} for {text[:200]!r}"
        return None


def test_any_text_finds_rows_or_is_refused() -> None:
    survives("tests.property.test_hostile_text_queries", scaled(1000))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        work(Searched(Path(place)).judge)
