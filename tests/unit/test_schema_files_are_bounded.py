"""`tidemark init --schema FILE` reads at most the maximum size of a schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.commands.tables import read_schema
from storage_core.base.errors import InvalidInput


def test_a_schema_file_that_is_far_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "schema.yaml"
    with file.open("wb") as opened:
        opened.truncate(2**40)  # too large to read on any machine
    with pytest.raises(InvalidInput, match=r"schema\.yaml: a schema has at most"):
        read_schema(file)
