"""Fetches test files of other projects into a cache: `python -m scripts.foreign_suites` prints their folders.

A suite is a set of folders in the source package of another project. The package comes from the configured package
index, and must have the SHA-256 that is recorded here. No file of a suite is part of this repository. A suite in the
cache is not fetched again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.installer import CannotInstallError, find_uv

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemark" / "suites"
_MOST_BYTES: Final = 256 * 2**20
_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class Suite:
    """The test files in the source package of another project.

    - `folders`: the folders of the package that are unpacked.
    - `licences`: the licence files in the package, which are unpacked together with the folders.
    """

    package: str
    version: str
    sha256: str
    licence: str
    folders: tuple[str, ...]
    licences: tuple[str, ...]

    @property
    def name(self) -> str:
        """The package and its version."""
        return f"{self.package}-{self.version}"

    def is_wanted(self, path: PurePosixPath) -> bool:
        """Return True if a file of the package is in one of the folders, or is a licence."""
        return str(path) in self.licences or any(path.is_relative_to(each) for each in self.folders)


SUITES: Final = (
    Suite(
        "orjson",
        "3.9.9",
        "02e693843c2959befdd82d1ebae8b05ed12d1cb821605d5f9fe9f98ca5c9fd2b",
        "Apache-2.0 or MIT",
        ("data",),
        ("LICENSE-APACHE", "LICENSE-MIT"),
    ),
    Suite(
        "csvkit",
        "2.2.0",
        "147318a8dbaec07c0bbb9291c14b78de5fa32ed3d4a5c2396e52a83c0a30df6b",
        "MIT",
        ("examples",),
        ("COPYING",),
    ),
    Suite(
        "agate",
        "1.14.2",
        "7f29841c39d84b1de7fde762b8d792085371515324f3a01413b20f810398225b",
        "MIT",
        ("examples",),
        ("COPYING",),
    ),
    Suite(
        "fastavro",
        "1.9.7",
        "13e11c6cb28626da85290933027cd419ce3f9ab8e45410ef24ce6b89d20a1f6c",
        "MIT",
        ("tests/avro-files",),
        ("LICENSE", "NOTICE.txt"),
    ),
    Suite(
        "awkward",
        "2.14.0",
        "f5bce2ddfd4b5ad5277462b01adf94fd6ca90c33a56949fb8c00490c30725737",
        "BSD-3-Clause",
        ("tests/samples",),
        ("LICENSE",),
    ),
    Suite(
        "pyarrow",
        "26.0.1",
        "93affcbd8a343e98dc19e9ec8fe17271ebf8fe98102d8b7454175074409f8b72",
        "Apache-2.0",
        ("pyarrow/tests/data",),
        ("LICENSE.txt", "NOTICE.txt"),
    ),
)


def fetch(suite: Suite, cache: Path = CACHE) -> Path:
    """Return the folder with the files of a suite. The first call downloads the package.

    Raises:
        CannotInstallError: the package cannot be found, has other bytes than recorded, or is not safe to unpack.
    """
    folder = cache / f"{suite.name}-{suite.sha256[:16]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch, "files")
            unpack(suite, _download(suite), made)
            _put(made, folder)
    return folder


def _put(made: Path, folder: Path) -> None:
    """Rename the complete folder to its place, unless another process was faster."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise


def _download(suite: Suite) -> bytes:
    print(f"setup: fetching the test files of {suite.package} {suite.version}", file=sys.stderr)
    address = _address(suite)
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:  # noqa: S310  # the index gave the address
            data: bytes = answer.read(_MOST_BYTES)
    except OSError as error:
        raise CannotInstallError(
            f"the source package {suite.name} cannot be downloaded ({error}): check the network, then try again"
        ) from error
    return data


def _address(suite: Suite) -> str:
    """Return the address of the source package, as uv finds the package in the configured index."""
    uv = find_uv()
    if uv is None:
        raise CannotInstallError("uv is missing, and it finds the packages with test files: install uv, then try again")
    command = [str(uv), "pip", "compile", "--quiet", "--no-deps", "--universal", "--python-version", "3.11"]
    command += ["--python", sys.executable, "--format", "pylock.toml", "--no-header", "-"]
    wanted = f"{suite.package}=={suite.version}\n"
    found = subprocess.run(command, check=False, input=wanted, capture_output=True, text=True)
    if found.returncode != 0:
        raise CannotInstallError(f"uv does not find {suite.name} in the package index: {found.stderr.strip()}")
    for package in tomllib.loads(found.stdout)["packages"]:
        if "sdist" in package:
            return str(package["sdist"]["url"])
    raise CannotInstallError(f"the package index has no source package of {suite.name}: use an index that has one")


def unpack(suite: Suite, archive: bytes, folder: Path) -> None:
    """Write the wanted files of a source package below the folder.

    Only regular files are written, and no file is written outside of the folder.

    Raises:
        CannotInstallError: the package has other bytes than recorded, a path that is not safe, or too many bytes.
    """
    found = hashlib.sha256(archive).hexdigest()
    if found != suite.sha256:
        raise CannotInstallError(
            f"{suite.name} has the SHA-256 {found}, expected {suite.sha256}: check the package index, or record the "
            "new value in scripts/foreign_suites.py"
        )
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(archive), mode="r:gz") as files:
        for path, data in _wanted(suite, files):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


def _wanted(suite: Suite, files: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, bytes]]:
    room = _MOST_BYTES
    for member in files:
        top, *parts = PurePosixPath(member.name).parts or ("",)
        path = PurePosixPath(*parts)
        if not member.isreg() or not suite.is_wanted(path):
            continue
        room -= member.size
        if top in ("/", "..") or ".." in parts or room < 0:
            raise CannotInstallError(
                f"{suite.name} contains {member.name!r}, which is not safe to unpack: do not use it"
            )
        content = files.extractfile(member)
        yield path, content.read() if content is not None else b""


def main() -> int:
    """Fetch all suites, and print the folder of each."""
    try:
        folders = {suite.name: fetch(suite) for suite in SUITES}
    except CannotInstallError as failure:
        print(f"setup: {failure}", file=sys.stderr)
        return 1
    for name, folder in folders.items():
        print(f"{name:20}{folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
