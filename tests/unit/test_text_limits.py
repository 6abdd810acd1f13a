"""Limits of full-text queries: named in the error, equal in every interface, and far above normal queries."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from pipelines.cli import main
from storage_core.base.errors import InvalidInput
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext, text_queries
from storage_core.index.text_queries import arrangements
from storage_core.store.local import LocalStore
from storage_core.table import Table
from tests.support.keyed_table import KeyedTable
from tests.unit.poor_machine import half_indexed
from tests.unit.test_generation_segments import EVERY_GENERATION, found, new_table, row

WORDS = IndexDefinition("words", "fulltext", ("text",))
HOSTILE = {
    "parentheses": ("(" * 10_000 + "a" + ")" * 10_000, "The limit is 1,000"),
    "negations": ("NOT " * 20_000 + "a", "65,536 are allowed"),
    "some negations": ("NOT " * 900 + "a", "deeper than 100 levels"),
    "signs": ("-(a " * 500 + "a" + ")" * 500, "deeper than 100 levels"),
    "quoted": ('( ")" ' * 2_000 + "a" + ")" * 2_000, "The limit is 1,000"),
    "alternatives": (" OR ".join(f"w{number}" for number in range(100_000)), "65,536 are allowed"),
    "some alternatives": (" OR ".join(f"w{number}" for number in range(5_000)), "more than 2,048"),
    "phrase": ('"' + "a " * 5_000 + '"', "more than 2,048"),
    "set": ("text:IN [" + " ".join(f"w{number}" for number in range(5_000)) + "]", "more than 2,048"),
    "boost": ("a^" + "9" * 400, "Use a smaller boost"),
    "boosts": ("((a^1000000)^1000000)", "Use a smaller boost"),
    "slop": ('"a b"~4000000000', "slop"),
    "words": ("( " + " ".join(f"w{number}'" for number in range(5_000)), "the text is not a valid query"),
    "arrangements": ('"a b c d"~50', "too many possible orders"),
    "moves": (f'"{" ".join(f"w{number}" for number in range(2_000))}"~1', "too many possible orders"),
    "moves of equal words": (f'"{"a " * 2_000}"~1', "too many possible orders"),
    "places": (f'"{" ".join(f"w{number}" for number in range(2_000))}"~65536', "too many possible orders"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_query_beyond_a_limit_is_refused_with_its_number_and_not_with_its_text(name: str) -> None:
    text, reason = HOSTILE[name]
    with pytest.raises(InvalidInput, match=reason) as raised:
        fulltext.parse(text, WORDS, syntax="strict")
    assert len(str(raised.value)) < 1_000


@pytest.mark.parametrize("name", HOSTILE)
def test_a_lenient_search_has_no_limit_but_that_of_characters(name: str) -> None:
    text, _ = HOSTILE[name]
    if len(text) <= text_queries.MAX_CHARACTERS:
        assert fulltext.parse(text, WORDS).text == text
    else:
        with pytest.raises(InvalidInput, match="65,536 are allowed"):
            fulltext.parse(text, WORDS)


def test_a_regular_expression_is_never_one() -> None:
    with pytest.raises(InvalidInput, match="Regex queries are not allowed"):
        fulltext.parse("text:/(a*)*b/", WORDS, syntax="strict")
    assert fulltext.parse("text:/(a*)*b/", WORDS).tree == text_queries.words("text:/(a*)*b/")


@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize("slop", [1, 2, 3])
def test_each_arrangement_is_asked_for_once(length: int, slop: int) -> None:
    for words in product("abc", repeat=length):
        expected = set()
        for moves in product(range(slop + 1), repeat=length):
            places = [number + move for number, move in enumerate(moves)]
            if len({*places}) == length:
                placed = sorted(zip(places, words, strict=True))
                expected.add(tuple((place - min(places), word) for place, word in placed))
        asked = [tuple((place - each[0][0], word) for place, word in each) for each in arrangements(words, slop)]
        assert set(asked) == expected
        assert len(asked) == len(expected)


def test_equal_words_are_not_put_in_every_order() -> None:
    assert len([*arrangements(["a"] * 40, 2)]) == 820
    text = f'"{" ".join(["a"] * 40)}"~2'
    assert fulltext.parse(text, WORDS, syntax="strict").text == text


@pytest.mark.parametrize("name", ["alternatives", "negations"])
def test_every_door_refuses_a_query_beyond_a_limit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, reason = HOSTILE[name]
    half_indexed(LocalStore(tmp_path / "table"))
    uri = str(tmp_path / "table")
    with pytest.raises(InvalidInput, match=reason):
        Table.open(uri).search(text, index="words")
    with pytest.raises(InvalidInput, match=reason):
        found(unmerged(), text, "words")
    assert main(["search", uri, text, "--index", "words"]) == InvalidInput.exit_code
    assert reason in capsys.readouterr().err


def test_queries_within_the_limits_are_answered() -> None:
    depth = text_queries.MAX_DEPTH // 2
    for text in (
        "(" * 900 + "a" + ")" * 900,
        "(a OR " * (depth - 1) + "a" + ")" * (depth - 1),
        "NOT " * (depth - 1) + "a",
        "-(b " * (depth - 1) + "a" + ")" * (depth - 1),
        " OR ".join(f"w{number}" for number in range(2_000)) + " OR NOT b",
    ):
        assert fulltext.parse(text, WORDS).text == text


def unmerged() -> KeyedTable:
    table = new_table(WORDS)
    with table.writer(EVERY_GENERATION) as writer:
        writer.put([row(1, "ebb")])
        writer.flush()
    return table
