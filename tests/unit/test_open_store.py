from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.errors import InvalidInput, Unsupported
from storage_core.objectstore.contract import IfAbsent
from storage_core.objectstore.resolve import open_store


def test_a_plain_path_and_its_file_uri_are_one_store(tmp_path: Path) -> None:
    folder = tmp_path / "a table%20"
    open_store(str(folder)).put("k", b"1", IfAbsent())
    by_uri = open_store(folder.as_uri() + "/")
    assert by_uri.get("k").data == b"1"
    assert by_uri.uri == open_store(folder).uri == folder.as_uri()


def test_a_relative_path_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("warehouse/t").uri == (tmp_path / "warehouse/t").as_uri()


def test_one_memory_name_is_one_store_in_this_process() -> None:
    open_store("memory://open-store/a").put("k", b"1", IfAbsent())
    assert open_store("memory://open-store/a/").get("k").data == b"1"
    assert list(open_store("memory://open-store/b").list("")) == []


def test_s3_is_refused_with_the_release_that_brings_it() -> None:
    with pytest.raises(Unsupported, match=r"0\.2"):
        open_store("s3://bucket/table")


@pytest.mark.parametrize(
    "uri", ["", "ftp://host/x", "file://host/x", "file:///x?y", "memory://", "memory://a b", "memory://a//b", "a\x00b"]
)
def test_a_uri_that_names_no_store_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(uri)
