"""JSON files whose records are not lines: arrays of objects, and objects that take several lines."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.write.ingest import json_elements
from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.convert import Parsed
from storage_core.write.ingest.json_elements import read_elements
from storage_core.write.ingest.landing import LandedFile, LandingSpec

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def parsed(folder: Path, data: bytes | str) -> Parsed:
    (folder / "a.json").write_bytes(data.encode() if isinstance(data, str) else data)
    file = LandedFile("a.json", (folder / "a.json").stat().st_size, folder.resolve().as_uri())
    return parse_file(file, LandingSpec(uri=file.uri, format="json"), SCHEMA, None)


def reasons(found: Parsed) -> list[tuple[int | None, str]]:
    return [(each.line, each.reason) for each in found.rejected]


def elements(data: bytes, block_bytes: int = 2**20) -> list[tuple[int, str]]:
    blocks = [*read_elements(io.BytesIO(data), block_bytes)]
    assert not any(block.not_text for block in blocks)
    pairs = [pair for each in blocks for pair in zip(each.numbers.tolist(), each.text.to_pylist(), strict=True)]
    assert [number for number, _ in pairs] == [*range(1, len(pairs) + 1)]
    return pairs


ROWS: list[dict[str, Any]] = [{"a": 1, "s": 'x],"\\ [{'}, {"a": 2, "s": "é\n"}, {"a": None, "s": ""}, {"s": "🌊"}]
WANTED = [{"a": each.get("a"), "s": each["s"]} for each in ROWS]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2, ensure_ascii=False),
        "\ufeff" + json.dumps(ROWS).replace("}, ", "},\r\n"),
        "\n".join(json.dumps(each, indent=1) for each in ROWS),
        "".join(map(json.dumps, ROWS)),
        json.dumps(ROWS[:1]) + "\n" + json.dumps(ROWS[1:]) + "\n[]\n",
        json.dumps(ROWS[:2]) + json.dumps(ROWS[2]) + json.dumps(ROWS[3]),
        json.dumps(ROWS).removesuffix("]") + " ,\n]",
    ],
    ids=["array", "indented", "windows", "objects", "adjacent", "arrays", "mixed", "last comma"],
)
def test_arrays_and_objects_of_several_lines_become_rows(tmp_path: Path, text: str) -> None:
    found = parsed(tmp_path, text)
    assert found.rejected == ()
    assert found.rows.to_pylist() == WANTED


@pytest.mark.parametrize("text", ["", " \n", "[]", "[\n]\n[ ]"])
def test_a_file_without_an_element_has_no_row(tmp_path: Path, text: str) -> None:
    found = parsed(tmp_path, text)
    assert (found.rows.num_rows, found.rejected) == (0, ())


def test_an_element_that_is_not_a_row_is_rejected_by_its_number(tmp_path: Path) -> None:
    text = '[{"a": 1},\n{"a": "x"}, 7, null,, {"b": 1}, {"a": 2,, "s": 1}, [{"a": 3}], {"a": 4}\n,{"s":"\n"}]'
    found = parsed(tmp_path, text)
    assert [each["a"] for each in found.rows.to_pylist()] == [1, 4]
    assert reasons(found) == [
        (2, "column a: not a valid int64"),
        (3, "the line is not a JSON object"),
        (4, "the line is not a JSON object"),
        (5, "the line is not valid JSON"),
        (6, "the field b is not a column of the table"),
        (7, "the line is not valid JSON"),
        (8, "the line is not a JSON object"),
        (10, "the line is not valid JSON"),
    ]
    assert found.rejected[0].text == '{"a": "x"}'


@pytest.mark.parametrize("end", [",,]", ", ,\n]", ",,,]"])
def test_an_empty_element_at_the_end_of_an_array_is_rejected(tmp_path: Path, end: str) -> None:
    found = parsed(tmp_path, f'[{{"a": 1}}, {{"a": 2}}{end}')
    assert [each["a"] for each in found.rows.to_pylist()] == [1, 2]
    assert reasons(found) == [(line, "the line is not valid JSON") for line in range(3, end.count(",") + 2)]


def test_text_that_is_not_utf8_rejects_its_element(tmp_path: Path) -> None:
    found = parsed(tmp_path, b'[{"a": 1, "s": "\xff"}, {"a": 2}]')
    assert reasons(found) == [(1, "the line is not UTF-8")]
    assert found.rows.to_pylist() == [{"a": 2, "s": None}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"a": 1}, {"a": 2}', "its JSON array is never closed"),
        ('[{"a": 1}, {"a": 2', "its JSON array is never closed"),
        ('[{"a": "1}, {"a": 2}]', "its JSON array is never closed"),
        ('[{"a": 1}]]', "a closing bracket at or after record 1 has no opening bracket"),
    ],
)
def test_an_array_that_is_not_whole_rejects_the_file(tmp_path: Path, text: str, reason: str) -> None:
    found = parsed(tmp_path, text)
    [(line, why)] = reasons(found)
    assert (line, found.rows.num_rows) == (None, 0)
    assert reason in why


def test_an_object_that_is_never_closed_is_rejected(tmp_path: Path) -> None:
    found = parsed(tmp_path, '{"a": 1}\n{"a": 2, {"a": 3}\n')
    assert [each["a"] for each in found.rows.to_pylist()] == [1]
    assert reasons(found) == [(2, "the line is not valid JSON")]
    assert found.rejected[0].text == '{"a": 2, {"a": 3}'


def _drawn(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(7 if depth < 3 else 4)
    texts = ["", '"', "\\", '\\"', "[", "]}", ",", "{", "a\nb", "é", "\\\\"]
    if kind < 2:
        return "".join(chance.choices(texts, k=chance.randrange(4)))
    if kind < 4:
        return chance.choice([1, -2.5, True, None])
    if kind == 4:
        return [_drawn(chance, depth + 1) for _ in range(chance.randrange(3))]
    return {f"k{chance.choice(texts)}{n}": _drawn(chance, depth + 1) for n in range(chance.randrange(3))}


@pytest.mark.parametrize("block_bytes", [1, 3, 16, 2**20])
def test_random_values_are_divided_as_a_parser_divides_them(block_bytes: int) -> None:
    for seed in range(40):
        chance = random.Random(f"{seed}/{block_bytes}")
        data, wanted = "", []
        for _ in range(chance.randrange(4)):
            indent = chance.choice([None, 1])
            if chance.random() < 0.5:
                values = [_drawn(chance) for _ in range(chance.randrange(5))]
                data += json.dumps(values, indent=indent, ensure_ascii=False)
                wanted += values
            else:
                value = {"o": _drawn(chance)}
                data += json.dumps(value, indent=indent)
                wanted.append(value)
            data += chance.choice(["", "\n", " \r\n"])
        found = elements(data.encode(), block_bytes)
        assert [json.loads(text) for _, text in found] == wanted, data
        assert not any("\n" in text for _, text in found)


def test_a_record_above_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_elements, "LONGEST_LINE_BYTES", 1_000)
    with pytest.raises(Corrupt, match="record 2 is longer than 1000 bytes"):
        elements(b'[{"a": 1}, {"s": "' + b"x" * 5_000 + b'"}]', 500)
    monkeypatch.setattr(json_elements, "MOST_BRACKETS", 100)
    with pytest.raises(Corrupt, match=r"record 1 .* has more than 100 values"):
        elements(b"[" + b"[" * 300 + b"]" * 300 + b"]", 200)
