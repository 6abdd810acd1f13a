"""Systems that are measured against and do not fit into `.venv/`: each is brought along once, into a folder of its own.

DuckLake needs an older DuckDB than the project has, Lance much that nobody else needs, Delta Lake on Spark needs JARs;
a judged collection of documents is in a package.
Where one cannot be had, the metric against it says why and counts as missed.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs.spark.spark import Spark
from scripts.installer import REQUIREMENTS, ROOT, CannotInstallError, find_uv, install, make_environment
from storage_core.errors import Unavailable

DUCKLAKE = ROOT / ".ducklake"
LANCE = ROOT / ".lance"
JUDGED = ROOT / ".judged"
_LATER = "not brought along yet; the full benchmark does that"


class NotMeasuredError(Exception):
    """A peer cannot be had on this machine; the message says why."""


def ducklake_python(*, make: bool) -> Path:
    """Return the Python that has DuckLake; without `make` only one that is there already."""
    return _python(DUCKLAKE, REQUIREMENTS / "ducklake.lock", make=make)


def lance_python(*, make: bool) -> Path:
    """Return the Python that has Lance; without `make` only one that is there already."""
    return _python(LANCE, REQUIREMENTS / "lance.lock", make=make)


def judged_documents(*, make: bool) -> Path:
    """Return the folder with the judged documents that a package has; without `make` only one that is there already."""
    _python(JUDGED, REQUIREMENTS / "judged.lock", make=make)
    (found,) = JUDGED.glob("lib/python*/site-packages/gensim/test/test_data")
    return found


def printed(python: Path, program: str, *arguments: str) -> Any:
    """Return what a program of `benchmarks.programs` prints, run by this Python."""
    command = [str(python), "-m", f"benchmarks.programs.{program}", *arguments]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if finished.returncode != 0:
        said = finished.stderr.strip().splitlines()[-1]
        raise NotMeasuredError(re.sub(r",? /\S+", "", said))  # without paths of the machine it was built on
    return json.loads(finished.stdout)


def start_with_delta(spark: Spark, *, make: bool) -> None:
    """Start Spark with Delta Lake, whose JARs may be fetched; not without `make`."""
    if not make:
        raise NotMeasuredError(_LATER)
    try:
        spark.session(with_delta=True)
    except Unavailable as error:
        raise NotMeasuredError("the JARs of Delta Lake cannot be had here") from error


def linked(files: Sequence[Path], folder: Path) -> None:
    """Let the folder have the files, in their order, and nothing else."""
    for index, file in enumerate(files):
        (folder / f"{index:05}.parquet").symlink_to(file)


def _python(folder: Path, lock: Path, *, make: bool) -> Path:
    python = folder / "bin" / "python"

    def build() -> None:
        make_environment(folder, find_uv())
        install(python, "--require-hashes", "-r", str(lock))

    _bring(folder, lock, build if make else None)
    return python


def _bring(folder: Path, described_by: Path, build: Callable[[], None] | None) -> None:
    """Have what the file describes in the folder; a stamp in it tells whether that is so."""
    stamp, wanted = folder / ".stamp", hashlib.sha256(described_by.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if build is None:
        raise NotMeasuredError(_LATER)
    try:
        build()
    except CannotInstallError as error:
        raise NotMeasuredError(str(error)) from error
    stamp.write_text(wanted)
