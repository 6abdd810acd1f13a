"""The code that Spark tasks run, as one zip of `jobs` and `storage_core`: what `spark-submit --py-files` takes.

Workers of a cluster share no disk with the driver; what a task imports travels with the session (design page 08,
"Spark"). The libraries themselves, as in requirements/demo.lock, have to be installed where the workers run.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds `jobs` and `storage_core`."""

_PACKAGES = ("jobs", "storage_core")


def write(folder: Path) -> Path:
    """Write the archive into a folder and return it. Equal code is an equal file of an equal name."""
    data = _archive()
    path = folder / f"tidemark-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    path.write_bytes(data)
    return path


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for package in _PACKAGES:
            for file in sorted((ROOT / package).rglob("*.py")):
                # A `ZipInfo` made by name alone has the same time everywhere.
                entry = zipfile.ZipInfo(file.relative_to(ROOT).as_posix())
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
