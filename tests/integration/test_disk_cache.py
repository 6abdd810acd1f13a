"""The cache of a user, over S3: the next process fetches nothing of a split that one before it has read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from pipelines.cli import main
from tests.support.s3_server import S3Server
from tidemark import Table

ROOT = Path(__file__).resolve().parents[2]
ROWS = 200_000
ASK = """
import sys
from tidemark import Table
table = Table.open(sys.argv[1])
before = table.store.requests["get"]
assert table.scan(["b"]).to_arrow().num_rows == 200_100
assert table.sql("select count(*) as n from t where b >= 0").to_pylist() == [{"n": 200_100}]
print(table.store.requests["get"] - before, table.cache_counts.hits)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "64")
    return tmp_path / "cache"


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    """A table of a large and a small split."""
    uri = s3_server.uri(f"cached/{uuid4()}")
    random = np.random.default_rng(1)
    rows = pa.table({name: random.integers(0, 2**62, ROWS) for name in "abc"})
    table = Table.create(uri, rows.schema)
    table.append(rows)
    table.append(rows.slice(0, 100))
    return uri


def test_the_next_process_fetches_nothing_of_a_split(uri: str, cache: Path, s3_server: S3Server) -> None:
    found = []
    for _ in range(2):
        s3_server.front.reset()
        ended = subprocess.run(
            [sys.executable, "-c", ASK, uri], cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=True
        )
        gets, hits = map(int, ended.stdout.split())
        seen = [each for each in s3_server.front.seen if each.kind == "get" and each.target.endswith(".parquet")]
        assert len(seen) == gets
        found.append((gets, hits))
    (first, _), (second, hits) = found
    assert first > 2
    assert (second, hits > first) == (0, True)
    assert len(list(cache.iterdir())) == 2


def test_a_read_goes_on_when_the_cache_is_cleared(uri: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> dict[str, object]:
        capsys.readouterr()
        assert main(["cache", "--json", *arguments]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    nothing = {"folder": str(cache), "most_bytes": 64 * 2**20, "bytes": 0, "entries": 0, "cleared_bytes": 0}
    assert command() == nothing
    table = Table.open(uri)
    batches = iter(table.scan().to_reader(1_000))
    rows = next(batches).num_rows
    taken = command()
    assert taken["entries"] != 0
    assert command("--clear")["cleared_bytes"] != 0
    assert rows + sum(each.num_rows for each in batches) == ROWS + 100
    assert table.scan().to_arrow().num_rows == ROWS + 100
    assert int(str(command("--clear")["cleared_bytes"])) > 8 * ROWS
    assert main(["cache"]) == 0
    assert str(cache) in capsys.readouterr().out


def test_a_cache_that_cannot_be_shown_is_said_to_be(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("mine")
    assert main(["cache", "--clear"]) == 5
    assert str(cache) in capsys.readouterr().err
    assert cache.read_text() == "mine"
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "much")
    assert main(["cache"]) == 2
    assert "TIDEMARK_CACHE_MIB" in capsys.readouterr().err
