"""Each kind of bad input ends in a typed error or a quarantine entry. All other work continues without loss."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run
from tests.support.rejected_lines import rejected_lines
from tidemark import Table

pytestmark = pytest.mark.spark

START = dt.datetime(2024, 2, 29, 23, 50, tzinfo=dt.UTC)

DECLARATION = """
name: {name}
uri: {uri}
columns:
  at: timestamp!
  level: int
  text: string
time_column: at
sort_schema: level|timestamp/V2
window: 15m
landing:
  uri: {landing}
  format: {format}
"""

Rejections = dict[tuple[str, int | None], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """A declared table, and the folder in which its files land."""

    request: Ingest
    landing: Path

    def ingest(self, spark: Spark) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(run(self.request, spark).to_json())
        return report

    def rows(self) -> Counter[tuple[object, ...]]:
        return Counter(tuple(row.values()) for row in Table.open(self.request.table_uri).scan().to_arrow().to_pylist())

    def rejections(self) -> Rejections:
        """Return the content of the quarantine: file and line, with reason and text."""
        entries = list(rejected_lines(Table.open(self.request.table_uri).store))
        found = {(each["source"], each["line"]): (each["reason"], each["text"]) for each in entries}
        assert len(found) == len(entries)
        return found


def place(root: Path, name: str, file_format: str) -> Place:
    landing = root / f"{name}_landing"
    landing.mkdir()
    declaration = root / f"{name}.yaml"
    declaration.write_text(DECLARATION.format(name=name, uri=root / name, landing=landing, format=file_format))
    return Place(Ingest(table_uri=str(root / name), declaration=str(declaration)), landing)


def good(count: int, text: str = "good") -> list[tuple[dt.datetime, int, str]]:
    """Return rows over two hours, in several windows."""
    return [(START + dt.timedelta(minutes=11 * number), number, text) for number in range(count)]


def as_json(rows: list[tuple[dt.datetime, int, str]]) -> list[str]:
    return [json.dumps({"at": at.isoformat(), "level": level, "text": text}) for at, level, text in rows]


def as_arrow(rows: list[tuple[dt.datetime, int, str]]) -> pa.Table:
    at, level, text = zip(*rows, strict=True)
    return pa.table(
        {"at": pa.array(at, pa.timestamp("us", "UTC")), "level": pa.array(level, pa.int32()), "text": list(text)}
    )


def test_each_bad_json_line_is_quarantined_with_its_reason_and_all_other_lines_are_rows(
    tmp_path: Path, spark: Spark
) -> None:
    events = place(tmp_path, "events", "ndjson")
    time = '"at": "2024-02-29T23:59:59Z"'
    bad = {
        "malformed": "{" + time + ', "level": 1',
        "no object": "[1, 2]",
        "wrong type": "{" + time + ', "level": "many"}',
        "cut number": "{" + time + ', "level": 1.5}',
        "wrong time": '{"at": "31 February", "level": 1}',
        "no time": '{"level": 1}',
        "null time": '{"at": null, "level": 1}',
        "unknown column": "{" + time + ', "leve": 1}',
    }
    whole = as_json(good(2 * len(bad)))
    lines = [line for pair in zip(whole[::2], bad.values(), whole[1::2], strict=True) for line in pair]
    (events.landing / "a-bad.ndjson").write_text("\n".join(lines))  # the last line has no line end
    (events.landing / "b-good.ndjson.gz").write_bytes(gzip.compress("\n".join(as_json(good(5, "b"))).encode()))
    (events.landing / "c-bytes.ndjson").write_bytes(b"\xff\xfe\n" + as_json(good(1, "c"))[0].encode() + b"\n")

    report = events.ingest(spark)
    assert events.rows() == Counter([*good(16), *good(5, "b"), *good(1, "c")])
    reasons = {
        "malformed": "the line is not valid JSON",
        "no object": "the line is not a JSON object",
        "wrong type": "column level: not a valid int32",
        "cut number": "column level: not a valid int32",
        "wrong time": "column at: not a valid timestamp",
        "no time": "column at: a value is required",
        "null time": "column at: a value is required",
        "unknown column": "the field leve is not a column of the table",
    }
    expected: Rejections = {
        ("a-bad.ndjson", 2 + 3 * position): (reasons[name], bad[name]) for position, name in enumerate(bad)
    }
    expected["c-bytes.ndjson", 1] = ("the line is not UTF-8", "//4=")
    assert events.rejections() == expected
    assert (report["rows_in"], report["rows_out"], report["details"]["rejected"]) == (31, 22, 9)
    assert report["rows_in"] == len(lines) + 5 + 2
    assert events.ingest(Spark())["status"] == "nothing_to_do"


def test_each_bad_csv_record_is_quarantined_with_its_reason_and_all_other_records_are_rows(
    tmp_path: Path, spark: Spark
) -> None:
    events = place(tmp_path, "events", "csv")
    times = [at.isoformat() for at, _, _ in good(4)]
    lines = [
        "at,level,text",
        f"{times[0]},0,good",
        f"{times[0]},1",
        f"{times[0]},1,too,many",
        f"{times[0]},many,text",
        f"{times[1]},1,good",
        ",1,text",
        f"{times[2]},2,good",
    ]
    (events.landing / "a-bad.csv").write_text("\n".join(lines) + "\n")
    (events.landing / "b-other.csv").write_text("when,how\n1,2\n")
    (events.landing / "c-good.csv").write_text(f"text,at\nc,{times[3]}\n")
    events.ingest(spark)
    assert events.rows() == Counter([*good(3), (good(4)[3][0], None, "c")])
    found = events.rejections()
    assert {place: reason for place, (reason, _) in found.items() if place[1] is not None} == {
        ("a-bad.csv", 3): "the record has 2 fields, the header has 3",
        ("a-bad.csv", 4): "the record has 4 fields, the header has 3",
        ("a-bad.csv", 5): "column level: not a valid int32",
        ("a-bad.csv", 7): "column at: a value is required",
    }
    assert {text for place, (_, text) in found.items() if place[1] is not None} <= set(lines)
    assert found["b-other.csv", None][0].startswith(
        "the file cannot be used: the columns of the file are not the columns"
    )
    assert len(found) == 5


def test_a_parquet_file_cut_in_half_is_quarantined_whole_and_stops_neither_other_files_nor_other_tables(
    tmp_path: Path, spark: Spark
) -> None:
    events, others = place(tmp_path, "events", "parquet"), place(tmp_path, "others", "ndjson")
    pq.write_table(as_arrow(good(40)), events.landing / "a.parquet")
    data = (events.landing / "a.parquet").read_bytes()
    (events.landing / "b-half.parquet").write_bytes(data[: len(data) // 2])
    (events.landing / "c-text.parquet").write_text("PAR1 is how it begins, and no more")
    pq.write_table(as_arrow(good(3)).rename_columns(["at", "level", "body"]), events.landing / "d-columns.parquet")
    some = as_arrow(good(6, "e"))
    lacking = some.set_column(0, "at", pa.array([*some["at"].to_pylist()[:4], None, None], some["at"].type))
    pq.write_table(lacking, events.landing / "e-no-time.parquet")
    (others.landing / "half.ndjson.gz").write_bytes(gzip.compress("\n".join(as_json(good(500))).encode())[:-50])
    (others.landing / "whole.ndjson").write_text("\n".join(as_json(good(7))))

    reports = [each.ingest(spark) for each in (events, others)]
    assert [report["status"] for report in reports] == ["committed", "committed"]
    assert events.rows() == Counter([*good(40), *good(4, "e")])
    assert others.rows() == Counter(good(7))

    found = events.rejections()
    whole_files = {name: reason for (name, line), (reason, _) in found.items() if line is None}
    assert set(whole_files) == {"b-half.parquet", "c-text.parquet", "d-columns.parquet"}
    assert all(reason.startswith("the file cannot be used: ") for reason in whole_files.values())
    assert all(reason.endswith("Land the whole file again under a new name") for reason in whole_files.values())
    rows = {place: reason for place, (reason, _) in found.items() if place[1] is not None}
    assert rows == dict.fromkeys([("e-no-time.parquet", 5), ("e-no-time.parquet", 6)], "column at: a value is required")
    assert list(others.rejections()) == [("half.ndjson.gz", None)]

    # Nothing is lost: the bad file stays where it landed, and its intended content can land again.
    assert (events.landing / "b-half.parquet").read_bytes() == data[: len(data) // 2]
    pq.write_table(as_arrow(good(9, "f")), events.landing / "f-again.parquet")
    assert events.ingest(spark)["rows_out"] == 9
    assert events.rows() == Counter([*good(40), *good(4, "e"), *good(9, "f")])
    assert events.rejections() == found


VECTORS = """
name: {name}
uri: {uri}
columns: {{id: long!, embedding: vector(3)}}
indexes: [{{name: near, kind: vector, columns: [embedding], metric: cosine}}]
landing: {{uri: {landing}, format: {format}}}
"""
NO_VECTORS: list[object] = [[1, 2], [1, None, 3], [1, float("inf"), 3], [0, 0, 0], "abc"]


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet"])
def test_what_is_no_vector_is_quarantined_with_its_reason_and_all_other_rows_are_rows(
    tmp_path: Path, spark: Spark, form: str
) -> None:
    given = [[1, 2.5, 3], None, *(NO_VECTORS[:-1] if form == "parquet" else NO_VECTORS), [4, 5, 6]]
    landing = tmp_path / "landing"
    landing.mkdir()
    declaration = tmp_path / "pages.yaml"
    declaration.write_text(VECTORS.format(name="pages", uri=tmp_path / "pages", landing=landing, format=form))
    if form == "parquet":
        column = pa.array(given, pa.list_(pa.float32()))
        pq.write_table(pa.table({"id": range(len(given)), "embedding": column}), landing / "a.parquet")
    elif form == "csv":
        texts = ["" if each is None else json.dumps(each).replace("Infinity", "inf") for each in given]
        lines = [f'{number},"{text.strip(chr(34))}"\n' for number, text in enumerate(texts)]
        (landing / "a.csv").write_text("id,embedding\n" + "".join(lines))
    else:
        lines = [json.dumps({"id": number, "embedding": each}) for number, each in enumerate(given)]
        (landing / "a.ndjson").write_text("\n".join(lines).replace("Infinity", "1e300"))
    pages = Place(Ingest(table_uri=str(tmp_path / "pages"), declaration=str(declaration)), landing)
    assert pages.ingest(spark)["details"]["rejected"] == len(given) - 3
    table = Table.open(pages.request.table_uri)
    kept = {row["id"]: row["embedding"] for row in table.scan().to_arrow().to_pylist()}
    assert kept == {0: [1, 2.5, 3], 1: None, len(given) - 1: [4, 5, 6]}
    found = pages.rejections()
    assert {source for source, _ in found} == {f"a.{form}"}
    reasons = [reason for _, (reason, _) in sorted(found.items())]
    assert all(reason.startswith("column embedding: ") for reason in reasons)
    for number, expected in ((1, "is null"), (2, "NaN or infinite"), (3, "the vector is zero")):
        assert expected in reasons[number]
    assert table.search(vector=[1, 2.5, 3]).column("id").to_pylist() == [0, len(given) - 1]
