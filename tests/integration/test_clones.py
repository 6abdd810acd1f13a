"""Source and clone change independently, also by compaction and collection, and all versions return correct rows."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

import tidemark as tm
from jobs.spark.spark import Spark
from pipelines.cli import main
from storage_core.data.steps import Ingest
from storage_core.log import snapshot as snapshots
from storage_core.log.actions import FEATURES, SHARED_FEATURE
from storage_core.log.job_run import run
from storage_core.log.log import TransactionLog, has_compact_state, read_tags
from storage_core.log.sharing import open_table_store
from storage_core.maintain.check import fsck
from storage_core.store.contract import Committed, IfAbsent
from storage_core.store.resolve import open_store
from tests.support import upkeep
from tests.support.clock import ManualClock
from tests.support.foreign_files import hashes
from tests.support.s3_server import S3Server

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("host", pa.string()), ("n", pa.int64()), ("text", pa.string())])
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "hosts", "kind": "bitmap", "columns": ["host"]},
]
NOW = {"gc.horizon": "0", "gc.retention": "0"}
FAR_AHEAD = 4 * 10**12
Rows = Counter[tuple[object, ...]]


def given(first: int, last: int) -> list[dict[str, object]]:
    return [
        {
            "at": dt.datetime(2024, 1, 1, n % 3, tzinfo=dt.UTC),
            "host": f"h{n % 5}",
            "n": n,
            "text": f"word{n % 7} of {n}",
        }
        for n in range(first, last)
    ]


def filled(uri: str) -> tm.Table:
    """Make a table of several versions with segments, deleted rows and a compaction that moved rows."""
    table = tm.Table.create(
        uri, SCHEMA, time_column="at", window="1h", sort_schema="host|timestamp/V2", indexes=INDEXES, settings=NOW
    )
    table.append(given(0, 300))
    table.append(given(300, 600))
    upkeep.catch_up(table)
    upkeep.compact(table)
    table.refresh().append(given(600, 900))
    table.delete("n % 10 = 3")
    return table.refresh()


def rows_of(table: tm.Table | str, at: int | None = None) -> Rows:
    opened = tm.Table.open(table) if isinstance(table, str) else table
    found = opened.scan(["host", "n", "text"], at=at).to_arrow()
    return Counter(tuple(row.values()) for row in found.to_pylist())


def found_by_search(uri: str) -> list[int]:
    table = tm.Table.open(uri)
    found = table.search("word3", index="words", limit=1000, columns=["n"]).to_arrow()
    assert table.search_count("h2", index="hosts") == sum(
        count for row, count in rows_of(uri).items() if row[0] == "h2"
    )
    return sorted(found.column("n").to_pylist())


def kept_up(uri: str) -> None:
    """Compact, index and checkpoint, then collect all unneeded objects in two runs."""
    table = tm.Table.open(uri)
    upkeep.compact(table)
    upkeep.catch_up(table.refresh())
    upkeep.checkpoint(table)
    for _ in range(2):
        upkeep.collect(table.refresh(), horizon_ms=0, at_ms=FAR_AHEAD)


def sound(uri: str) -> bool:
    report = fsck(open_table_store(uri), clock=ManualClock(FAR_AHEAD), deep=True)
    return [each for each in report.findings if each.severity.value != "note"] == []


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_both_sides_change_are_compacted_and_collected_and_neither_loses_a_row(tmp_path: Path, deep: bool) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    before = rows_of(filled(source))
    words = found_by_search(source)
    done = tm.Table.open(source).clone(new, deep=deep)
    assert (done.rows, done.commit_id != "", done.tag is None) == (sum(before.values()), True, deep)
    assert rows_of(new) == before
    assert found_by_search(new) == words
    assert sound(new)

    tm.Table.open(source).delete("host = 'h1'")
    tm.Table.open(source).append(given(2000, 2100))
    kept_up(source)
    assert rows_of(new) == before, "what the source did since is not in the clone, and took nothing of it"
    assert found_by_search(new) == words

    clone = tm.Table.open(new)
    clone.append(given(5000, 5100))
    clone.update({"text": "word3 now"}, "n = 11")
    after = rows_of(clone)
    kept_up(new)
    here = rows_of(source)
    kept_up(source)
    kept_up(new)
    assert rows_of(new) == after
    assert rows_of(source) == here
    assert found_by_search(new) == sorted({*words, 11, *(n for n in range(5000, 5100) if n % 7 == 3)})
    assert sound(new)
    assert sound(source)


def test_a_shallow_clone_writes_a_log_and_no_file_of_rows(tmp_path: Path) -> None:
    source, new = tmp_path / "source", tmp_path / "clone"
    filled(str(source))
    before = {name: found for name, found in hashes(source).items() if name.startswith(("splits/", "_indices/"))}
    done = tm.Table.open(str(source)).clone(str(new))
    assert not list(new.glob("splits/**/*.parquet"))
    assert (new / "_source.json").exists()
    assert [each.name for each in tm.Table.open(str(source)).tags()] == [done.tag]
    kept_up(str(new))
    after = {name: found for name, found in hashes(source).items() if name.startswith(("splits/", "_indices/"))}
    assert after == before, "a collector of the clone deletes nothing of the source"


def test_the_tag_of_a_shallow_clone_never_expires_and_a_deep_clone_leaves_none(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA, settings=NOW)
    table.append(given(0, 10))
    done = table.clone(str(tmp_path / "shallow"))
    table.clone(str(tmp_path / "deep"), deep=True)
    [tag] = read_tags(table.store).by_name.values()
    assert (tag.name, tag.expires_at_ms) == (done.tag, None)


def test_a_clone_deletes_and_writes_nothing_in_its_source(tmp_path: Path) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    table = tm.Table.create(source, SCHEMA, settings=NOW)
    table.append(given(0, 10))
    table.clone(new)
    (key,) = table.refresh().snapshot.splits
    before = hashes(tmp_path / "source")
    store = open_table_store(new)
    assert store.get(key).data, "a file of the source"
    assert list(store.delete([key])) == [key]
    assert isinstance(store.put(key, b"mine", IfAbsent()), Committed)
    assert (open_table_store(new).get(key).data, hashes(tmp_path / "source")) == (b"mine", before)


def test_an_older_version_is_cloned_and_stays_though_its_splits_left_the_source(tmp_path: Path) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    table = tm.Table.create(source, SCHEMA, settings=NOW)
    version = table.append(given(0, 50)).version
    then = rows_of(table)
    table.append(given(50, 80))
    assert table.clone(new, version=version).source_version == version
    table.delete("true")
    kept_up(source)
    assert rows_of(new) == then
    assert not rows_of(source)


def test_without_its_tag_the_files_of_a_shallow_clone_are_collected_and_it_says_so(tmp_path: Path) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    table = tm.Table.create(source, SCHEMA, settings=NOW)
    table.append(given(0, 50))
    tag = table.clone(new).tag
    table.delete("true")
    assert tag is not None
    table.untag(tag)
    kept_up(source)
    with pytest.raises(
        tm.errors.TidemarkError,
        match=r"of this shallow clone. Check whether the tag of the clone was removed in the source",
    ):
        rows_of(new)


def test_a_clone_of_a_clone_reads_through_both_and_a_deep_one_needs_neither(tmp_path: Path) -> None:
    first, second, third, fourth = (str(tmp_path / name) for name in ("a", "b", "c", "d"))
    before = rows_of(filled(first))
    tm.Table.open(first).clone(second)
    tm.Table.open(second).delete("n < 100")
    left = Counter({row: count for row, count in before.items() if isinstance(row[1], int) and row[1] >= 100})
    tm.Table.open(second).clone(third)
    tm.Table.open(third).clone(fourth, deep=True)
    assert rows_of(third) == left
    for each in (first, second, third):
        kept_up(each)
        assert sound(each)
    assert (rows_of(second), rows_of(third)) == (left, left)
    shutil.rmtree(first)
    assert rows_of(fourth) == left
    assert sound(fourth)


def test_a_clone_goes_on_exactly_once_where_the_source_was(tmp_path: Path) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    stream = pa.table({"n": [1, 2, 3]})
    tm.Table.import_from(source, stream, name="numbers")
    tm.Table.open(source).clone(new)
    assert tm.Table.import_from(new, stream, name="numbers").commit_id == ""


@pytest.mark.parametrize("deep", [False, True])
def test_a_clone_of_a_clone_of_a_table_that_forgot_forgets_and_compacts_its_state(tmp_path: Path, deep: bool) -> None:
    table = _forgetful(str(tmp_path / "source"))
    table.clone(str(tmp_path / "first"), deep=deep)
    tm.Table.open(str(tmp_path / "first")).clone(str(tmp_path / "second"), deep=deep)
    clone = tm.Table.open(str(tmp_path / "second"))
    assert not clone.snapshot.txns.every("tidemark"), "they record versions of the source"
    _forget_and_compact(clone)


def test_a_clone_that_an_earlier_release_made_of_a_table_that_forgot_forgets_too(tmp_path: Path) -> None:
    source = _forgetful(str(tmp_path / "source"))
    source.clone(str(tmp_path / "clone"), deep=True)
    clone = tm.Table.open(str(tmp_path / "clone"))
    taken_over = list(source.snapshot.txns.every("tidemark").values())
    assert {each.version > 1 for each in taken_over} == {True}
    log = TransactionLog(clone.store)
    log.commit(log.snapshot(), taken_over, operation="APPEND")
    _forget_and_compact(clone.refresh())


def _forgetful(uri: str) -> tm.Table:
    table = tm.Table.create(uri, SCHEMA, settings={"checkpoint.interval": 1})
    for n in range(6):
        table.append(given(10 * n, 10 * n + 10))
    table.forget("n = 0")
    table.checkpoint(compact=True)
    table.append(given(100, 110))
    return table.checkpoint(compact=True)


def _forget_and_compact(clone: tm.Table) -> None:
    for number in (13, 25):
        assert clone.forget(f"n = {number}").rows == 1
        clone = clone.refresh()
        assert clone.scan(filter=f"n = {number}").to_arrow().num_rows == 0
        clone.append(given(200, 210))
        assert has_compact_state(clone.checkpoint(compact=True).snapshot)


def test_rows_that_are_not_merged_are_counted_and_not_in_a_clone(tmp_path: Path) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    table = tm.Table.create(source, pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())]),
                            primary_key="k")  # fmt: skip
    table.append([{"k": k, "v": "merged"} for k in range(10)])
    upkeep.merge(table)
    table.refresh().append([{"k": 3, "v": "later"}, {"k": 99, "v": "later"}])
    assert table.clone(new).unmerged == 2
    clone = tm.Table.open(new)
    assert clone.get(3) == {"k": 3, "v": "merged"}
    clone.append([{"k": 3, "v": "own"}])
    upkeep.merge(clone)
    upkeep.merge(table)
    assert (tm.Table.open(new).get(3), tm.Table.open(source).get(3)) == ({"k": 3, "v": "own"}, {"k": 3, "v": "later"})
    assert tm.Table.open(new).get(99) is None


def test_a_place_that_holds_another_table_is_refused(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    tm.Table.create(str(tmp_path / "other"), SCHEMA)
    with pytest.raises(tm.errors.InvalidInput, match="a table is here already"):
        table.clone(str(tmp_path / "other"))
    with pytest.raises(tm.errors.InvalidInput, match="the location is in the folder of the table"):
        table.clone(str(tmp_path / "source" / "inner"))
    assert table.tags() == []


def test_a_clone_is_told_from_one_of_a_clone_that_has_the_same_version(tmp_path: Path) -> None:
    first, second, third = (str(tmp_path / name) for name in ("a", "b", "c"))
    table = tm.Table.create(first, SCHEMA)
    table.append(given(0, 10))
    table.clone(second)
    clone = tm.Table.open(second)
    clone.append(given(10, 30))
    assert (clone.version, table.version) == (1, 1)
    clone.clone(third)
    with pytest.raises(tm.errors.InvalidInput, match="a table is here already"):
        table.clone(third)
    assert clone.clone(third).commit_id == ""
    assert rows_of(third) == rows_of(clone) != rows_of(table)


def test_what_a_killed_shallow_clone_left_is_no_place_for_another(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "_source.json").write_text('{"format":1,"uri":"file:///elsewhere"}')
    for deep in (False, True):
        with pytest.raises(tm.errors.InvalidInput, match=r"contains _source\.json, which an interrupted clone left"):
            table.clone(str(tmp_path / "clone"), deep=deep)


def test_other_bytes_at_the_place_of_a_deep_clone_say_to_take_another_place(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    (file,) = (tmp_path / "source").glob("splits/*/*.parquet")
    there = tmp_path / "clone" / file.relative_to(tmp_path / "source")
    there.parent.mkdir(parents=True)
    there.write_bytes(b"other")
    with pytest.raises(tm.errors.InvalidInput, match=r"has other content at this key. Clone to an empty location"):
        table.clone(str(tmp_path / "clone"), deep=True)


def test_a_release_that_knows_no_shared_objects_refuses_a_shallow_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new, copy = (str(tmp_path / name) for name in ("source", "clone", "copy"))
    table = tm.Table.create(source, SCHEMA)
    table.append(given(0, 10))
    table.clone(new)
    table.clone(copy, deep=True)
    monkeypatch.setattr(snapshots, "FEATURES", FEATURES - {SHARED_FEATURE})
    with pytest.raises(tm.errors.Unsupported, match=SHARED_FEATURE):
        tm.Table.open(new)
    assert sum(rows_of(copy).values()) == sum(rows_of(source).values()) == 10


def test_a_shallow_clone_is_not_repaired_without_its_source(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    table.clone(str(tmp_path / "clone"))
    assert main(["repair", str(tmp_path / "clone"), "--into", str(tmp_path / "repaired")]) == 2


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_tables_on_s3_are_cloned_there(s3_server: S3Server, deep: bool) -> None:
    source, new = s3_server.uri(f"tables/{uuid4()}"), s3_server.uri(f"tables/{uuid4()}")
    before = rows_of(filled(source))
    done = tm.Table.open(source).clone(new, deep=deep)
    tm.Table.open(source).delete("true")
    kept_up(source)
    assert rows_of(new) == before
    tm.Table.open(new).append(given(900, 950))
    after = rows_of(new)
    kept_up(new)
    assert rows_of(new) == after
    copied = list(open_store(new).list("splits/"))
    assert (done.copied_bytes > 0) == deep
    assert copied, "what was compacted since is the clone's own"


def test_a_shallow_clone_sends_no_signed_request_to_a_service_that_nobody_chose(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    table.clone(str(tmp_path / "clone"))
    pointer = tmp_path / "clone" / "_source.json"
    pointer.chmod(0o644)
    pointer.write_text('{"format":1,"uri":"s3://bucket/table?endpoint=http://127.0.0.1:9"}')
    with pytest.raises(
        tm.errors.InvalidInput, match=r"from http://127\.0\.0\.1:9, which is neither the service of the clone"
    ):
        rows_of(str(tmp_path / "clone"))


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", tm.errors.Corrupt, "not the place of the source"),
        (b'{"format":1,"uri":"fi', tm.errors.Corrupt, "not the place of the source"),
        (b'{"format":1,"uri":7}', tm.errors.Corrupt, "not the place of the source"),
        (b'{"format":2,"uri":"file:///elsewhere"}', tm.errors.Unsupported, "format 2, this release reads 1. Upgrade"),
        (None, tm.errors.SnapshotExpired, "the log contains this split, but the store does not"),
    ],
)
def test_a_clone_whose_note_of_its_source_is_damaged_or_gone_gives_no_row(
    data: bytes | None, error: type[tm.errors.TidemarkError], says: str, tmp_path: Path
) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    table.clone(str(tmp_path / "clone"))
    pointer = tmp_path / "clone" / "_source.json"
    pointer.unlink()
    if data is not None:
        pointer.write_bytes(data)
    with pytest.raises(error, match=says):
        rows_of(str(tmp_path / "clone"))


def test_a_clone_that_leads_to_itself_is_an_error_and_no_endless_walk(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    table.clone(str(tmp_path / "clone"))
    pointer = tmp_path / "clone" / "_source.json"
    pointer.chmod(0o644)
    pointer.write_text(json.dumps({"format": 1, "uri": (tmp_path / "clone").as_uri()}))
    with pytest.raises(tm.errors.Corrupt, match="the chain of shallow clones has more than 16 tables"):
        rows_of(str(tmp_path / "clone"))


def test_a_file_that_is_not_what_the_log_says_is_not_copied(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "source"), SCHEMA)
    table.append(given(0, 10))
    (file,) = (tmp_path / "source").glob("splits/*/*.parquet")
    damaged = bytearray(file.read_bytes())
    damaged[20] ^= 1
    file.chmod(0o644)
    file.write_bytes(damaged)
    with pytest.raises(tm.errors.Corrupt, match="with the xxh3-64"):
        table.clone(str(tmp_path / "clone"), deep=True)
    assert not (tmp_path / "clone" / "_transaction_log").exists()


def test_the_command_makes_a_clone_and_says_what_keeps_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    tm.Table.create(source, SCHEMA).append(given(0, 10))
    assert main(["clone", source, new, "--json"]) == 0
    about = json.loads(capfd.readouterr().out)
    assert (about["status"], about["rows"], about["source_version"]) == ("committed", 10, 1)
    assert about["commit_id"] == tm.Table.open(new).history()[-1].commit_id
    assert tm.Table.open(new).describe()["clone_of"] == {
        "uri": Path(source).as_uri(),
        "version": 1,
        "tag": about["tag"],
    }
    assert main(["clone", source, new]) == 0
    assert capfd.readouterr().out.endswith("is already this clone\n")
    assert main(["clone", source, f"{new}-deep", "--deep", "--version", "0"]) == 0
    assert capfd.readouterr().out.endswith("0 rows in 0 splits, 0 bytes copied\n")


@pytest.mark.parametrize("made", ["clone", "deep clone", "repair"])
def test_a_dry_run_of_ingest_plans_no_file_whose_rows_a_copy_of_the_table_has(tmp_path: Path, made: str) -> None:
    (tmp_path / "landing").mkdir()
    for number in range(2):
        (tmp_path / "landing" / f"{number}.ndjson").write_text(f'{{"n": {number}}}\n')
    declared = tmp_path / "t.yaml"
    declared.write_text(
        f"name: t\nuri: {tmp_path}/t\ncolumns: {{n: long}}\nlanding: {{uri: {tmp_path}/landing, format: ndjson}}\n"
    )
    first = Ingest(table_uri=f"{tmp_path}/t", declaration=str(declared))
    assert run(first, Spark()).metrics.rows_out == 2
    command = ["repair", "--into"] if made == "repair" else ["clone"]
    into = [
        command[0],
        f"{tmp_path}/t",
        *command[1:],
        f"{tmp_path}/copy",
        *(["--deep"] if made == "deep clone" else []),
    ]
    assert main(into) == 0
    for landed in (tmp_path / "landing").iterdir():  # change the file times, as a copy of the folder does
        landed.touch()
    planned = Ingest(table_uri=f"{tmp_path}/copy", declaration=str(declared), dry_run=True)
    assert run(planned, Spark()).status == "nothing_to_do"
    (tmp_path / "landing" / "1.ndjson").write_text('{"n": 7}\n')
    (tmp_path / "landing" / "new.ndjson").write_text('{"n": 9}\n')
    report = run(planned, Spark())
    assert (report.status, report.details["files"]) == ("planned", 2)
