"""`tidemark init --schema FILE` reads no more of the file than a schema can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.commands.creating import read_schema
from storage_core.errors import InvalidInput


def test_a_schema_file_that_is_far_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "schema.yaml"
    with file.open("wb") as opened:
        opened.truncate(2**40)  # no machine reads that
    with pytest.raises(InvalidInput, match=r"schema\.yaml: a schema has at most"):
        read_schema(file)
