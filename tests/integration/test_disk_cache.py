"""A process reads data on S3 from the disk cache.

An earlier process has fetched this data, and a checksum protects it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.data.formats.keys import parse
from storage_core.split import deletion_vectors
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable
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
COUNT = """
import sys
from tidemark import Table
print(len(Table.open(sys.argv[1]).files()))
"""
OPEN = ["get last_checkpoint", "get state", "get version", "list"]
"""Requests for the hint, its state, the missing next version, and the listing after this version."""
MANIFESTS = ["get manifest"] * 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "64")
    return tmp_path / "cache"


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    """Make a table of a large and a small split."""
    uri = s3_server.uri(f"cached/{uuid4()}")
    random = np.random.default_rng(1)
    rows = pa.table({name: random.integers(0, 2**62, ROWS) for name in "abc"})
    table = Table.create(uri, rows.schema)
    table.append(rows)
    table.append(rows.slice(0, 100))
    return uri


def process(program: str, uri: str) -> list[int]:
    """Run the program in a new process and return the numbers that it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", program, uri], cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=True
    )
    return [*map(int, ended.stdout.split())]


def test_the_next_process_fetches_nothing_of_a_split(uri: str, cache: Path, s3_server: S3Server) -> None:
    found = []
    for _ in range(2):
        s3_server.front.reset()
        gets, hits = process(ASK, uri)
        seen = [each for each in s3_server.front.seen if each.kind == "get" and each.target.endswith(".parquet")]
        assert len(seen) == gets
        found.append((gets, hits))
    (first, _), (second, hits) = found
    assert first > 2
    assert (second, hits > first) == (0, True)
    assert len(list(cache.iterdir())) == 2


def requested(server: S3Server, uri: str) -> list[str]:
    """Return each request to a table since the last reset, as the kind of the request and the kind of the object."""
    root = urlsplit(uri).path + "/"
    found = []
    for each in server.front.seen:
        parsed = parse(urlsplit(each.target).path.partition(root)[2])
        found.append(each.kind if parsed is None else f"{each.kind} {parsed.name or parsed.kind}")
    server.front.reset()
    return sorted(found)


def cache_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["cache", "--json", *arguments]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("cache")
def test_the_next_process_opens_a_table_without_its_manifests(
    uri: str, s3_server: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process requests the state and the later versions, because no other object has their checksums."""
    table = Table.open(uri)
    table.log.checkpoint(table.snapshot)
    table.append(pa.table({name: [1] for name in "abc"}))
    table.log.checkpoint(Table.open(uri).snapshot)

    def asked(splits: int) -> list[str]:
        s3_server.front.reset()
        assert process(COUNT, uri) == [splits]
        return requested(s3_server, uri)

    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "0")
    assert asked(3) == sorted(OPEN + MANIFESTS)
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "64")
    assert cache_command(capsys)["entries"] == 0
    assert asked(3) == sorted(OPEN + MANIFESTS)
    shown = cache_command(capsys)
    assert (shown["entries"], shown["bytes"] != 0) == (2, True)
    assert asked(3) == OPEN
    table.refresh().append(pa.table({name: [1] for name in "abc"}))
    assert asked(4) == sorted([*OPEN, "get version"])
    assert cache_command(capsys, "--clear")["cleared_bytes"] == shown["bytes"]
    assert asked(4) == sorted([*OPEN, "get version", *MANIFESTS])


@pytest.mark.usefixtures("cache")
def test_a_lookup_of_the_next_process_fetches_nothing_that_a_manifest_vouches_for(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached kinds are Bloom filters, key indexes, stored deletion vectors, and distributed or sorted records."""
    uri = s3_server.uri(f"cached/{uuid4()}")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(uri, schema, primary_key="id")
    keyed = KeyedTable(table.store, ids=SystemIds(), clock=ManualClock(SystemClock().now_ms(), step_ms=1))

    def flush(*entries: list[int]) -> None:
        with table.writer() as writer:
            for numbers in entries:
                writer.put([{"id": number, "v": number} for number in numbers])
            writer.flush()

    def asked() -> list[str]:
        s3_server.front.reset()
        opened = Table.open(uri)
        for key in (1, 2, 4, 6, 8):  # key 1 is missing, 2 deleted, 4 sorted, 6 in the newest generation, 8 in the base
            assert opened.get(key) == (None if key in (1, 2) else {"id": key, "v": key})
        assert opened.scan(["id"], consistency="committed").to_arrow().num_rows == 999
        return requested(s3_server, uri)

    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES", 0)
    monkeypatch.setattr("storage_core.write.region.manifest.COPIED_BYTES", 0)  # disable copies of filters
    flush([*range(0, 2_000, 2)])
    keyed.merge()
    with table.writer() as writer:
        writer.delete([2])
        writer.flush()
    keyed.merge()
    flush([4], [40])
    assert keyed.sort()
    flush([6], [60])
    vouched = {f"get {each}" for each in ("bloom_filter.bin", "key_index.arrow", "records.arrow", "split", "vector")}
    assert vouched <= {*asked()}
    assert vouched.isdisjoint(asked())


def test_a_read_goes_on_when_the_cache_is_cleared(uri: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"folder": str(cache), "most_bytes": 64 * 2**20, "bytes": 0, "entries": 0, "cleared_bytes": 0}
    assert cache_command(capsys) == nothing
    table = Table.open(uri)
    batches = iter(table.scan().to_reader(1_000))
    rows = next(batches).num_rows
    taken = cache_command(capsys)
    assert taken["entries"] != 0
    assert cache_command(capsys, "--clear")["cleared_bytes"] != 0
    assert rows + sum(each.num_rows for each in batches) == ROWS + 100
    assert table.scan().to_arrow().num_rows == ROWS + 100
    assert int(str(cache_command(capsys, "--clear")["cleared_bytes"])) > 8 * ROWS
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
