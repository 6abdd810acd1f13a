"""The code that Spark tasks run, as one zip of `jobs` and `storage_core`: what `spark-submit --py-files` takes.

Workers of a cluster share no disk with the driver; what a task imports travels with the session
(docs/architecture/orchestration.md, "Spark"). The libraries themselves, as in requirements/demo.lock, have to be
installed where the workers run.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds `jobs` and `storage_core`."""

_PACKAGES = ("jobs", "storage_core")


def first_on_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a Python must be told so that it finds our packages, and none of their names elsewhere, first.

    A user's project may have a folder `jobs` of its own: `python -m` looks into the working directory before anything
    else unless it is told not to, and into `PYTHONPATH` before what is installed.
    """
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(ROOT), *others]))}


def modules() -> Iterator[Path]:
    """Return the files of the code, in order."""
    return (file for package in _PACKAGES for file in sorted((ROOT / package).rglob("*.py")))


def write(folder: Path) -> Path:
    """Write the archive into a folder and return it. Equal code is an equal file of an equal name."""
    data = _archive()
    path = folder / f"tidemark-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    path.write_bytes(data)
    return path


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in modules():
            # A `ZipInfo` made by name alone has the same time everywhere.
            entry = zipfile.ZipInfo(file.relative_to(ROOT).as_posix())
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
