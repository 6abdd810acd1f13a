"""A writer in another process is fenced while it writes: the table holds what was acknowledged, in order, no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import Table
from storage_core.errors import WriterFenced
from tests.e2e.scripted_writer import FENCED, Row, call, state_after

REPOSITORY = Path(__file__).parents[2]
SCHEMA = pa.schema([("tailnum", pa.string()), ("seats", pa.int64()), ("model", pa.string())])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    key = pa.field("tailnum", pa.string(), nullable=False)
    return Table.create(str(tmp_path / "planes"), SCHEMA.set(0, key), primary_key="tailnum").uri


def start(uri: str, first: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.e2e.scripted_writer", uri, str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)


def acknowledged(process: subprocess.Popen[str], seen: str) -> int:
    """The number of calls that were acknowledged, once the process has ended; a line cut by the kill counts not."""
    assert process.stdout is not None
    text = seen + process.stdout.read()
    process.stdout.close()
    return int(text[: text.rindex("\n")].split("\n")[-1]) + 1


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the writer ended before its first acknowledgement"
    return line


def rows(uri: str, consistency: str) -> dict[str, Row]:
    found = Table.open(uri).scan(consistency=consistency).to_arrow().to_pylist()
    keyed = {row["tailnum"]: row for row in found}
    assert len(keyed) == len(found)
    return keyed


def calls_made(uri: str, acknowledged_calls: int) -> int:
    """How many calls the table holds: those acknowledged, or one more that took effect before anybody was told."""
    state = rows(uri, "latest")
    made = [calls for calls in (acknowledged_calls, acknowledged_calls + 1) if state_after(calls) == state]
    assert made, f"after {acknowledged_calls} acknowledged calls the table holds {state}"
    return made[0]


def test_a_second_writer_fences_the_first_in_another_process_and_takes_over_what_it_acknowledged(uri: str) -> None:
    process = start(uri, 0)
    seen = first_line(process)
    with Table.open(uri).writer() as second:
        taken_over = rows(uri, "latest")
        told = acknowledged(process, seen)
        assert process.wait() == FENCED
        calls = calls_made(uri, told)
        assert taken_over == state_after(calls)
        for number in range(calls, calls + 10):
            call(second, number)
        assert rows(uri, "latest") == state_after(calls + 10)
        with Table.open(uri).writer() as third:
            with pytest.raises(WriterFenced, match="another writer claimed the region"):
                call(second, calls + 10)
            third.flush()
    assert rows(uri, "committed") == state_after(calls + 10)
