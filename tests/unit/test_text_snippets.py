"""A snippet marks the matches, escapes the rest, and does not depend on other texts.

The results are compared with plain Python.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.fulltext import MOST_BYTES, snippets
from tests.support.scale import scaled
from tests.unit.test_text_terms import changes

PLAIN = IndexDefinition("text", "fulltext", ("head", "body"))
WORD = st.text("abcé", min_size=1, max_size=5)
TEXT = st.lists(WORD | st.sampled_from(["<b>", "&", '"', "'", "</b>", "東京", "🙂"]), max_size=12).map(" ".join)


def marked(query: str, texts: list[str | None], definition: IndexDefinition = PLAIN) -> list[dict[str, str | None]]:
    """Return the snippets of a table in which every column contains these texts."""
    rows = pa.table({column: pa.array(texts, pa.string()) for column in definition.columns})
    found: list[dict[str, str | None]] = snippets(fulltext.parse(query, definition), rows).to_pylist()
    return found


def by_hand(text: str, fits: Callable[[str], bool]) -> str | None:
    """Return a text of one fragment with the matching words marked."""
    parts = re.split(r"([^\W_]+)", text)
    found = [f"<b>{html.escape(part)}</b>" if number % 2 and fits(part) else part for number, part in enumerate(parts)]
    if not any(each.startswith("<b>") for each in found[1::2]):
        return None
    return "".join(part if number % 2 else html.escape(part) for number, part in enumerate(found))


@settings(max_examples=scaled(40), deadline=None)
@given(
    texts=st.lists(st.none() | TEXT, min_size=1, max_size=5),
    word=st.text("abcé", min_size=2, max_size=4),
    way=st.sampled_from(["", "*", "~1", "range", "not"]),
)
def test_the_words_that_fit_are_marked_and_everything_is_escaped(texts: list[str | None], word: str, way: str) -> None:
    query, fits = {
        "": (word, lambda found: found == word),
        "*": (f"{word}*", lambda found: found.startswith(word)),
        "~1": (f"{word}~1", lambda found: changes(found, word) <= 1),
        "range": (f"body:[{word} TO *}}", lambda found: found.encode() >= word.encode()),
        "not": (f"{word} -bé OR (aa AND NOT {word}b)", lambda found: found in (word, "aa")),
    }[way]
    for text, row in zip(texts, marked(query, texts), strict=True):
        found, whole = row["body"], None if text is None else by_hand(text, fits)
        assert row["head"] == (None if way == "range" else found)
        assert (found is None) is (whole is None)
        assert found is None or whole is None or found in whole  # `whole` ends with a character that is not in a word
        assert found is None or whole is None or found.count("<b>") == whole.count("<b>")


def test_a_snippet_is_that_of_a_row_whatever_other_rows_there_are() -> None:
    text = "tide " + "y " * 200 + "tide ebb ebb tide ebb tide " + "y " * 100 + "ebb"
    alone = marked("tide ebb", [text])
    for others in (["tide"] * 9, ["ebb " * 50], [text] * 3):
        assert marked("tide ebb", [text, *others])[:1] == alone == marked("tide ebb", [*others, text])[-1:]
    assert alone[0]["body"] is not None
    assert alone[0]["body"].count("<b>") >= 3  # the fragment with the most matches


def test_a_fragment_is_bounded_and_cut_between_words() -> None:
    [found] = marked("tide", ["ebb " * 1_000 + "tide " + "flood " * 1_000])
    assert found["body"] is not None
    plain = re.sub("</?b>", "", found["body"])
    assert len(plain.encode()) <= MOST_BYTES
    assert "tide" in plain.split()
    assert {*plain.split()} <= {"ebb", "tide", "flood"}


@pytest.mark.parametrize(
    ("tokenizer", "query", "text", "expected"),
    [
        ("en_stem", "run", "Running late, she runs", "<b>Running</b> late, she <b>runs</b>"),
        ("de_stem", "haus", "Alte Häuser", "Alte <b>Häuser</b>"),
        ("en_stem", "run*", "She runs a rune", "She <b>runs</b> a rune"),
        ("default", "run*", "She runs a rune", "She <b>runs</b> a <b>rune</b>"),
        ("default", "foo_b*", "foo_bar x", "<b>foo</b>_<b>bar</b> x"),
        ("default", "ΑΘΗΝΑΣ", "ας <στους> σοφους αθηνας", "ας &lt;στους&gt; σοφους <b>αθηνας</b>"),
        ("el_stem", "αθηνας", "σ ΑΘΗΝΑΣ", "σ <b>ΑΘΗΝΑΣ</b>"),
        ("ngram_2_3", "iban", "Kibana", "K<b>iban</b>a"),
        ("whitespace", "a-b", "x a-b y", "x <b>a-b</b> y"),
        ("raw", '"x y"', "x y", "<b>x y</b>"),
        ("raw", "xy*", "xy z", "<b>xy z</b>"),
        ("default", '"ebb tide"', "EBB and ebb tide", "<b>EBB</b> and <b>ebb</b> <b>tide</b>"),
        ("default", "a:IN [ebb flood]", "ebb tide flood", "<b>ebb</b> tide <b>flood</b>"),
        ("default", "can't", "I can't", "I <b>can</b>&#x27;<b>t</b>"),
        ("default", "tide^3 NOT (ebb OR (flood -rain))", "rain tide", "rain <b>tide</b>"),
        ("default", "*", "ebb tide", None),
        ("default", "NOT flood", "ebb tide", None),
        ("default", "(/) ~ :", "( ebb /", None),
    ],
)
def test_a_word_is_one_by_the_tokenizer_of_its_column(
    tokenizer: str, query: str, text: str, expected: str | None
) -> None:
    definition = IndexDefinition("text", "fulltext", ("a",), {"tokenizer": tokenizer})
    assert marked(query, [text], definition) == [{"a": expected}]


def test_a_word_of_one_column_is_marked_in_that_only() -> None:
    assert marked("head:ebb tide", ["ebb tide"]) == [{"head": "<b>ebb</b> <b>tide</b>", "body": "ebb <b>tide</b>"}]


def test_no_row_has_no_snippet() -> None:
    assert marked("tide", []) == []
