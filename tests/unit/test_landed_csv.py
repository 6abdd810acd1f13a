"""CSV files in other forms and encodings: the settings in `landing`, and the records that the reader returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.write.ingest.batch import parse_blocks, parse_file
from storage_core.write.ingest.convert import Parsed
from storage_core.write.ingest.landing import LandedFile, LandingSpec
from storage_core.write.ingest.text_files import ESCAPED, UNCLOSED

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def parsed(folder: Path, data: bytes | str, form: str = "csv", **settings: Any) -> Parsed:
    (folder / "a.csv").write_bytes(data.encode() if isinstance(data, str) else data)
    file = LandedFile("a.csv", (folder / "a.csv").stat().st_size, folder.resolve().as_uri())
    spec = LandingSpec(uri=file.uri, format=form, **settings)  # type: ignore[arg-type]
    return parse_file(file, LandingSpec.from_json(spec.to_json()), SCHEMA, None)


def rows(found: Parsed) -> list[tuple[Any, Any]]:
    return [(each["a"], each["s"]) for each in found.rows.to_pylist()]


def reasons(found: Parsed) -> list[tuple[int | None, str]]:
    return [(each.line, each.reason) for each in found.rejected]


@pytest.mark.parametrize(
    ("settings", "text", "wanted"),
    [
        ({"delimiter": ";"}, 'a;s\n1;"x;y"\n2;x,y\n', [(1, "x;y"), (2, "x,y")]),
        ({"delimiter": "\t"}, "a\ts\n1\tx y\n", [(1, "x y")]),
        ({"delimiter": "|", "quote": "'"}, "a|s\n1|'x|''y'''\n2|\"\n", [(1, "x|'y'"), (2, '"')]),
        ({"quote": ""}, 'a,s\n1,"x\n2,""\n', [(1, '"x'), (2, '""')]),
        ({"escape": "\\"}, 'a,s\n1,"x\\"y"\n2,x\\,y\n3,x\\\\\n', [(1, 'x"y'), (2, "x,y"), (3, "x\\")]),
        ({"header": False, "columns": ("s", "a")}, "x,1\n\ny,2\n", [(1, "x"), (2, "y")]),
        ({"header": False, "columns": ("a",)}, "1\n2\n", [(1, None), (2, None)]),
        ({"delimiter": ";", "null_values": ("-",)}, 'a;s\n-;"-"\n1;-\n', [(None, "-"), (1, None)]),
    ],
    ids=["semicolon", "tab", "quote", "no quote", "escape", "no header", "one column", "null"],
)
def test_records_in_other_dialects_become_rows(
    tmp_path: Path, settings: dict[str, Any], text: str, wanted: list[tuple[Any, Any]]
) -> None:
    found = parsed(tmp_path, text, **settings)
    assert found.rejected == ()
    assert rows(found) == wanted


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_a_header_with_another_delimiter_names_the_setting(tmp_path: Path, sign: str) -> None:
    (found,) = reasons(parsed(tmp_path, f"a{sign}s\n1{sign}x\n"))
    assert f"Declare `delimiter: {json.dumps(sign)}` in `landing`. Land the whole file again" in found[1]


def test_a_blank_name_in_the_header_is_in_the_reason(tmp_path: Path) -> None:
    [(line, reason)] = reasons(parsed(tmp_path, "a,s,\n1,x,\n"))
    assert line is None
    assert "the columns of the file are not the columns of the table (unknown column ''" in reason


@pytest.mark.parametrize("header", [True, False])
def test_records_have_their_numbers_in_every_dialect(tmp_path: Path, header: bool) -> None:
    text = "1;x\n\nbad;'y;z'\n3;x;y\n4;'x\ny'\n5\n6;x\n7;'x\ny;z\n"
    settings: dict[str, Any] = {} if header else {"header": False, "columns": ("a", "s")}
    text, first = ("a;s\n" + text, 2) if header else (text, 1)
    found = parsed(tmp_path, text, delimiter=";", quote="'", **settings)
    named = "the header has" if header else "`columns` has"
    assert rows(found) == [(1, "x"), (4, "x\ny"), (6, "x")]
    assert reasons(found) == [
        (first + 1, "column a: not a valid int64"),
        (first + 2, f"the record has 3 fields, {named} 2"),
        (first + 4, f"the record has 1 fields, {named} 2"),
        (first + 6, UNCLOSED),
    ]
    assert found.rejected[0].text == "bad;'y;z'"
    assert found.rejected[1].text == "3;x;y"


@pytest.mark.parametrize("quote", ['"', ""])
def test_a_file_that_ends_after_an_escape_is_rejected_there(tmp_path: Path, quote: str) -> None:
    found = parsed(tmp_path, "a,s\n1,x\n2,y\\", escape="\\", quote=quote)
    assert rows(found) == [(1, "x")]
    assert reasons(found) == [(3, ESCAPED)]


@pytest.mark.parametrize("block_bytes", [64, 2**20])
def test_small_blocks_give_the_same_records(tmp_path: Path, block_bytes: int) -> None:
    data = "".join(f"{number};'x;\n{number}'\n" for number in range(40)).encode()
    (tmp_path / "a.csv").write_bytes(data)
    file = LandedFile("a.csv", len(data), tmp_path.resolve().as_uri())
    spec = LandingSpec(uri=file.uri, format="csv", delimiter=";", quote="'", header=False, columns=("a", "s"))
    blocks = [*parse_blocks(file, spec, SCHEMA, None, block_bytes=block_bytes)]
    assert not any(block.rejected for block in blocks)
    found = [row for block in blocks for row in block.rows.to_pylist()]
    assert found == [{"a": number, "s": f"x;\n{number}"} for number in range(40)]


TEXTS = {
    "latin-1": "café ÿ",
    "windows-1252": "“€” café",
    "windows-1251": "Привет",
    "koi8-r": "Привет",
    "utf-16": "café 🌊 Привет",
    "utf-16-le": "café 🌊",
    "UTF-16BE": "café 🌊",
    "utf-32": "🌊",
    "shift_jis": "日本語",
    "gb18030": "中文 🌊",
    "utf-8": "🌊",
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("form", ["csv", "ndjson", "pattern"])
def test_text_in_another_encoding_gives_the_same_rows(tmp_path: Path, encoding: str, form: str) -> None:
    text = TEXTS[encoding]
    whole = {"csv": f"a,s\n1,{text}\n", "ndjson": f'{{"a": 1, "s": "{text}"}}\n', "pattern": f"1 {text}\n"}[form]
    settings = {"pattern": r"(?P<a>\d+) (?P<s>.*)"} if form == "pattern" else {}
    found = parsed(tmp_path, whole.encode(encoding), form, encoding=encoding, **settings)
    assert found.rejected == ()
    assert rows(found) == [(1, text)]


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("windows-1252", b"2,\x81\n"),
        ("windows-1253", b"2,\xd2\xaa\n"),  # two bytes that are together one character of UTF-8
        ("utf-16-le", b"2\0,\0\x00\xd8\n\0"),
        ("shift_jis", b"2,\xff\n"),
    ],
)
def test_a_character_that_is_not_in_the_encoding_rejects_its_line(tmp_path: Path, encoding: str, line: bytes) -> None:
    data = "a,s\n1,x\n".encode(encoding) + line + "3,z\n".encode(encoding)
    found = parsed(tmp_path, data, encoding=encoding)
    assert rows(found) == [(1, "x"), (3, "z")]
    assert reasons(found) == [(3, "the line is not UTF-8")]


def test_text_that_ends_inside_a_character_is_rejected_whole(tmp_path: Path) -> None:
    found = parsed(tmp_path, "a,s\n1,x\n".encode("utf-16") + b"1", encoding="utf-16")
    [(line, reason)] = reasons(found)
    assert (line, found.rows.num_rows) == (None, 0)
    assert "the text of the file is not utf-16" in reason


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            "format: ndjson, delimiter: ';'",
            "delimiter is only for the format csv, and format is 'ndjson'. Leave delimiter out",
        ),
        (
            "format: parquet, header: false",
            "header is only for the format csv, and format is 'parquet'. Leave header out",
        ),
        (
            "format: parquet, encoding: latin-1",
            "encoding is only for text, and format is 'parquet'. Leave encoding out",
        ),
        ("format: csv, delimiter: ';;'", "delimiter ';;' is not usable. Use one ASCII character"),
        ("format: csv, delimiter: '·'", "delimiter '·' is not usable"),
        ('format: csv, quote: "\\n"', "is not usable"),
        ("format: csv, delimiter: '\"'", "delimiter and quote are both '\"'. Use different characters"),
        ("format: csv, escape: ','", "delimiter and escape are both ','"),
        ("format: csv, header: false", "needs names for its fields. Name them in `columns`"),
        ("format: csv, columns: [a, s]", "Add `header: false`"),
        ("format: csv, header: false, columns: [a, a]", "columns has a name twice: a, a"),
        ("format: csv, header: false, columns: [a, z]", "'z'"),
        ("format: csv, header: false, columns: [s]", "the required columns a are missing"),
        ("format: csv, encoding: klingon", "encoding 'klingon' is not supported. Use one of utf-8, utf-16"),
        ("format: csv, encoding: base64", "encoding 'base64' is not supported"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: str, problem: str) -> None:
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "t.yaml"
    text = f"name: t\nuri: warehouse/t\ncolumns: {{a: long!, s: string}}\nlanding: {{uri: landing, {settings}}}\n"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        load(path)
    assert problem in str(refused.value)


def test_a_declaration_reads_files_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "t.yaml"
    path.write_text(
        "name: t\nuri: warehouse/t\ncolumns: {a: long!, s: string}\n"
        "landing: {uri: landing, format: csv, delimiter: ';', quote: \"'\", encoding: latin-1, header: false, "
        "columns: [a, s], null_values: [NULL]}\n"
    )
    spec = load(path).landing_spec()
    assert spec is not None
    (tmp_path / "landing").mkdir()
    data = "1;'é;'\n2;NULL\n".encode("latin-1")
    (tmp_path / "landing" / "a").write_bytes(data)
    found = parse_file(LandedFile("a", len(data), str(tmp_path / "landing")), spec, SCHEMA, None)
    assert rows(found) == [(1, "é;"), (2, None)]


def test_a_spec_without_new_settings_keeps_its_text() -> None:
    text = LandingSpec(uri="landing", format="csv").to_json()
    assert json.loads(text) == {
        "uri": "landing",
        "format": "csv",
        "pattern": None,
        "time_format": None,
        "null_values": [],
        "suffix": None,
    }
