"""The files of other projects are unpacked only from the recorded bytes, and only into the folder of the suite."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from scripts.foreign_suites import SUITES, Suite, fetch, unpack
from scripts.installer import CannotInstallError

SUITE = Suite("demo", "1.0", "", "MIT", ("data", "more/inside"), ("LICENSE",))


def package(files: Mapping[str, bytes | None]) -> tuple[Suite, bytes]:
    """Return a `Suite` and its source package with the files. A file with content None becomes a link to /etc."""
    target = BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            if data is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc"
            member.size = len(data or b"")
            archive.addfile(member, BytesIO(data or b""))
    found = target.getvalue()
    return replace(SUITE, sha256=hashlib.sha256(found).hexdigest()), found


def test_only_the_wanted_files_of_a_package_are_written(tmp_path: Path) -> None:
    files = {
        "demo-1.0/data/a.json": b"[]",
        "demo-1.0/database/b.json": b"{}",
        "demo-1.0/more/inside/deep/c.csv": b"c",
        "demo-1.0/more/d.csv": b"d",
        "demo-1.0/LICENSE": b"licence",
        "demo-1.0/data/link": None,
    }
    unpack(*package(files), tmp_path / "out")
    written = {str(each.relative_to(tmp_path)): each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    assert written == {"out/data/a.json": b"[]", "out/more/inside/deep/c.csv": b"c", "out/LICENSE": b"licence"}
    assert not any(each.is_symlink() for each in tmp_path.rglob("*"))


def test_a_package_with_other_bytes_than_recorded_is_refused(tmp_path: Path) -> None:
    suite, data = package({"demo-1.0/data/a.json": b"[]"})
    with pytest.raises(CannotInstallError, match=f"expected {suite.sha256}: check the package index"):
        unpack(suite, data + b"\0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["demo-1.0/data/../../../out.json", "../data/out.json", "/data/out.json"])
def test_a_package_with_a_path_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotInstallError, match="which is not safe to unpack: do not use it"):
        unpack(*package({name: b"[]"}), tmp_path / "a" / "b")
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_suite_in_the_cache_is_not_fetched_again(tmp_path: Path) -> None:
    suite, _ = package({})
    folder = tmp_path / f"demo-1.0-{suite.sha256[:16]}"
    folder.mkdir()
    assert fetch(suite, tmp_path) == folder


def test_each_suite_has_a_hash_a_licence_and_a_line_in_the_notice() -> None:
    notice = (Path(__file__).parents[2] / "NOTICE").read_text()
    for suite in SUITES:
        assert len(suite.sha256) == 64
        assert suite.folders
        assert suite.licences
        assert f"{suite.package} {suite.version} ({suite.licence})" in notice
