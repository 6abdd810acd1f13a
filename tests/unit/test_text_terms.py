"""Query words that match several words (`kib*`, `kibana~1`), tokenizers and boosts, compared with plain Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext, segments, text_files
from storage_core.index.text_files import open_searcher
from tests.support.listed_hits import listed
from tests.support.scale import scaled

DEFINITION = IndexDefinition("text", "fulltext", ("head", "body"))
LETTERS = "abcé"
WORD = st.text(LETTERS, min_size=1, max_size=5)


def rows_of(
    tmp_path: Path, rows: pa.Table, definition: IndexDefinition, query: str, **given: object
) -> dict[int, float]:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    for name, data in fulltext.build(rows, definition).items():
        (folder / name).write_bytes(data)
    parsed = fulltext.parse(query, definition, **given)  # type: ignore[arg-type]
    found = parsed.hits(open_searcher([folder], definition, tmp_path), rows.num_rows)
    return {hit.row: round(hit.score, 5) for hit in listed(found)}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def changes(a: str, b: str) -> int:
    """Return the edit distance between two words: insertions, deletions, replacements and swaps of neighbours."""
    far = [[max(i, j) if 0 in (i, j) else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            near = (far[i - 1][j] + 1, far[i][j - 1] + 1, far[i - 1][j - 1] + (a[i - 1] != b[j - 1]))
            swapped = i > 1 and j > 1 and (a[i - 1], a[i - 2]) == (b[j - 2], b[j - 1])
            far[i][j] = min(*near, far[i - 2][j - 2] + 1) if swapped else min(near)
    return far[-1][-1]


@settings(max_examples=scaled(40), deadline=None)
@given(
    texts=st.lists(st.lists(WORD, max_size=4).map(" ".join), min_size=1, max_size=8),
    word=st.text(LETTERS, min_size=2, max_size=4),
    fits=st.sampled_from(["*", "~1", "~2", "~"]),
)
def test_all_words_that_fit_are_found_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], word: str, fits: str
) -> None:
    rows = pa.table({"head": pa.nulls(len(texts), pa.string()), "body": texts})
    fit: Callable[[str], bool] = (
        (lambda each: each.startswith(word))
        if fits == "*"
        else lambda each: changes(each, word) <= int(fits.strip("~") or 1)
    )
    expected = {row for row, text in enumerate(texts) if any(fit(each) for each in words(text))}
    folder = tmp_path_factory.mktemp("terms")
    assert rows_of(folder, rows, DEFINITION, word + fits).keys() == expected
    others = {row for row in range(len(texts)) if row not in expected}
    assert rows_of(folder, rows, DEFINITION, f"NOT {word}{fits}").keys() == others
    assert rows_of(folder, rows, DEFINITION, f"* AND NOT (body:{word}{fits})").keys() == others


def test_a_prefix_has_no_most_number_of_words(tmp_path: Path) -> None:
    rows = pa.table({"head": [f"word{each:04}" for each in range(3_000)], "body": [""] * 3_000})
    assert len(rows_of(tmp_path, rows, DEFINITION, "wo*")) == 3_000


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Kib*", [0, 1]),
        ("body:Kib*", [1]),
        ("kib* AND dash*", [0]),
        ("+kib* -dash*", [1]),
        ("kibana~1 OR nothing", [0, 1]),
        ("head:kibana~2^3", [0]),
        ('"kib*"', []),
        (r"a\.b*", None),
        ("kib-a*", None),
        ("k*", None),
        ("tail:kib*", None),
        ("tail:kibana~1", None),
        (r"kib\*", []),
        ("kibana~3", [1]),  # a phrase of two words
        ("kibana~12", []),
    ],
)
def test_they_stand_wherever_a_word_does(tmp_path: Path, query: str, found: list[int] | None) -> None:
    rows = pa.table({"head": ["Kibana dashboards", "x"], "body": ["", "a kibana 3 12"]})
    if found is None:
        with pytest.raises(InvalidInput, match="Fields are head, body"):
            rows_of(tmp_path, rows, DEFINITION, query, syntax="strict")
    else:
        assert sorted(rows_of(tmp_path, rows, DEFINITION, query)) == found


def test_a_prefix_may_have_900_bytes(tmp_path: Path) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": "raw"})
    rows = pa.table({"head": ["東" * 300 + "\n" + "." * 1_000, "東" * 299 + "西", "." * 1_000]})
    assert sorted(rows_of(tmp_path, rows, definition, "東" * 300 + "*", syntax="strict")) == [0]
    assert sorted(rows_of(tmp_path, rows, definition, "." * 900 + "*", syntax="strict")) == [2]
    with pytest.raises(InvalidInput, match="more than 900 bytes"):
        rows_of(tmp_path, rows, definition, "." * 901 + "*", syntax="strict")


def test_signs_of_regular_expressions_stand_for_themselves(tmp_path: Path) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": "whitespace"})
    texts = ["a.c", "abc", "a+b", "aab", "[x]y", "x^y$z", "a|b", "ab{2}c", "A.C"]
    for prefix in ("a.", "a+", "[x", "x^y$", "a|", "ab{2}"):
        expected = [row for row, text in enumerate(texts) if text.startswith(prefix)]
        escaped = re.sub(r"([+^`:{}\"\[\]()!\\*\s])", r"\\\1", prefix)
        try:
            found = sorted(rows_of(tmp_path, pa.table({"head": texts}), definition, f"{escaped}*", syntax="strict"))
        except InvalidInput:
            assert set(prefix) & set("[^{")  # tantivy's syntax characters, which a word may not contain
        else:
            assert found == expected, prefix


@pytest.mark.parametrize(
    ("tokenizer", "query", "found"),
    [
        ("de_stem", "häuser", [0, 1]),
        ("fr_stem", "maison", [3]),
        ("ngram_2_3", "äus", [0]),
        ("ngram_2_3", "AUS", [1, 2]),
        ("ngram_2_3", "xy", []),
    ],
)
def test_words_are_what_the_tokenizer_makes(tmp_path: Path, tokenizer: str, query: str, found: list[int]) -> None:
    rows = pa.table({"head": ["Häuser am See", "das Haus", "Aussicht", "les maisons"]})
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": tokenizer})
    assert sorted(rows_of(tmp_path, rows, definition, query)) == found


STEMMED = [
    ("en_stem", "running happily", ("running*", "runnin*", "running~1", "happily~2")),
    ("de_stem", "alte Häuser", ("Häuser*", "Häuse*", "Häuser~1")),
    ("fr_stem", "continuellement", ("continuellement*", "continuellement~1")),
    ("el_stem", "λόγος", ("λόγος*", "λόγος~1")),
]


@pytest.mark.parametrize(
    ("tokenizer", "text", "query"), [(a, b, each) for a, b, queries in STEMMED for each in queries]
)
def test_a_prefix_or_fuzzy_word_of_stems_is_refused_or_read_as_the_word(
    tmp_path: Path, tokenizer: str, text: str, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": tokenizer})
    rows = pa.table({"head": [text, "x"]})
    for asked in (query, f"NOT {query}", f"head:{query}"):
        with pytest.raises(InvalidInput, match="has stems, so it finds only whole words"):
            rows_of(tmp_path, rows, definition, asked, syntax="strict")
    word = query.rstrip("*12~")
    for one, other in ((query, word), (f"NOT {query}", f"NOT {word}"), (f"x AND NOT {query}", f"x AND NOT {word}")):
        assert rows_of(tmp_path, rows, definition, other).keys() == rows_of(tmp_path, rows, definition, one).keys()
        assert f"The search reads {query!r} as the word {word!r}" in caplog.text
        caplog.clear()


def test_a_word_that_ends_before_the_star_is_found_by_its_stem(tmp_path: Path) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": "en_stem"})
    rows = pa.table({"head": ["running", "walking"]})
    assert rows_of(tmp_path, rows, definition, "running.*", syntax="strict") == {0: 1.0}


def test_a_range_of_stems_is_refused_or_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": "en_stem"})
    rows = pa.table({"head": ["running", "x"]})
    with pytest.raises(InvalidInput, match="has stems, so it finds only whole words"):
        rows_of(tmp_path, rows, definition, "head:[runn TO runz]", syntax="strict")
    rows_of(tmp_path, rows, definition, "head:[runn TO runz]")
    assert "has stems, so it finds only whole words" in caplog.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (r"a\\*", [0, 1]),
        (r"a\\~1", [0, 1, 2, 3]),
        (r"a\*", [2]),
        (r"a\\\*", [1]),
        (r"a\\\**", [1]),
        (r"a\b*", [0]),
        (r"NOT a\\*", [2, 3, 4]),
        (r"ab\**", [4]),
        (r'"a\\b" OR head: IN [a\\*]', [0, 1]),
    ],
)
def test_a_backslash_stands_for_itself_behind_another(tmp_path: Path, query: str, found: list[int]) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": "raw"})
    rows = pa.table({"head": ["a\\b", "a\\*", "a*", "a", "ab*c"]})
    assert sorted(rows_of(tmp_path, rows, definition, query, syntax="strict")) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("foo_b*", [0]),
        ("3.1*", [1]),
        ("o'n*", [2]),
        ("main.py*", [3]),
        ("main.p*", [3]),
        ("NOT foo_b*", [1, 2, 3, 4, 5]),
        ("foo_b* AND NOT bar", []),
        ("nothing OR 3.1*", [1]),
        ("fo* (", [0, 4]),
        ("foo_b* (", [0]),
        ("f* (", []),
        ("(/x* " + "y" * 1_000 + "*", []),
        ("( fo* " + " ".join(f"w{number}*" for number in range(3_000)), []),
    ],
)
def test_a_prefix_of_several_words_is_their_phrase_and_the_last_as_a_prefix(
    tmp_path: Path, query: str, found: list[int]
) -> None:
    rows = pa.table({"head": ["foo_bar", "3.14", "o'neill", "main.py", "foo", "bar"], "body": [None] * 6})
    assert sorted(rows_of(tmp_path, rows, DEFINITION, query)) == found


def test_a_prefix_of_several_words_warns_that_they_need_not_be_neighbours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table({"head": ["foo x bar", "foo"], "body": ["", ""]})
    assert sorted(rows_of(tmp_path, rows, DEFINITION, "foo_b*")) == [0]
    assert "'foo_b*' finds texts that contain the phrase without its last word, and the prefix" in caplog.text


@pytest.mark.parametrize("tokenizer", ["default", "cjk", "el_stem", "en_stem", "ngram_3_3", "ngram_1_1"])
def test_a_small_sigma_at_the_end_of_a_word_is_a_small_sigma(tmp_path: Path, tokenizer: str) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": tokenizer})
    rows = pa.table({"head": ["ΑΘΗΝΑΣ", "αθηνας", "Αθηνας", "x"]})
    queries = ["ΑΘΗΝΑΣ", "αθηνας", "Αθηνασ", "head: IN [αθηνας]", '"αθηνας"']
    if tokenizer in ("default", "cjk"):
        queries += ["αθηνας*", "ΑΘΗΝΑΣ~1", "head:[αθηνας TO αθηνας]"]
    for query in queries:
        assert sorted(rows_of(tmp_path, rows, definition, query, syntax="strict")) == [0, 1, 2], query


ODD = "E3B0c44298fc1c149afbf4c8996fb92427ae41e4 हिन्दी cafe\u0301s 東京tower2 カナー_x² ΟΔΟΣ can't"
SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4"


@pytest.mark.parametrize(
    ("tokenizer", "text", "words", "revision"),
    [
        ("raw", ODD, [ODD], None),
        ("whitespace", ODD, ODD.split(" "), None),
        ("default", ODD, [SHA, "हिन्दी", "cafe\u0301s", "東京tower2", "カナー", "x²", "οδοσ", "can", "t"], 3),
        ("en_stem", ODD, [SHA, "हिन्दी", "cafe\u0301", "東京tower2", "カナー", "x²", "οδοσ", "can", "t"], 3),
        ("cjk", ODD, [SHA, "हिन्दी", "cafe\u0301s", *"東京", "tower2", *"カナー", "x²", "οδοσ", "can", "t"], 3),
        ("ngram_1_2", "Ab東\nc É", ["ab", "b東", "東\n", "\nc", "c ", " é"], 3),
        ("ngram_2_10", "Ab東\nc É", ["ab東", "b東\n", "東\nc", "\nc ", "c é"], 3),
        ("ngram_5_9", "Ab東\nc É", ["ab東\nc", "b東\nc ", "東\nc é"], 3),
        ("ngram_5_9", "Ab", ["ab"], 3),
    ],
)
def test_the_words_of_a_revision_stay_as_segments_have_them(
    tokenizer: str, text: str, words: list[str], revision: int | None
) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": tokenizer})
    assert text_files.words(definition, "head", text) == words
    written = {"columns": ["head"], "kind": "fulltext", "options": {"tokenizer": tokenizer}, "words": revision}
    expected = {name: value for name, value in written.items() if value is not None}
    assert json.loads(segments.fingerprint_of(definition)) == expected


def test_a_column_may_have_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    rows = pa.table({"head": ["Running Dogs", "run"], "body": ["running", "Run"]})
    options = {"tokenizer": "en_stem", "tokenizer.body": "raw"}
    definition = IndexDefinition("text", "fulltext", ("head", "body"), options)
    assert sorted(rows_of(tmp_path, rows, definition, "head:runs")) == [0, 1]
    assert sorted(rows_of(tmp_path, rows, definition, "body:Run")) == [1]


@pytest.mark.parametrize("language", text_files.LANGUAGES)
def test_every_language_has_a_stemmer(tmp_path: Path, language: str) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), {"tokenizer": f"{language}_stem"})
    fulltext.validate(definition, pa.schema([("head", pa.string())]))
    assert sorted(rows_of(tmp_path, pa.table({"head": ["Wort 42", "x"]}), definition, "42")) == [0]


@pytest.mark.parametrize(
    "options",
    [{"tokenizer": each} for each in ("xx_stem", "_stem", "de", "ngram_3_2", "ngram_0_2", "ngram_2_11", "ngram")]
    + [{"tokenizer.tail": "raw"}, {"stemmer": "de"}],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, str]) -> None:
    definition = IndexDefinition("text", "fulltext", ("head",), options)
    with pytest.raises(InvalidInput, match="index 'text'"):
        fulltext.validate(definition, pa.schema([("head", pa.string())]))


def test_boosts_multiply_the_scores_of_columns(tmp_path: Path) -> None:
    rows = pa.table({"head": ["kibana", "x"], "body": ["x", "kibana"]})
    for query in ("kibana", "kib*", "kibana~1", "kib* OR nothing"):
        plain = rows_of(tmp_path, rows, DEFINITION, query)
        boosted = rows_of(tmp_path, rows, DEFINITION, query, boosts={"body": 2.5})
        assert boosted == pytest.approx({0: plain[0], 1: 2.5 * plain[1]}, rel=1e-4)


@pytest.mark.parametrize("boosts", [{"tail": 2}, {"head": 0}, {"head": -1}, {"head": float("nan")}, {"head": True}])
def test_a_boost_that_is_none_is_refused(boosts: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="boost"):
        fulltext.parse("kibana", DEFINITION, boosts=boosts)
