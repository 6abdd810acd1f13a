from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.ingest.landing import LandedFile, LandingSpec, captured_columns, discover, open_bytes, open_text
from storage_core.objectstore.contract import Overwrite
from storage_core.objectstore.resolve import open_store


def test_files_are_found_in_folders_by_name_and_work_in_progress_is_left_alone(tmp_path: Path) -> None:
    for name in ("b.log", "a/c..d.log", ".hidden.log", "_tmp/x.log", "e.log.part", "empty.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.log" else "line\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "b.log")
    found = discover(LandingSpec(uri=str(tmp_path), format="ndjson", suffix=".log"))
    uri = tmp_path.resolve().as_uri()
    assert [(each.path, each.size, each.uri) for each in found] == [("a/c..d.log", 5, uri), ("b.log", 5, uri)]


def test_a_place_that_does_not_exist_holds_no_files(tmp_path: Path) -> None:
    assert discover(LandingSpec(uri=str(tmp_path / "none"), format="ndjson")) == []


def test_a_spec_survives_its_json() -> None:
    spec = LandingSpec(
        uri="x", format="pattern", pattern="(?P<a>.)", time_format="%Y", null_values=("-",), suffix=".gz"
    )
    assert LandingSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "xml"},
        {"format": "pattern"},
        {"format": "csv", "pattern": "(?P<a>.)"},
        {"format": "parquet", "time_format": "%Y"},
        {"format": "pattern", "pattern": "(.)"},
        {"format": "pattern", "pattern": "(?P<a>.)(?P<a>.)"},
        {"format": "pattern", "pattern": "(?P<a>.(?=x))"},
    ],
)
def test_a_spec_that_cannot_be_read_with_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        LandingSpec(uri="x", **settings)  # type: ignore[arg-type]  # wrong values are the point


def test_groups_of_a_pattern_may_nest() -> None:
    assert captured_columns(r"^(?P<line>(?P<verb>\w+) (?P<path>\S+))$") == ("line", "verb", "path")


def test_a_file_in_any_store_reads_like_a_local_one() -> None:
    content = bytes(range(256)) * 40_000
    open_store("memory://test-landing").put("a/f.bin", content, Overwrite())
    (landed,) = discover(LandingSpec(uri="memory://test-landing", format="ndjson"))
    with open_bytes(landed) as file:
        assert file.read(1000) == content[:1000]
        assert file.seek(-10, 2) == len(content) - 10
        assert file.read() == content[-10:]
    with open_text(landed) as file:
        assert file.read() == content


def test_a_file_that_changed_or_went_after_it_was_listed_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    (landed,) = discover(LandingSpec(uri=str(tmp_path), format="ndjson"))
    (tmp_path / "a.log").write_text("one\ntwo\n")
    with pytest.raises(Corrupt, match="listed with 4 bytes, now 8"), open_bytes(landed):
        pass
    (tmp_path / "a.log").unlink()
    with pytest.raises(NotFound), open_bytes(landed):
        pass


def test_a_path_that_leaves_the_landing_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput), open_bytes(LandedFile("../secret", 1, str(tmp_path))):
        pass
