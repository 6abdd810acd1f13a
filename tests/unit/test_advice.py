"""The advice in a message of `Corrupt` appears once, even if the error is built, caught, reworded and sent."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import (
    SEE_CORRUPT,
    CommitConflict,
    Corrupt,
    Fenced,
    Held,
    NotFound,
    RegionClosed,
    SnapshotExpired,
    TidemarkError,
    WriterFenced,
    error_of,
)
from storage_core.data.formats import bundle, documents
from storage_core.data.formats.keys import lock_key, version_key
from storage_core.log.codec import decode_version
from storage_core.log.job_run import TaskFailure
from storage_core.maintain.findings import Kind, damage_of
from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.landing import LandedFile, LandingSpec

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("storage_core", "jobs", "assets", "pipelines") for path in (ROOT / folder).rglob("*.py")]
OWN = "copy a backup of live/ into any store"
ADVICES = (SEE_CORRUPT, OWN, "restore the object", "break the lease", "Land the whole file again")

# An `except` clause with one of these classes also catches a `Corrupt` error.
CAUGHT = {"Corrupt", "TidemarkError", "DAMAGE", "UNREADABLE", "LASTING"}


def advices(text: str) -> list[str]:
    return [each for each in ADVICES for _ in range(text.lower().count(each.lower()))]


def raised(call: Callable[[], object]) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        call()
    return caught.value


def sent(error: TidemarkError) -> TidemarkError:
    return error_of(error.kind, str(error))


def test_damage_is_shown_with_the_advice_to_run_fsck_and_with_its_own_where_it_has_one() -> None:
    version = version_key(3)
    expected = bundle.Expected(where="index/a", size=100, footer_offset=10, xxh3="0" * 16, identity="a")
    assert advices(str(raised(lambda: decode_version(b"", version)))) == [SEE_CORRUPT]
    assert advices(str(raised(lambda: documents.decode_lease(b"{}", lock_key("merge"))))) == ["break the lease"]
    assert advices(str(raised(lambda: bundle.unpack_bundle(b"", expected)))) == ["restore the object"]


@pytest.mark.parametrize(
    "error", [Corrupt("split a: torn", key="a"), Corrupt("chunks are missing", advice=OWN, key="a")]
)
def test_an_error_keeps_its_one_advice_when_it_is_re_worded_copied_or_sent_to_another_process(error: Corrupt) -> None:
    once = advices(str(error))
    again = error.reworded(f"{error.found}; 3 rows are not written", lost_rows=3)
    assert len(once) == 1
    assert advices(str(again)) == once
    assert (again.found, again.context) == (f"{error.found}; 3 rows are not written", {"key": "a", "lost_rows": 3})
    assert str(copy.deepcopy(error)) == str(error)
    assert str(sent(error)) == str(error)
    there = TaskFailure.of(error).error()
    assert advices(str(sent(there.reworded(f"{there.found}; window 7 was not compacted")))) == once


def test_a_re_worded_error_is_another_object_and_leaves_the_first_as_it_was() -> None:
    first = CommitConflict("version 4 is taken", version=4)
    second = first.reworded("version 4 is taken; again")
    second.context["written"] = ["r"]
    assert (str(first), first.context) == ("version 4 is taken", {"version": 4})
    assert (type(second), str(second)) == (CommitConflict, "version 4 is taken; again")


def test_a_landed_file_that_cannot_be_used_is_to_be_landed_again_and_no_table_is_suspected(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    file = LandedFile("a.parquet", 10, tmp_path.as_uri())
    spec = LandingSpec(uri=tmp_path.as_uri(), format="parquet")
    schema = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"))])
    reason = parse_file(file, spec, schema, "at").rejected[0].reason
    assert advices(reason) == ["Land the whole file again"]


@pytest.mark.parametrize("error", [Corrupt("a: torn"), NotFound("a: torn")])
def test_a_finding_of_fsck_does_not_say_to_run_fsck(error: TidemarkError) -> None:
    assert damage_of(Kind.SPLIT_DAMAGED, error, "a", "a whole split").found == "a: torn"


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    return {
        str(path.relative_to(ROOT)): ast.parse(text) for path, text in texts.items() if any(map(text.count, CAUGHT))
    }


def test_no_text_of_a_corrupt_holds_the_advice_that_the_class_adds(sources: dict[str, ast.Module]) -> None:
    texts = [(f"{name}:{line}", text) for name, tree in sources.items() for line, text in _texts(tree)]
    assert len(texts) > 100
    assert [where for where, text in texts if _advises(text)] == []


def test_whoever_takes_up_the_text_of_a_corrupt_that_it_caught_takes_what_was_found(
    sources: dict[str, ast.Module],
) -> None:
    found = [f"{name}:{line}" for name, tree in sources.items() for line in _whole_texts(tree)]
    assert not found, found


def test_both_rules_see_what_breaks_them() -> None:
    tree = ast.parse(
        "try:\n    f()\nexcept (NotFound, Corrupt) as error:\n    log.info('%s', error)\n"
        "    raise Corrupt(f'{key}: {error}. {SEE_CORRUPT}') from error\n"
    )
    assert [line for line, text in _texts(tree) if _advises(text)] == [5]
    assert [*_whole_texts(tree)] == [5]


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the line and source of the first argument of each `Corrupt`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Corrupt":
            yield node.lineno, ast.unparse(node.args[0])


def _advises(text: str) -> bool:
    return any(each in text for each in ("SEE_CORRUPT", "docs/", "tidemark ", *ADVICES))


def _whole_texts(tree: ast.Module) -> Iterator[int]:
    """Return the lines at which a handler of a `Corrupt` error puts the whole `str(error)` into a longer text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            names = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)}
            if names & CAUGHT:
                shown = [each for each in ast.walk(node) if isinstance(each, ast.FormattedValue)]
                yield from (each.lineno for each in shown if _is_whole(each, node.name))


def _is_whole(shown: ast.FormattedValue, name: str | None) -> bool:
    return isinstance(shown.value, ast.Name) and shown.value.id == name and shown.conversion == -1


def test_run_it_again_and_stop_are_two_exit_codes() -> None:
    again = {each.exit_code for each in (CommitConflict, Held, SnapshotExpired)}
    stop = {each.exit_code for each in (Fenced, WriterFenced, RegionClosed)}
    assert (again, stop) == ({3}, {6})
