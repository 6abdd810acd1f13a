"""Peers that cannot be installed into `.venv/`.

A peer is a system that a benchmark compares with Tidemark. Each peer is installed once, into its own folder.

DuckLake needs an older DuckDB, Lance needs many other packages, and Delta Lake on Spark needs JARs. The documents with
similarity judgements come from the test data of a Python package. If a peer cannot be installed, its metric contains
the reason and counts as a missed aim.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs.spark.delta import JARS
from jobs.spark.spark import Spark
from scripts.installer import REQUIREMENTS, ROOT, CannotInstallError, find_uv, install, make_environment
from storage_core.base.errors import Unavailable

DUCKLAKE = ROOT / ".ducklake"
LANCE = ROOT / ".lance"
JUDGED = ROOT / ".judged"
_LATER = "not brought along yet; the full benchmark does that"


class NotMeasuredError(Exception):
    """The error for a peer that is not available on this machine. The message contains the reason."""


def ducklake_python(*, make: bool) -> Path:
    """Return the Python that has DuckLake. Without `make`, DuckLake must already be installed."""
    return _python(DUCKLAKE, REQUIREMENTS / "ducklake.lock", make=make)


def lance_python(*, make: bool) -> Path:
    """Return the Python that has Lance. Without `make`, Lance must already be installed."""
    return _python(LANCE, REQUIREMENTS / "lance.lock", make=make)


def judged_documents(*, make: bool) -> Path:
    """Return the folder with the judged documents. The documents come from a Python package.

    Without `make`, the package must already be installed.
    """
    _python(JUDGED, REQUIREMENTS / "judged.lock", make=make)
    (found,) = JUDGED.glob("lib/python*/site-packages/gensim/test/test_data")
    return found


def printed(python: Path, program: str, *arguments: str) -> Any:
    """Run a program of `benchmarks.programs` with this Python, and return its output."""
    command = [str(python), "-m", f"benchmarks.programs.{program}", *arguments]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if finished.returncode != 0:
        said = finished.stderr.strip().splitlines()[-1]
        raise NotMeasuredError(re.sub(r",? /\S+", "", said))  # removes paths of this machine
    return json.loads(finished.stdout)


def start_with_delta(spark: Spark, *, make: bool) -> None:
    """Start Spark with Delta Lake, and download its JARs if necessary. Without `make`, raise `NotMeasuredError`."""
    if not make:
        raise NotMeasuredError(_LATER)
    try:
        spark.session(with_delta=True)
    except Unavailable as error:
        raise NotMeasuredError("the JARs of Delta Lake cannot be had here") from error


def delta_jars(folder: Path, *, make: bool) -> Path:
    """Return a folder with the JARs of Delta Lake for files on disk.

    Spark downloads the JARs if necessary. Without `make`, the function raises `NotMeasuredError` if the JARs are not
    already downloaded.
    """
    from tests.support import delta_jars as downloaded  # this takes half a second

    if given := os.environ.get(JARS):
        return Path(given)
    if make:
        downloaded.main()
    folder.mkdir()
    for jar in downloaded.FOLDER.glob("io.*.jar"):
        (folder / jar.name).symlink_to(jar)
    if not any(folder.iterdir()):
        raise NotMeasuredError(_LATER)
    return folder


def linked(files: Sequence[Path], folder: Path) -> None:
    """Fill the folder with links to the files. The names of the links keep the order of the files."""
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
    """Build the folder from the file that describes it.

    If a stamp in the folder shows that it is current, do nothing.
    """
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
