"""If an operating system refuses a call, the result is a typed, temporary error.

The reason may be a full disk, a read-only disk, or a lack of files or memory.

Every system call of the local store fails once, with every error, at every step. The tests replace the system calls,
not our classes. The tests below set limits on real processes.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitUnknown, InvalidInput, NotWritten, TidemarkError, Unavailable
from storage_core.change.creation import create
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Txn
from storage_core.log.log import TransactionLog
from storage_core.store.contract import Committed, IfAbsent, IfMatch, OutcomeUnknown, Overwrite
from storage_core.store.local import LocalStore
from storage_core.table import Table
from tests.support.clock import ManualClock

REPOSITORY = Path(__file__).parents[2]
CALLS = (
    "open",
    "close",
    "fstat",
    "stat",
    "listdir",
    "mkdir",
    "write",
    "pread",
    "utime",
    "fsync",
    "link",
    "rename",
    "unlink",
)
ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG,
    errno.ENAMETOOLONG, errno.EIO,
)  # fmt: skip


class System:
    """A wrapper of the functions in `os`. The call with number `fails_at`, counted from 0, fails with `error`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.fails_at: int | None = None
        self.error = errno.EIO
        self.placed = False
        for name in CALLS:
            patch.setattr(os, name, self._call(name, getattr(os, name)))

    def _call(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            number = len(self.calls)
            self.calls.append(name)
            if number == self.fails_at:
                if name == "close":
                    real(*arguments, **options)  # as on Linux: the descriptor is closed despite the error
                raise OSError(self.error, os.strerror(self.error))
            if name == "fsync":
                return None  # another test covers durability
            result = real(*arguments, **options)
            self.placed = self.placed or name in ("link", "rename")
            return result

        return call

    def arm(self, number: int | None, error: int = errno.EIO) -> None:
        self.calls, self.fails_at, self.error, self.placed = [], number, error, False


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    with monkeypatch.context() as patch:
        yield System(patch)


def _swap(store: LocalStore) -> object:
    return store.put("a/b", b"2", IfMatch(store.head("a/b").etag))


ACTS: dict[str, Callable[[LocalStore], object]] = {
    "create": lambda store: store.put("a/n/k", b"2", IfAbsent()),
    "create what is there": lambda store: store.put("a/b", b"2", IfAbsent()),
    "overwrite": lambda store: store.put("a/b", b"2", Overwrite()),
    "swap": _swap,
    "get": lambda store: store.get("a/b").data,
    "get a range": lambda store: store.get_range("a/b", 0, 1),
    "head": lambda store: store.head("a/b"),
    "list": lambda store: [info.key for info in store.list("")],
    "delete": lambda store: store.delete(["a/b"]),
    "local path": lambda store: store.local_path("a/b"),
    "make durable": lambda store: store.make_durable("a/b"),
}


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("act", ACTS)
def test_each_refused_call_of_the_system_is_typed_and_passes(
    act: str, error: int, tmp_path: Path, system: System
) -> None:
    run = ACTS[act]
    store = LocalStore(tmp_path)
    for step in range(200):
        root = tmp_path / f"{step}"
        LocalStore(root).put("a/b", b"1", IfAbsent())
        open_files = len(os.listdir("/proc/self/fd"))
        system.arm(step, error)
        try:
            result = run(LocalStore(root))
        except TidemarkError as refused:
            _judge(refused, error, placed=system.placed)
            result = None
        made, placed = len(system.calls), system.placed
        system.arm(None)
        assert len(os.listdir("/proc/self/fd")) == open_files, f"{system.calls} left a file open"
        store = LocalStore(root)
        if isinstance(result, Committed):
            key = "a/n/k" if act == "create" else "a/b"
            assert store.get(key).data == b"2"
        if isinstance(result, OutcomeUnknown):
            assert placed or act == "create what is there" or error == errno.EIO
            assert os.strerror(error) in result.reason
        again = run(store) if act not in ("delete", "swap") or store.local_path("a/b") else None
        assert not isinstance(again, OutcomeUnknown)
        assert isinstance(store.put("a/later", b"3", IfAbsent()), Committed)
        if made <= step:
            break
    assert step > 2
    assert isinstance(store.put("a/b", b"4", Overwrite()), Committed)


def _judge(refused: TidemarkError, error: int, *, placed: bool = False) -> None:
    assert not placed, f"{refused}: the object is in place"
    if error == errno.ENAMETOOLONG:
        assert isinstance(refused, InvalidInput | Unavailable)
        return
    assert type(refused) in (Unavailable, NotWritten)
    assert os.strerror(error) in str(refused)
    assert "Errno" not in str(refused)
    assert ". " in str(refused), "it says what to do"


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_table_that_is_made_on_a_refusing_system_is_known_or_says_why_not(
    error: int, tmp_path: Path, system: System
) -> None:
    unknown = 0
    for step in range(400):
        store = LocalStore(tmp_path / f"{step}")
        system.arm(step, error)
        try:
            create(TransactionLog(store, clock=ManualClock()), pa.schema([("a", pa.int64())]), TableConfig())
        except CommitUnknown as refused:
            unknown += 1
            assert os.strerror(error) in str(refused)  # noqa: PT017  # whatever it is, it tells the cause
        except TidemarkError as refused:
            _judge(refused, error)
        made = len(system.calls)
        system.arm(None)
        if made <= step:
            break
    assert step > 3
    assert unknown <= 1


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_commit_on_a_refusing_system_is_known_or_says_why_not(error: int, tmp_path: Path, system: System) -> None:
    known = unknown = 0
    for step in range(400):
        log = TransactionLog(LocalStore(tmp_path / f"{step}"), clock=ManualClock())
        head = create(log, pa.schema([("a", pa.int64())]), TableConfig())
        log = TransactionLog(LocalStore(tmp_path / f"{step}"), clock=ManualClock())
        system.arm(step, error)
        try:
            log.commit(head, [Txn(appId="job", version=1)], operation="X")
            landed = True
        except CommitUnknown as refused:
            landed, unknown = None, unknown + 1
            assert os.strerror(error) in str(refused)  # noqa: PT017  # whatever it is, it tells the cause
        except TidemarkError as refused:
            landed, known = False, known + 1
            _judge(refused, error)
        made = len(system.calls)
        system.arm(None)
        assert landed is None or (log.snapshot().version == 1) == landed
        log.commit(log.snapshot(), [Txn(appId="job", version=1)], operation="X")
        assert log.snapshot().version == 1
        if made <= step:
            break
    assert known > 5
    assert unknown <= 1


LIMITED = """
import errno, os, resource, sys
import pyarrow as pa
from storage_core.base.errors import NotWritten, TidemarkError, Unavailable
from storage_core.store.contract import Committed, IfAbsent
from storage_core.store.local import LocalStore
from storage_core.table import Table
from tests.support import limits

root = sys.argv[1]
table = Table.create(root + "/t", pa.schema([("a", pa.int64()), ("b", pa.string())]))
table.append([{"a": each, "b": "x" * 100} for each in range(1000)])
store = LocalStore(root + "/t")


def limited(kind, soft, act):
    try:
        with limits.limited(kind, soft):
            act()
    except TidemarkError as error:
        found = f"{type(error).__name__}: {error}"
    else:
        found = "done"
    print(found, flush=True)
"""


def limited(tmp_path: Path, *acts: str) -> list[str]:
    """Return the output of statements in a process with resource limits. An untyped error ends the process."""
    program = LIMITED + "\n".join(acts)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_files_that_may_not_grow_any_further_are_known_not_to_be_written(tmp_path: Path) -> None:
    row = '{"a": 5, "b": os.urandom(40000).hex()}'
    found = limited(
        tmp_path,
        'limited(resource.RLIMIT_FSIZE, 1000, lambda: store.put("k", b"x" * 2000, IfAbsent()))',
        f"limited(resource.RLIMIT_FSIZE, 1000, lambda: table.append([{row}]))",
        f"limited(resource.RLIMIT_FSIZE, 2**30, lambda: table.append([{row}]))",
        'print(Table.open(root + "/t").sql("select count(*) as n from t").to_pylist())',
        'print(os.listdir(root + "/t/.tmp"))',
    )
    assert re.match(r"NotWritten: k in file://\S+: nothing was written: File too large. Raise the limit", found[0])
    assert found[1].startswith("NotWritten: ")
    assert found[2:] == ["done", "[{'n': 1001}]", "[]"]


READS = (
    'Table.open(root + "/t")',
    'Table.open(root + "/t").scan().to_arrow()',
    "table.describe()",
    "table.history()",
    'list(store.list(""))',
)


def test_reads_without_a_file_left_to_open_are_unavailable(tmp_path: Path) -> None:
    acts = (
        f"{read}\nfor left in range(5):\n    limited(resource.RLIMIT_NOFILE, free + left, lambda: {read})"
        for read in READS
    )
    found = limited(tmp_path, "free = os.dup(0); os.close(free)", *acts)
    assert len(found) == 5 * len(READS)
    assert {each for each in found if not (each == "done" or each.startswith("Unavailable: "))} == set()
    assert sum("Too many open files. Raise the limit of open files" in each for each in found) >= len(READS)


FIRST_COMMITS = """
import os, resource, sys
from storage_core.base.errors import TidemarkError
from storage_core.log.actions import Txn
from storage_core.table import Table
from tests.support import limits

table = Table.open(sys.argv[1])
free = os.dup(0); os.close(free)
for left in range(4):
    try:
        with limits.limited(resource.RLIMIT_NOFILE, free + left):
            table.log.commit(table.snapshot, [Txn(appId="app", version=left + 1)], operation="TEST")
    except TidemarkError as error:
        print(type(error).__name__)
    else:
        print("done")
"""


def test_a_first_commit_without_a_file_left_to_open_is_refused_in_terms_of_ours(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("a", pa.int64())]))
    program = [sys.executable, "-c", FIRST_COMMITS, table.uri]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert found[0] == "Unavailable"
    assert set(found) <= {"Unavailable", "NotWritten", "done"}


def test_an_object_larger_than_the_memory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "k").open("wb") as file:
        file.truncate(2**33)
    found = limited(
        tmp_path,
        'large = LocalStore(root + "/large")',
        'limited(resource.RLIMIT_AS, 2**32, lambda: large.get("k"))',
        'limited(resource.RLIMIT_AS, 2**32, lambda: large.get_range("k", 0, 10))',
    )
    assert found[0].startswith("Unavailable: k: Cannot allocate memory. Give the process more memory")
    assert found[1] == "done"
