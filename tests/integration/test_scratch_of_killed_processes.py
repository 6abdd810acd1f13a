"""The temporary files of a killed process contain text of rows. The next process removes these files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.base.process import locked_folder, scratch_folder
from tidemark import IndexDefinition, Table

ROOT = Path(__file__).parents[2]
CANARY = "zqjcanary"

# The process is killed when it begins to remove its files, so that all of them exist.
KILLED = """
import os, signal, sys
from pathlib import Path
here = Path(sys.argv[1])
temporary = [str(here / "tmp"), str(here / "cache")]
def kill(event, arguments):
    if event == "shutil.rmtree" and str(arguments[0]).startswith(tuple(temporary)):
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "tempfile.mkstemp" and str(arguments[0]).startswith(tuple(temporary)):
        os.kill(os.getpid(), signal.SIGKILL)  # a file with a name in no locked folder
sys.addaudithook(kill)
from pipelines.cli import main
from tidemark import Table
uri = str(here / "table")
"""
DOORS = {
    "search": 'Table.open(uri).search("zqjcanary", index="words")',
    "search with a cache": 'Table.open(uri).search("zqjcanary", index="words", cache_dir=here / "cache")',
    "import": 'main(["import", "--query", "select 1 as n", str(here / "imported")])',
    "append": 'sys.stdin = open(here / "rows.ndjson"); main(["append", uri, "-"])',
    "append of csv": 'main(["append", uri, str(here / "rows.csv")])',
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make a table with an index, files to append, and a folder for temporary files."""
    made = IndexDefinition("words", "fulltext", ("text",))
    table = Table.create(str(tmp_path / "table"), pa.schema([("text", pa.string())]), indexes=[made])
    table.append([{"text": f"{CANARY} {number}"} for number in range(100)])
    (tmp_path / "rows.ndjson").write_text(f'{{"text": "{CANARY}"}}\n')
    (tmp_path / "rows.csv").write_text(f"text\n{CANARY}\n")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path


def left(place: Path) -> list[Path]:
    """Return the temporary folders and files, without entries of a cache."""
    return [*(place / "tmp").iterdir(), *(place / "cache").glob("tidemark-*")]


def run(place: Path, program: str) -> int:
    environment = {**os.environ, "TMPDIR": str(place / "tmp"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(place)]
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode


@pytest.mark.parametrize("door", DOORS)
def test_the_next_process_removes_what_a_killed_one_left(door: str, place: Path) -> None:
    assert run(place, KILLED + DOORS[door]) == -signal.SIGKILL
    assert left(place)
    where = 'here / "cache"' if "cache" in door else "None"
    after = f"from storage_core.base.process import scratch_folder\nwith scratch_folder('any', {where}):\n    pass\n"
    assert run(place, f"import sys, pathlib; here = pathlib.Path(sys.argv[1])\n{after}") == 0
    assert left(place) == []


def test_the_cache_that_is_cleared_takes_along_what_killed_processes_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for door in ("search", "search with a cache"):
        assert run(place, KILLED + DOORS[door]) == -signal.SIGKILL
    monkeypatch.setattr("tempfile.tempdir", str(place / "tmp"))
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(place / "cache"))
    assert main(["cache", "--clear"]) == 0
    assert left(place) == []


def test_a_folder_stays_while_any_process_has_its_lock(tmp_path: Path) -> None:
    folder, lock = locked_folder("test", tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]) as child:
        os.close(lock)
        next_process(tmp_path)
        assert folder.exists()
        child.communicate(b"\n")
    next_process(tmp_path)
    assert not folder.exists()


def test_a_folder_of_another_name_stays(tmp_path: Path) -> None:
    (other := tmp_path / "other-12345678.locked").mkdir()
    (short := tmp_path / "tidemark-notes").mkdir()
    with scratch_folder("test", tmp_path):
        assert other.exists()
        assert short.exists()


def next_process(folder: Path) -> None:
    program = "import sys, pathlib; from storage_core.base.process import scratch_folder\n"
    program += "with scratch_folder('test', pathlib.Path(sys.argv[1])): pass"
    subprocess.run([sys.executable, "-c", program, str(folder)], cwd=ROOT, check=True)
