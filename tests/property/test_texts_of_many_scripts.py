"""Full-text queries match plain Python for long words, scripts without spaces, combining marks and line breaks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.text_files import Searcher, open_searcher
from tests.support.listed_hits import listed
from tests.support.scale import scaled
from tests.support.words import begins, contains, near, words

TOKENIZERS = ("default", "raw", "whitespace", "cjk", "ngram_2_2", "ngram_2_3", "ngram_3_10")
LONG = ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "x" * 39, "x" * 40, "ab" * 150, "東京" * 30)
SCRIPTS = ("ΟΔΟΣ", "ΑΘΗΝΑΣ", "αθηνας", "Straße", "हिन्दी", "भाषा", "বাংলা", "ที่", "مُحمد", "ኢትዮጵያ", "cafe\u0301s", "தமிழ்")
UNSPACED = ("東京都", "京東", "カタカナー", "ひらがな", "서울에서", "서울", "東京tower2", "2024年", "漢字かな交じり文")
PARTS = ("abcd", "cdbcab", "ab", "b", "A", "x86", "a_b", "main.py", "<b>", "[x]y", "$1.5")
BETWEEN = (" ", "", "-", "\n", "\r\n", "\u2028", "\t", "、", ". ")

pieces = st.sampled_from([*LONG, *SCRIPTS, *UNSPACED, *PARTS])
texts = st.lists(st.tuples(pieces, st.sampled_from(BETWEEN)), min_size=1, max_size=5).map(
    lambda found: "".join(part for each in found for part in each)
)


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Generate texts and search terms. Each search term is a part of a text, which need not be a generated row."""
    rows = draw(st.lists(texts, min_size=2, max_size=6))
    wanted = []
    for _ in range(8):
        source = draw(st.sampled_from(rows) | texts)
        start = draw(st.integers(0, len(source) - 1))
        wanted.append(source[start : start + draw(st.integers(1, 300))])
    return rows, wanted


@settings(max_examples=scaled(15), deadline=None)
@given(tokenizer=st.sampled_from(TOKENIZERS), search=searches())
def test_a_query_finds_the_texts_that_have_it(tokenizer: str, search: tuple[list[str], list[str]]) -> None:
    rows, wanted = search
    with tempfile.TemporaryDirectory() as folder:
        definition, searcher = indexed(rows, tokenizer, Path(folder))
        for asked in wanted:
            has_words = bool(asked if tokenizer.startswith("ngram") else words(tokenizer, asked))
            expected = {row for row, text in enumerate(rows) if has_words and contains(tokenizer, text, asked)}
            assert found(searcher, definition, quoted(asked), len(rows)) == expected, asked
            for prefix in prefixes(tokenizer, asked):
                fitting = {row for row, text in enumerate(rows) if begins(tokenizer, text, prefix)}
                assert found(searcher, definition, f"{escaped(prefix)}*", len(rows)) == fitting, prefix
                others = {*range(len(rows))} - fitting
                assert found(searcher, definition, f"NOT {escaped(prefix)}*", len(rows)) == others, prefix


@settings(max_examples=scaled(25), deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=7), min_size=1, max_size=8),
    phrase=st.lists(st.sampled_from("abc"), min_size=2, max_size=4),
    slop=st.integers(0, 4),
)
def test_a_sloppy_phrase_moves_its_words_by_so_many_places(rows: list[list[str]], phrase: list[str], slop: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        definition, searcher = indexed([" ".join(each) for each in rows], "default", Path(folder))
        expected = {row for row, text in enumerate(rows) if near(text, phrase, slop)}
        assert found(searcher, definition, f"{quoted(' '.join(phrase))}~{slop}", len(rows)) == expected


@pytest.mark.parametrize("tokenizer", ["default", "en_stem", "whitespace", "cjk", "raw"])
def test_a_word_is_found_up_to_the_longest_that_an_index_has(tokenizer: str, tmp_path: Path) -> None:
    rows = ["x" * size for size in (39, 40, 255, 32_768, 65_530)]
    definition, searcher = indexed(rows, tokenizer, tmp_path)
    for row, text in enumerate(rows):
        assert found(searcher, definition, text, len(rows)) == {row}
        assert found(searcher, definition, f"* -{text}", len(rows)) == {*range(len(rows))} - {row}


def test_a_word_that_no_index_has_finds_nothing_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    longer = "東" * 21_844
    definition, searcher = indexed([f"{longer} tide", "tide", "ebb"], "default", tmp_path)
    for query, expected in ((longer, set()), (f"tide AND {longer}", set()), (f"tide -{longer}", {0, 1})):
        hits = listed(fulltext.parse(query, definition).hits(searcher, 3))
        assert {hit.source + hit.row for hit in hits} == expected
        assert "has 65,532 bytes. An index has no word of more than 65,530 bytes, so it matches nothing" in caplog.text
        caplog.clear()
        with pytest.raises(InvalidInput, match="has 65,532 bytes"):
            fulltext.parse(query, definition, syntax="strict")


def indexed(rows: Sequence[str], tokenizer: str, folder: Path) -> tuple[IndexDefinition, Searcher]:
    """Return an index with two segments: the first row, and all other rows."""
    definition = IndexDefinition("text", "fulltext", ("body",), {"tokenizer": tokenizer})
    parts = []
    for number, own in enumerate((rows[:1], rows[1:])):
        parts.append(folder / str(number))
        parts[-1].mkdir()
        for name, data in fulltext.build(pa.table({"body": pa.array(own, pa.string())}), definition).items():
            (parts[-1] / name).write_bytes(data)
    return definition, open_searcher(parts, definition, folder)


def found(searcher: Searcher, definition: IndexDefinition, query: str, count: int) -> set[int]:
    hits = listed(fulltext.parse(query, definition, syntax="strict").hits(searcher, count))
    return {hit.source + hit.row for hit in hits}


def quoted(text: str) -> str:
    return f'"{text}"'


def escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in '+^`:{}"[]()!\\* ' else each for each in text)


def prefixes(tokenizer: str, text: str) -> Iterable[str]:
    """Return the prefixes of a text that a query may contain before the wildcard `*`.

    Each prefix consists of plain characters of one word, or of ideographs.
    """
    for size in (2, 3, 7, 41, 250):
        prefix = text[:size]
        is_plain = len(prefix) == size and prefix[0].isalnum() and not set(prefix) & {*"<>[]$-_. \t\r\n\u2028、"}
        is_one = len(words(tokenizer, prefix)) == 1 or tokenizer.startswith("ngram")
        if (
            is_plain
            and len(prefix.encode()) <= 150
            and (is_one or len(words(tokenizer, f"{prefix}x")) > len(words(tokenizer, prefix)))
        ):
            yield prefix
