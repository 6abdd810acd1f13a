"""A call is acknowledged only after an fsync of every folder in which it changed an entry.

A visible entry is not yet durable. The tests watch the operating system, not our classes. The tests record which
folders have entries without a later fsync. The fsync of a folder fails when a test requests this, as on a disk that
reports an error.
"""

from __future__ import annotations

import errno
import operator
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitUnknown, InvalidInput, Unavailable
from storage_core.change.creation import configure
from storage_core.data.formats.region_manifest import RegionManifest
from storage_core.data.rows.schema import to_schema_string
from storage_core.log.actions import Metadata, Txn
from storage_core.log.lease import Lease, acquire
from storage_core.log.log import TransactionLog
from storage_core.maintain.history import set_tag
from storage_core.store.contract import (
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    ObjectStore,
    OutcomeUnknown,
    Overwrite,
    PutMode,
    create_derived,
    create_numbered,
    create_once,
)
from storage_core.store.local import LocalStore
from storage_core.write.region import manifest as region_manifests
from storage_core.write.region.wal import WalAppender
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

SCHEMA = pa.schema([("a", pa.int64())])
REGION = "0b6f2f0e-59a3-4f0c-8f3e-6d2b7f1f7e55"

Act = Callable[[ObjectStore], object]


class Disk:
    """A model of a disk. A new entry of a folder is durable only after an fsync of the folder.

    `entries` contains the entries that are not durable yet. Hints, which may be lost, and temporary files are excluded.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entries: set[tuple[int, str]] = set()
        self.fails: Callable[[int], bool] = lambda _: False
        self.fsyncs = 0
        patch.setattr(os, "fsync", self._fsync)
        for name, folder in (("link", "dst_dir_fd"), ("rename", "dst_dir_fd"), ("unlink", "dir_fd")):
            patch.setattr(os, name, self._changing(getattr(os, name), folder))
        patch.setattr(os, "mkdir", self._making(os.mkdir))

    def _fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            number, self.fsyncs = self.fsyncs, self.fsyncs + 1
            if self.fails(number):
                raise OSError(errno.EIO, "Input/output error")
            self.entries = {each for each in self.entries if each[0] != status.st_ino}

    def _changed(self, folder: int, name: str) -> None:
        if not name.endswith((".tmp", ".part", ".lock", "hint.json", "_last_checkpoint")):
            self.entries.add((folder, name))

    def _changing(self, call: Callable[..., None], folder: str) -> Callable[..., None]:
        def changed(*names: str, **options: int) -> None:
            call(*names, **options)
            self._changed(os.fstat(options[folder]).st_ino, names[-1])

        return changed

    def _making(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        def made(path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            mkdir(path, mode, dir_fd=dir_fd)
            parent = Path(path).parent.stat() if dir_fd is None else os.fstat(dir_fd)
            self._changed(parent.st_ino, str(path))

        return made


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with monkeypatch.context() as patch:
        yield Disk(patch)


def log_of(store: ObjectStore) -> TransactionLog:
    return TransactionLog(store, clock=ManualClock(), ids=SeededIds(7))


def metadata() -> Metadata:
    return Metadata(id="id", schemaString=to_schema_string(SCHEMA), configuration={})


def create(store: ObjectStore) -> None:
    try:
        log_of(store).create(metadata())
    except InvalidInput as error:
        assert "is here already" in str(error)  # noqa: PT017  # that it exists is said of what is durable, too


def commit(store: ObjectStore) -> None:
    log = log_of(store)
    log.commit(log.snapshot(), [Txn(appId="job", version=1)], operation="X", commit_id="c-1")


def commit_of_an_application(store: ObjectStore) -> None:
    """Commit like a job that is retried. Each try has the same `Txn` action and a new commit id."""
    log = TransactionLog(store, clock=ManualClock())
    log.commit(log.snapshot(), [Txn(appId="job", version=1)], operation="X")


def find(store: ObjectStore) -> None:
    if log_of(store).find_commit("c-1") is None:
        commit(store)


def settings(store: ObjectStore) -> None:
    log = log_of(store)
    configure(log, log.snapshot(), {"tidemark.bloomFilters": '["a"]'})


def wal_entry(store: ObjectStore) -> None:
    clock, ids = ManualClock(), SeededIds(1)
    appender = WalAppender(store=store, clock=clock, ids=ids, region=REGION, epoch=1, writer_id="w", next_id=1, seq=0)
    appender.append(SCHEMA.empty_table(), generation=1)


def region_manifest(store: ObjectStore) -> None:
    manifest = RegionManifest(
        region_id=REGION, version=1, writer_id="w", writer_epoch=1, region_spec_id=0, current_generation=1
    )
    assert region_manifests.commit(store, manifest, clock=ManualClock())


def lease(store: ObjectStore) -> Lease:
    log = log_of(store)
    return acquire(log, log.snapshot(), "window:1", "me", is_dead=lambda _: True)


def renewed(store: ObjectStore) -> None:
    held = lease(store)
    held.renew()
    held.advance()


def tag(store: ObjectStore) -> None:
    log = log_of(store)
    set_tag(log, "audit", log.snapshot())


def put(mode: PutMode) -> Act:
    def act(store: ObjectStore) -> None:
        result = store.put("a/b/c", b"1", mode)
        if isinstance(result, OutcomeUnknown):
            raise CommitUnknown(result.reason)

    return act


def swap(store: ObjectStore) -> None:
    result = store.put("a/b", b"2", IfMatch(store.head("a/b").etag))
    if isinstance(result, OutcomeUnknown):
        raise CommitUnknown(result.reason)
    assert isinstance(result, Committed | Conflict)


def delete(store: ObjectStore) -> None:
    for error in store.delete(["a/b", "c"]).values():
        if error is not None:
            raise Unavailable(error)


def nothing(_: ObjectStore) -> None:
    """Do nothing. The folder of the table does not exist yet."""


def two_objects(store: ObjectStore) -> None:
    store.put("a/b", b"1", IfAbsent())
    store.put("c", b"1", IfAbsent())


CASES: dict[str, tuple[Act, Act]] = {
    "put if absent": (nothing, put(IfAbsent())),
    "put over anything": (nothing, put(Overwrite())),
    "put if it matches": (two_objects, swap),
    "delete": (two_objects, delete),
    "fresh object": (nothing, lambda store: create_once(store, "a/b/c", b"1", advice="again")),
    "derived object": (nothing, lambda store: create_derived(store, "a/b/c", b"1", advice="again")),
    "numbered object": (nothing, lambda store: create_numbered(store, "a/b/c", b"1", clock=ManualClock())),
    "table": (nothing, create),
    "commit": (create, commit),
    "commit of an application": (create, commit_of_an_application),
    "found commit": (create, find),
    "settings": (create, settings),
    "WAL entry": (nothing, wal_entry),
    "region manifest": (nothing, region_manifest),
    "lease": (create, lease),
    "renewed lease": (create, renewed),
    "tag": (create, tag),
}


def acknowledged(act: Act, store: ObjectStore) -> bool:
    """Return True if the call succeeds and False if it raises a typed error."""
    try:
        act(store)
    except (CommitUnknown, Unavailable) as error:
        assert "Input/output error" in str(error)  # noqa: PT017  # whichever it is, it tells the cause
        return False
    return True


@pytest.mark.parametrize("once", [False, True], ids=["from then on", "once"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_acknowledged_is_durable_whichever_fsync_of_a_folder_fails(
    case: str, tmp_path: Path, disk: Disk, *, once: bool
) -> None:
    before, act = CASES[case]
    outcomes = set()
    for failing in range(100):
        root = tmp_path / str(failing) / "t"
        before(LocalStore(root))
        disk.fsyncs = 0
        disk.fails = partial(operator.eq if once else operator.le, failing)
        for _ in range(2):  # one process retries, then a new process retries
            store = LocalStore(root)
            for _ in range(2):
                outcomes.add(done := acknowledged(act, store))
                assert not (done and disk.entries), f"acknowledged, and not durable: fsync {failing} failed"
        needed, disk.fails = disk.fsyncs, lambda _: False
        assert acknowledged(act, LocalStore(root))
        assert not disk.entries, f"fsync {failing} failed"
        if needed <= failing:
            break
    assert outcomes == {False, True}


def test_a_file_whose_fsync_fails_is_written_anew_and_never_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("first", b"1", IfAbsent())
    real, failed, written = os.fsync, list[int](), list[int]()

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            assert status.st_ino not in failed, "its pages count as clean now, and may be lost"
            written.append(os.dup(descriptor))  # so that no other file gets this inode number
            if len(written) < 3:
                failed.append(status.st_ino)
                raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for mode in (IfAbsent(), Overwrite()):
        with pytest.raises(Unavailable, match="Input/output error"):
            store.put("k", b"2", mode)
    assert isinstance(store.put("k", b"3", IfAbsent()), Committed)
    assert store.get("k").data == b"3"
    assert os.listdir(tmp_path / ".tmp") == []
    for each in written:
        os.close(each)
