"""Full-text segments have the metadata that tantivy writes. A copied or mismatched segment is `Corrupt`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import tantivy

from storage_core.base.errors import Corrupt
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext, text_files
from storage_core.index.text_files import open_searcher

ROWS = pa.table({"body": ["ebb tide", "flood"]})


@pytest.mark.parametrize("tokenizer", ["default", "raw", "whitespace", "en_stem", "de_stem", "ngram_2_3"])
def test_the_meta_data_of_an_index_is_what_tantivy_writes(tmp_path: Path, tokenizer: str) -> None:
    builder = tantivy.SchemaBuilder()
    for column in ("body", "head"):
        builder.add_text_field(column, tokenizer_name=tokenizer)
    builder.add_unsigned_field(text_files.ROW_FIELD, fast=True)
    tantivy.Index(builder.build(), path=str(tmp_path), reuse=False)
    definition = IndexDefinition("text", "fulltext", ("body", "head"), {"tokenizer": tokenizer})
    assert json.loads(text_files.meta_of({}, definition)) == json.loads((tmp_path / "meta.json").read_bytes())


def test_a_segment_that_is_a_copy_of_another_is_corrupt_and_overwrites_nothing(tmp_path: Path) -> None:
    definition = IndexDefinition("text", "fulltext", ("body",))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    for name, data in fulltext.build(ROWS, definition).items():
        (first / name).write_bytes(data)
    shutil.copytree(first, second)
    for each in second.glob("*.idx"):
        each.write_bytes(b"other")
    before = {each.name: each.read_bytes() for each in first.iterdir()}
    with pytest.raises(Corrupt, match="also belongs to another split"):
        open_searcher([first, second], definition, tmp_path)
    assert {each.name: each.read_bytes() for each in first.iterdir()} == before


@pytest.mark.parametrize("rows", [0, 1, 3, 2**40])
def test_files_over_another_number_of_rows_are_corrupt(rows: int) -> None:
    definition = IndexDefinition("text", "fulltext", ("body",))
    files = fulltext.build(ROWS, definition)
    text_files.check(files, definition, rows=2, where="here")
    with pytest.raises(Corrupt, match=f"2 documents, expected {rows}"):
        text_files.check(files, definition, rows=rows, where="here")
