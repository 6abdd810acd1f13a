"""A temporary file that cannot be made or written causes `Unavailable` with cause and advice, never `Corrupt`."""

from __future__ import annotations

import io
import resource
from collections.abc import Callable
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest

from storage_core.base.errors import Unavailable
from storage_core.base.process import scratch_folder
from storage_core.data.formats.avro import read_columns
from storage_core.data.rows.sort_order import SortOrder
from storage_core.split.encode import FileWriter
from tests.support.limits import limited

ROWS = pa.table({"a": pa.array(range(100_000))})


def avro() -> bytes:
    file = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    fastavro.writer(file, schema, [{"a": each} for each in range(10_000)])
    return file.getvalue()


def split() -> None:
    writer = FileWriter(ROWS.schema, SortOrder((), ""), {}, on_disk=True)
    writer.add(ROWS)
    writer.finish({})


def folder() -> None:
    with scratch_folder("state"):
        pass


USES: dict[str, Callable[[], object]] = {
    "split": split,
    "avro": lambda: read_columns(avro(), "state.avro"),
    "folder": folder,
}


@pytest.mark.parametrize("use", USES)
def test_without_a_folder_for_temporary_files(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="To use another folder, set TMPDIR"):
        USES[use]()


@pytest.mark.parametrize("use", ["split", "avro"])
def test_files_that_may_not_grow(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with limited(resource.RLIMIT_FSIZE, 100), pytest.raises(Unavailable, match=r"File too large.*ulimit -f"):
        USES[use]()
    assert list(tmp_path.iterdir()) == []
    USES[use]()
