"""Full-text segments: composed segments answer as one index would (docs/architecture/indexes.md)."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import tantivy

from storage_core.errors import InvalidInput
from storage_core.index import fulltext
from storage_core.index.fulltext import Hit
from storage_core.settings.index import IndexDefinition

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
    return fulltext.parse(query, definition).hits(directories, limit, scratch)


def single_index_answers(rows: pa.Table, query: str) -> list[tuple[float, int]]:
    """One plain tantivy index over all rows, built without any of our code."""
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


def test_ties_at_the_limit_go_to_the_first_segment_and_row(tmp_path: Path) -> None:
    same = pa.table({"request": ["get it"] * 50, "agent": ["x"] * 50})
    parts = [unpacked(tmp_path / name, same) for name in "abc"]
    everything = hits(parts, "get", 1000)
    assert [(hit.source, hit.row) for hit in everything] == [(s, r) for s in range(3) for r in range(50)]
    for limit in (1, 7, 50, 51, 149, 150):
        assert hits(parts, "get", limit) == everything[:limit]


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
    assert fulltext.parse("get", DEFINITION).hits([], 10, tmp_path) == []


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
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("(get", "Syntax Error"),
        ("get AND", "Syntax Error"),
        ('"get', "Syntax Error"),
        ("status:200", "Field does not exist"),
        ("_row:5", "not declared as indexed"),
        ("request:*", "does not know which rows have a value"),
        ("get AND NOT request:*", "does not know which rows have a value"),
        ("get AND NOT status:200", "Field does not exist"),
        ("get AND NOT kib*", "prefixes are written as a range"),
        ("/ge.*/", "Regex"),
        ("kib*", "prefixes are written as a range"),
        ("+get +(post OR kib*)", "prefixes are written as a range"),
        ('"get kib"*', "prefixes are written as a range"),
    ],
)
def test_a_query_that_cannot_be_answered_exactly_is_refused_with_the_reason(query: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        fulltext.parse(query, DEFINITION)
    assert "request, agent" in str(caught.value)


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
        (IndexDefinition("i", "fulltext", ("n",)), "needs string columns, 'n' is int64"),
        (IndexDefinition("i", "fulltext", ("_row",)), "reserved"),
        (IndexDefinition("i", "fulltext", ("s",), {"tokenizer": "klingon"}), "'klingon' is not one of default, raw"),
        (IndexDefinition("i", "fulltext", ("s",), {"stemmer": "en"}), "unknown option 'stemmer'"),
    ],
)
def test_a_definition_that_does_not_fit_is_refused(definition: IndexDefinition, reason: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("_row", pa.string())])
    with pytest.raises(InvalidInput, match=reason):
        fulltext.validate(definition, schema)
