from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.store.contract import IfAbsent
from storage_core.store.resolve import open_store


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


def test_an_s3_uri_is_completed_from_the_environment_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    store = open_store("s3://bucket/table/")
    assert store.uri == "s3://bucket/table?endpoint=http://127.0.0.1:1&region=eu-central-1"
    assert open_store(store.uri).uri == store.uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "ftp://host/x",
        " file:/tmp",
        " file:///tmp",
        "file:///tmp ",
        "\u00a0s3://bucket/x",
        "file://host/x",
        "file:///x?y",
        "memory://",
        "memory://a b",
        "memory://a//b",
        "a\x00b",
        "s3://b",
    ],
)
def test_a_uri_that_names_no_store_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(uri)
