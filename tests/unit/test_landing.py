from __future__ import annotations

import os
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, NotFound
from storage_core.data.formats.keys import ChunkKey, raw_chunk_key
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.resolve import open_store
from storage_core.write.ingest.landing import (
    LandedFile,
    LandingSpec,
    captured_columns,
    discover,
    open_bytes,
    open_text,
    survey,
)
from tidemark import Table


def test_files_are_found_in_folders_by_name_and_work_in_progress_is_left_alone(tmp_path: Path) -> None:
    for name in ("b.log", "a/c..d.log", ".hidden.log", "_tmp/x.log", "e.log.part", "empty.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.log" else "line\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "b.log")
    found = discover(LandingSpec(uri=str(tmp_path), format="ndjson", suffix=".log"))
    uri = tmp_path.resolve().as_uri()
    assert [(each.path, each.size, each.uri) for each in found] == [("a/c..d.log", 5, uri), ("b.log", 5, uri)]


def test_a_file_that_has_the_suffix_in_other_letters_is_told(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.PARQUET", "_c.PARQUET", "d.csv"):
        (tmp_path / name).write_text("x")
    found = survey(LandingSpec(uri=str(tmp_path), format="parquet", suffix=".parquet"))
    assert [each.path for each in found.files] == ["a.parquet"]
    assert found.not_read_names == {"b.PARQUET": "the file name ends in .PARQUET, but the suffix is .parquet"}


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


def test_what_cannot_be_read_is_named_and_counted_and_neither_followed_nor_opened(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "sub").mkdir(parents=True)
    line = b'{"a":1}\n'
    odd = [b"a\nb.log", b"esc\x1b[31m.log", b"back\\slash.log", b"no-utf8-\xff.log", b"sub/bell\x07.log"]
    for name in (*odd, b"_hidden\n.log", b"other\nsuffix.txt", b" blanks .log", b"x" * 251 + b".log"):
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_bytes(line)
    (place / "odd\nfolder").mkdir()
    (place / "odd\nfolder" / "in.log").write_bytes(line)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.log").write_bytes(line)
    (place / "link.log").symlink_to(tmp_path / "elsewhere" / "secret.log")
    (place / "linked").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(place / "pipe.log")
    with socket.socket(socket.AF_UNIX) as listening:
        bound = os.open(place, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{bound}/socket.log")
        os.close(bound)
    found = survey(LandingSpec(uri=str(place), format="ndjson", suffix=".log"))
    assert [each.path for each in found.files] == [" blanks .log", "x" * 251 + ".log"]
    assert found.not_read_names == {
        "a\\nb.log": "the name contains a control character",
        "esc\\x1b[31m.log": "the name contains a control character",
        "back\\\\slash.log": "the name contains a backslash",
        "no-utf8-\\xff.log": "the name is not UTF-8",
        "sub/bell\\x07.log": "the name contains a control character",
        "odd\\nfolder": "the name contains a control character",
        "link.log": "the path is a symlink, which is not followed",
        "linked": "the path is a symlink, which is not followed",
        "pipe.log": "the path is not a regular file",
        "socket.log": "the path is not a regular file",
    }
    assert found.not_read == 10
    assert "".join(found.not_read_names).isprintable()


def test_all_that_is_not_read_is_counted_and_the_first_of_it_named(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}\n").write_bytes(b"x")
    found = survey(LandingSpec(uri=str(tmp_path), format="ndjson"))
    assert (found.files, found.not_read, len(found.not_read_names)) == ([], 50, 20)


def test_a_pipe_in_the_place_of_a_landed_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    with pytest.raises(NotFound), open_bytes(LandedFile("a.log", 1, str(tmp_path))):
        pass


TIMED = pa.schema([("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("place", ["{root}/data", "{root}/link", "file://{root}/data"])
@pytest.mark.parametrize("inner", ["", "/p", "/deep/p"])
def test_a_landing_place_that_contains_a_table_is_refused_before_a_file_is_read(
    tmp_path: Path, place: str, inner: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    place = place.format(root=tmp_path)
    Table.create(f"{place}{inner}", TIMED)
    with pytest.raises(InvalidInput, match="the landing location contains a table"):
        survey(LandingSpec(uri=place, format="parquet"))


def test_a_landing_place_that_contains_a_raw_log_is_refused(tmp_path: Path) -> None:
    key = raw_chunk_key(ChunkKey(segment_ms=1, writer="01234567-89ab-cdef-0123-456789abcdef", number=1))
    open_store(str(tmp_path / "landing/raw")).put(key, b"chunk", IfAbsent())
    with pytest.raises(InvalidInput, match="the landing location contains a raw log in its folder 'raw'"):
        survey(LandingSpec(uri=str(tmp_path / "landing"), format="ndjson"))


def test_a_table_that_landing_leaves_alone_may_lie_in_the_landing_place(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "_work/p"), TIMED)
    (tmp_path / "a.ndjson").write_text("{}\n")
    assert [each.path for each in discover(LandingSpec(uri=str(tmp_path), format="ndjson"))] == ["a.ndjson"]
