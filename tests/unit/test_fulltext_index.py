"""Several full-text segments answer as one index would (docs/architecture/indexes.md)."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tantivy

from storage_core.base.errors import InvalidInput
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.text_files import open_searcher
from tests.support.listed_hits import Hit, listed

DEFINITION = IndexDefinition("text", "fulltext", ("request", "agent"))
WORDS = ("get", "post", "kibana", "logstash", "puppet", "png", "css", "html", "robot", "search")
QUERIES = (
    "kibana",
    "request:kibana",
    "agent:kibana get",
    "get post css",
    '"get post"',
    '"get post"~2',
    "+get +robot",
    "get -post",
    "(get OR post) AND agent:robot",
    "kibana^3 get",
    "*",
    "request:[get TO kib}",
    "request: IN [png css]",
)


def documents(count: int, seed: int = 7) -> pa.Table:
    rnd = random.Random(seed)

    def text() -> str | None:
        return None if rnd.random() < 0.05 else " ".join(rnd.choices(WORDS, k=rnd.randint(0, 9)))

    return pa.table(
        {"request": [text() for _ in range(count)], "agent": [text() for _ in range(count)]},
        schema=pa.schema([("request", pa.string()), ("agent", pa.string())]),
    )


def unpacked(directory: Path, rows: pa.Table, definition: IndexDefinition = DEFINITION) -> Path:
    directory.mkdir(parents=True)
    for name, data in fulltext.build(rows, definition).items():
        (directory / name).write_bytes(data)
    return directory


def hits(directories: list[Path], query: str, limit: int, definition: IndexDefinition = DEFINITION) -> list[Hit]:
    scratch = directories[0].parent if directories else Path()
    return listed(fulltext.parse(query, definition).hits(open_searcher(directories, definition, scratch), limit))


def single_index_answers(rows: pa.Table, query: str) -> list[tuple[float, int]]:
    """Return the answers of one plain tantivy index over all rows, built without our code."""
    builder = tantivy.SchemaBuilder().add_text_field("request").add_text_field("agent")
    schema = builder.build()
    index = tantivy.Index(schema)
    writer = index.writer(heap_size=50_000_000, num_threads=1)
    for row in rows.to_pylist():
        fields = {name: value for name, value in row.items() if value is not None}
        writer.add_document(tantivy.Document.from_dict(fields, schema))
    writer.commit()
    index.reload()
    parsed = index.parse_query(query, ["request", "agent"])
    return [(score, address.doc) for score, address in index.searcher().search(parsed, rows.num_rows).hits]


@pytest.mark.parametrize("query", QUERIES)
def test_scores_and_order_of_composed_segments_equal_a_single_index(tmp_path: Path, query: str) -> None:
    rows = documents(600)
    bounds = [0, 1, 40, 41, 300, 599, 600]
    parts = [unpacked(tmp_path / str(start), rows.slice(start, end - start)) for start, end in pairwise(bounds)]
    composed = [(hit.score, bounds[hit.source] + hit.row) for hit in hits(parts, query, 1000)]
    expected = single_index_answers(rows, query)
    assert composed
    assert composed == expected


def test_a_hit_names_the_segment_it_came_from_in_the_order_they_were_composed(tmp_path: Path) -> None:
    tables = [pa.table({"request": [f"mark{i}", "both"], "agent": ["x", "y"]}) for i in range(5)]
    parts = [unpacked(tmp_path / str(i), table) for i, table in enumerate(tables)]
    shuffled = [parts[i] for i in (3, 0, 4, 1, 2)]
    for position, original in enumerate((3, 0, 4, 1, 2)):
        found = hits(shuffled, f"mark{original}", 10)
        assert [(hit.source, hit.row) for hit in found] == [(position, 0)]
    assert [(hit.source, hit.row) for hit in hits(shuffled, "both", 10)] == [(i, 1) for i in range(5)]


def test_all_that_score_as_the_last_come_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"request": ["get it"] * 50 + ["get get it"], "agent": ["x"] * 51})
    parts = [unpacked(tmp_path / name, rows) for name in "abc"]
    everything = hits(parts, "get", 1000)
    best, others = [(source, 50) for source in range(3)], [(source, row) for source in range(3) for row in range(50)]
    assert [(hit.source, hit.row) for hit in everything] == best + others
    for pages in (250_000, 5):
        monkeypatch.setattr(fulltext, "_PAGE_HITS", pages)
        monkeypatch.setattr(fulltext, "_SPARE_HITS", 1)
        assert [hits(parts, "get", limit) == everything[:3] for limit in (1, 2, 3)] == [True] * 3
        assert [hits(parts, "get", limit) == everything for limit in (4, 50, 152, 153)] == [True] * 4


def test_rows_keep_their_numbers_when_a_split_needs_several_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = documents(500)
    whole = hits([unpacked(tmp_path / "one", rows)], "get", 500)
    monkeypatch.setattr(fulltext, "_CHUNK_ROWS", 37)
    assert hits([unpacked(tmp_path / "many", rows)], "get", 500) == whole


def test_a_segment_without_rows_takes_part_in_a_search(tmp_path: Path) -> None:
    rows = documents(20)
    parts = [unpacked(tmp_path / "none", rows.slice(0, 0)), unpacked(tmp_path / "some", rows)]
    assert {hit.source for hit in hits(parts, "*", 100)} == {1}
    assert hits(parts[:1], "*", 100) == []
    assert listed(fulltext.parse("get", DEFINITION).hits(open_searcher([], DEFINITION, tmp_path), 10)) == []


@pytest.mark.parametrize("query", ["tide", "tide OR flood", "tide flood ebb"])
def test_pages_of_equal_scores_name_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    words = ("tide", "ebb", "flood", *(f"word{each}" for each in range(500)))
    definition = IndexDefinition("text", "fulltext", ("body",))
    lines = [" ".join(line) for line in np.random.default_rng(6).choice(words, (5_000, 12)).tolist()]
    texts = [lines[900 * part : 900 * part + 900] for part in (2, 3, 4, 5, 1, 0)]
    parts = [unpacked(tmp_path / str(each), pa.table({"body": rows}), definition) for each, rows in enumerate(texts)]
    everything = {(hit.source, hit.row): hit.score for hit in hits(parts, query, 6_000, definition)}
    asked = {"tide", "flood", "ebb"} & {*query.split()}
    assert everything.keys() == {
        (source, row) for source, rows in enumerate(texts) for row, text in enumerate(rows) if asked & {*text.split()}
    }
    for spare in (0, 40):
        monkeypatch.setattr(fulltext, "_SPARE_HITS", spare)
        for limit in (*range(1, 60), 80, 100):
            found = hits(parts, query, limit, definition)
            last = found[limit - 1].score
            assert len({(hit.source, hit.row) for hit in found}) == len(found)
            assert {(hit.source, hit.row) for hit in found} == {
                row for row, score in everything.items() if score >= last
            }


def test_a_null_matches_nothing(tmp_path: Path) -> None:
    rows = pa.table({"request": pa.array([None, "get"]), "agent": pa.array([None, None], pa.string())})
    assert [hit.row for hit in hits([unpacked(tmp_path / "a", rows)], "get", 10)] == [1]


@pytest.mark.parametrize(
    ("tokenizer", "query", "found"),
    [
        ("default", "running", [0]),
        ("default", "dog", []),
        ("raw", '"Running Dogs"', [0]),
        ("raw", "Running", []),
        ("whitespace", "Running", [0]),
        ("whitespace", "running", []),
        ("whitespace", '"a/b-c"', [1]),
        ("en_stem", "run", [0]),
        ("en_stem", "dog", [0]),
    ],
)
def test_the_tokenizer_of_the_index_decides_what_a_word_is(
    tmp_path: Path, tokenizer: str, query: str, found: list[int]
) -> None:
    definition = IndexDefinition("text", "fulltext", ("body",), {"tokenizer": tokenizer})
    part = unpacked(tmp_path / "a", pa.table({"body": ["Running Dogs", "a/b-c"]}), definition)
    assert [hit.row for hit in hits([part], query, 10, definition)] == found


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("(get", "is not a valid query"),
        ("get AND", "is not a valid query"),
        ('"get', "is not a valid query"),
        ("can't", "is not a valid query"),
        ("status:200", "no column 'status'"),
        ("get AND NOT status:200", "no column 'status'"),
        ("/ge.*/", "Regex"),
        ("_row:5", "no column '_row'"),
        ("get OR _row:[0 TO 5]", "no column '_row'"),
        ("_row:>=0", "no column '_row'"),
        ("NOT _row: IN [0 1]", "no column '_row'"),
        ("request:(_row:5^2)", "no column '_row'"),
        ("_row:11*", "no column '_row'"),
        ("_row:11~1", "no column '_row'"),
        ("request.x:5", "no column 'request.x'"),
    ],
)
def test_a_text_that_is_no_query_is_refused_with_the_reason_where_syntax_is_strict(query: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        fulltext.parse(query, DEFINITION, syntax="strict")
    assert "request, agent" in str(caught.value)
    assert fulltext.parse(query, DEFINITION).text == query


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("request:*", "cannot find the rows that have a value"),
        ("get AND NOT request:*", "cannot find the rows that have a value"),
        ("get AND NOT k*", "matches too many words"),
        ("kib-ana*", "is not one word by the tokenizer 'default'"),
        ("+get +(post OR status:kib*)", "no column 'status'"),
        ('"get kib"*', "a phrase cannot contain a prefix"),
    ],
)
def test_a_query_that_cannot_be_answered_exactly_is_refused_where_syntax_is_strict(query: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        fulltext.parse(query, DEFINITION, syntax="strict")
    assert "request, agent" in str(caught.value)
    assert fulltext.parse(query, DEFINITION).text == query


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("can't", [0]),
        ("/slip flow/", [1, 2]),
        ("/slip/ OR NOT /flow/", [1, 2]),
        ("Why can't slip occur?", [0, 1]),
        ("it's what can't", [0]),
        ("(flow", [2]),
        ("flow AND", [2, 3]),
        ('he said "slip', [1]),
        ("http://flow.net/slip", []),
        ("ratio: flow", [2]),
        ("mach 3:1 flow", [2, 4]),
        ("a [flow] ~ \\ - ^", [2]),
        ('"', []),
        ("'' \"\" ' (((", []),
        ("slip\t(\nflow", [1, 2]),
        ("", []),
        (" \n ", []),
        ("-the /*", [1]),
        ("**slip** f*", [1]),
        ("body:*", []),
        ('"turbulent fl"*', [2]),
        ("http://x* flow", [2]),
        ("can't~1 slip?~2", [0, 1]),
        ("_row:[0 TO 5] flow", [2]),
        ("flow\ud800 slip", [1, 2]),
        ("NOT " * 1_100 + "( slip", [1]),
        (" ".join(f"w{number}" for number in range(5_000)) + " flow", [2]),
        ('"slip the flow"~60000', [1, 2]),
    ],
)
def test_a_text_that_is_no_query_asks_for_any_of_its_words(tmp_path: Path, query: str, found: list[int]) -> None:
    definition = IndexDefinition("text", "fulltext", ("body",))
    rows = ["you can't do", "the slip", "turbulent flow", "and", "at 3:1 then"]
    part = unpacked(tmp_path / "a", pa.table({"body": rows}), definition)
    assert sorted(hit.row for hit in hits([part], query, 10, definition)) == found


@pytest.mark.parametrize("syntax", ["Strict", "", None, 1])
def test_a_syntax_is_one_of_two(syntax: object) -> None:
    with pytest.raises(InvalidInput, match="Give lenient or strict"):
        fulltext.parse("get", DEFINITION, syntax=syntax)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("alpha AND NOT beta", [0]),
        ("alpha -beta", [0]),
        ("alpha OR NOT beta", [0, 1, 3, 4]),
        ("NOT beta", [0, 3, 4]),
        ("NOT (alpha OR beta)", [3, 4]),
        ("+alpha +(-beta)", [0]),
        ("NOT NOT beta", [1, 2]),
        ("NOT alpha AND NOT beta", [3, 4]),
        ("body:(NOT beta) AND NOT body:gamma", [0, 4]),
        ('NOT body: IN [alpha "beta"]', [3, 4]),
        ("gamma OR NOT body:[al TO bez]", [3, 4]),
        ("gamma OR NOT body:[b TO *]", [0, 3, 4]),
        ('gamma OR NOT "alpha beta"~1^2', [0, 2, 3, 4]),
        ("alpha AND NOT beta\\:x", [0, 1]),
        ("alpha AND NOT 'beta\\\"'", [0]),
    ],
)
def test_a_negation_takes_away_from_all_rows_where_its_group_has_nothing_else(
    tmp_path: Path, query: str, found: list[int]
) -> None:
    definition = IndexDefinition("text", "fulltext", ("body",))
    part = unpacked(tmp_path / "a", pa.table({"body": ["alpha", "alpha beta", "beta", "gamma", None]}), definition)
    assert sorted(hit.row for hit in hits([part], query, 10, definition)) == found


def test_a_row_scores_the_same_whichever_way_a_word_is_excluded(tmp_path: Path) -> None:
    part = unpacked(tmp_path / "a", documents(100))
    wanted = hits([part], "get -css", 100)
    assert wanted
    assert hits([part], "get AND NOT css", 100) == wanted
    assert {hit.score for hit in hits([part], "NOT css", 100)} == {0.0}


def test_a_prefix_written_as_a_range_finds_every_ending(tmp_path: Path) -> None:
    rows = pa.table({"request": [f"a kib{i}" for i in range(300)] + ["a kia", "a kic"], "agent": ["x"] * 302})
    found = hits([unpacked(tmp_path / "a", rows)], "request:[kib TO kic}", 1000)
    assert sorted(hit.row for hit in found) == list(range(300))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (IndexDefinition("i", "fulltext", ("n",)), "needs string columns, but 'n' has type int64"),
        (IndexDefinition("i", "fulltext", ("_row",)), "reserved"),
        (IndexDefinition("i", "fulltext", ("-v",)), "cannot contain a column named '-v'. Remove the column"),
        (IndexDefinition("i", "fulltext", ("",)), "cannot contain a column named ''. Remove the column"),
        (IndexDefinition("i", "fulltext", ("s",), {"tokenizer": "klingon"}), "is 'klingon'. Give one of default, raw"),
        (IndexDefinition("i", "fulltext", ("s",), {"stemmer": "en"}), "unknown option 'stemmer'"),
    ],
)
def test_a_definition_that_does_not_fit_is_refused(definition: IndexDefinition, reason: str) -> None:
    schema = pa.schema([("n", pa.int64()), *((name, pa.string()) for name in ("s", "_row", "-v", ""))])
    with pytest.raises(InvalidInput, match=reason):
        fulltext.validate(definition, schema)


@pytest.mark.parametrize(
    "name",
    ["+a", "a:b", "a.b", "a b", '"', "\\", "é", "東京", "a(b", "[x]", "*", "AND", "a-v", "a/b", "_x", "🌊", "^~"],
)
def test_a_column_is_named_in_a_query_with_a_backslash_before_each_sign(tmp_path: Path, name: str) -> None:
    definition = IndexDefinition("text", "fulltext", (name, "body"))
    part = unpacked(tmp_path / "a", pa.table({name: ["ebb tide", "x"], "body": ["x", "ebb tide"]}), definition)
    written = "".join(f"\\{each}" if each in "+^`:{}\"'[]()!\\* " else each for each in name)
    assert [hit.row for hit in hits([part], "ebb", 10, definition)] == [0, 1]
    for query in ("ebb", '"ebb tide"', "eb*", "ebx~1", "[eb TO ec}", " IN [ebb flood]"):
        assert [hit.row for hit in hits([part], f"{written}:{query}", 10, definition)] == [0], query


def test_scores_beside_superseded_rows_are_within_the_bound_of_decision_0100(tmp_path: Path) -> None:
    chance = random.Random(100)
    definition = IndexDefinition("text", "fulltext", ("request",))
    apart = 0
    for number in range(20):
        rows = documents(chance.randint(20, 200), seed=number).filter(pc.field("request").is_valid())
        texts = rows.column("request").to_pylist()
        live = [row for row in range(rows.num_rows) if chance.random() > number / 25]
        every = unpacked(tmp_path / f"{number}-every", rows, definition)
        only = unpacked(tmp_path / f"{number}-live", rows.take(live), definition)
        for word in WORDS:
            among = {hit.row: hit.score for hit in hits([every], word, 1000, definition)}
            alone = {live[hit.row]: hit.score for hit in hits([only], word, 1000, definition)}
            assert alone.keys() == among.keys() & set(live)
            dead = most_dead(texts, live, word)
            for row, score in alone.items():
                spread = -2.2 * math.log(1 - dead)
                assert among[row] * (1 - dead) - spread <= score * 1.00001
                assert score <= (among[row] + spread) / (1 - dead) * 1.00001
                apart += score != among[row]
    assert apart > 1_000


def most_dead(texts: list[str], live: list[int], word: str) -> float:
    """Return the largest of three shares of dead rows: of all rows, of all words, and of all rows with `word`."""

    def share(sizes: list[int]) -> float:
        return 1 - sum(sizes[row] for row in live) / max(sum(sizes), 1)

    return max(
        share([1] * len(texts)),
        share([len(text.split()) for text in texts]),
        share([word in text.split() for text in texts]),
    )
