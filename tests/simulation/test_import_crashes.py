"""Kill an import at each of its requests, before or after the request takes effect.

After a rerun, every row is in the table once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, InvalidInput, NotFound, WriterFenced
from storage_core.change import creation
from storage_core.data.formats.keys import version_key
from storage_core.data.settings.table import TableConfig
from storage_core.interop.import_files import Folder, folder_of
from storage_core.interop.import_given import Imported, Source
from storage_core.interop.importing import import_rows
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect
from storage_core.read.view import Consistency
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.changed_rows import opened, require_sound
from tests.support.clock import START_MS, ManualClock
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore, PutFault
from tests.support.foreign_files import expected, land
from tests.support.ids import SeededIds

FILES = 12
APPEND = TableConfig(time_column="at", window_seconds=300, sort_schema="timestamp/V2", checkpoint_interval=0)
KEYED = TableConfig(primary_key=("n",), checkpoint_interval=0)
CASES = pytest.mark.parametrize("config", [APPEND, KEYED], ids=["append", "keyed"])


def _import(store: ObjectStore, folder: Path, config: TableConfig, seed: int) -> Imported:
    log = TransactionLog(store, clock=ManualClock(step_ms=1), ids=SeededIds(seed))

    def make(schema: pa.Schema, marks: Mapping[str, str]) -> Snapshot:
        return creation.create(log, schema, config, marks)

    return import_rows(log, folder_of(str(folder)), make)


def _rows(store: ObjectStore, config: TableConfig) -> list[dict[str, object]]:
    level = Consistency.LATEST if config.kind == "keyed" else Consistency.SNAPSHOT
    found = opened(store, 99).scan(consistency=level).to_arrow().sort_by("n")
    return list(found.select(["n", "at", "share", "host"]).to_pylist())


@CASES
def test_killed_at_any_request_it_is_run_again_and_every_row_is_in_once(tmp_path: Path, config: TableConfig) -> None:
    land(tmp_path, FILES)
    left = left_by_crashes(MemoryStore("new"), lambda store: _import(store, tmp_path, config, 7))
    assert len(left) > 3
    for store in left:
        try:
            assert _rows(store, config) == expected(FILES), "a table that opens has all rows"
        except (NotFound, InvalidInput) as error:
            assert isinstance(error, NotFound) or "unfinished import" in str(error)  # noqa: PT017
        _import(store, tmp_path, config, 8)
        assert _rows(store, config) == expected(FILES)
        assert _import(store, tmp_path, config, 9).commit_id == "", "and no third time"
        collect(store, opened(store, 10).log, clock=ManualClock(START_MS + 10**10, step_ms=1), horizon_ms=0)
        assert _rows(store, config) == expected(FILES), "the collector takes nothing that is needed"
        require_sound(store)


class _Meanwhile:
    """A wrapper of a folder. The wrapper calls `act` before the rows are read, or before the schema is checked."""

    def __init__(self, folder: Folder, act: Callable[[], object], when: str = "rows") -> None:
        self.folder, self.act, self.when = folder, act, when

    def __getattr__(self, name: str) -> object:
        return getattr(self.folder, name)

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        if self.when == "rows":
            self.act()
        return self.folder.rows(schema)

    def require_fits(self, schema: pa.Schema) -> None:
        if self.when == "require_fits":
            self.act()
        self.folder.require_fits(schema)


@CASES
@pytest.mark.parametrize("when", ["require_fits", "rows"])
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_of_two_imports_of_a_folder_at_a_time_one_is_done(
    tmp_path: Path, config: TableConfig, when: str, same: bool
) -> None:
    store = MemoryStore("new")
    land(tmp_path, FILES)
    log = TransactionLog(store, clock=ManualClock(step_ms=1), ids=SeededIds(7))

    def make(schema: pa.Schema, marks: Mapping[str, str]) -> Snapshot:
        return creation.create(log, schema, config, marks)

    def other() -> None:
        if not same:
            land(tmp_path, FILES + 1)
        assert _import(store, tmp_path, config, 8).status == "committed"

    source = cast("Source", _Meanwhile(folder_of(str(tmp_path)), other, when))
    if same:
        done = import_rows(log, source, make)
        assert (done.status, done.commit_id, done.rows) == ("done_by_another", "", 0)
        assert _import(store, tmp_path, config, 9).status == "nothing_to_do"
    else:
        with pytest.raises((CommitConflict, InvalidInput), match=r"units of this commit|with other content"):
            import_rows(log, source, make)
    assert _rows(store, config) == expected(FILES if same else FILES + 1)


@CASES
@pytest.mark.parametrize("fault", list(PutFault))
def test_a_lost_reply_of_its_commit_leaves_it_done_once(tmp_path: Path, config: TableConfig, fault: PutFault) -> None:
    land(tmp_path, FILES)
    objects = MemoryStore("new")
    store = FaultStore(objects)
    store.on_put(version_key(1), fault)
    with suppress(CommitUnknown):
        _import(store, tmp_path, config, 7)
    store.deliver()
    _import(objects, tmp_path, config, 8)
    assert _rows(objects, config) == expected(FILES)


def test_an_import_whose_region_another_writer_claims_says_to_import_again(tmp_path: Path) -> None:
    store = MemoryStore("new")
    land(tmp_path, FILES)
    _import(store, tmp_path, KEYED, 6)
    land(tmp_path / "more", FILES)
    log = TransactionLog(store, clock=ManualClock(step_ms=1), ids=SeededIds(7))

    def claim() -> None:
        with opened(store, 9).writer():
            pass

    source = cast("Source", _Meanwhile(folder_of(str(tmp_path / "more")), claim))
    with pytest.raises(WriterFenced, match=r"Some rows of .* may be imported. Run the import again"):
        import_rows(log, source, lambda _, __: log.snapshot())
    assert _import(store, tmp_path / "more", KEYED, 10).status == "committed"
