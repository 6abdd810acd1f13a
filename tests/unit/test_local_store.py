from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage_core.base.errors import InvalidInput, NotFound, Unavailable
from storage_core.store.contract import Committed, IfAbsent, IfMatch, ObjectStore, Overwrite
from storage_core.store.local import LocalStore, exclusive
from tests.support.limits import limited, open_files
from tests.support.store_conformance import StoreConformance, WriteNumberConformance

REPOSITORY = Path(__file__).parents[2]


class ImpatientClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        """Return at once. The store counts the requested pauses."""
        assert duration_ms > 0


class TestLocalStore(StoreConformance, WriteNumberConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(tmp_path / "table")


def test_opening_a_store_creates_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "deep" / "table")
    assert list(store.list("")) == []
    with pytest.raises(NotFound):
        store.get("k")
    assert store.delete(["k"]) == {"k": None}
    assert not (tmp_path / "deep").exists()
    assert isinstance(store.put("k", b"1", IfAbsent()), Committed)
    assert (tmp_path / "deep" / "table" / "k").read_bytes() == b"1"


def test_the_uri_is_absolute_and_the_path_is_the_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "a table")
    store.put("splits/all/x.parquet", b"1", IfAbsent())
    assert store.uri == f"{tmp_path.as_uri()}/a%20table"
    assert store.local_path("splits/all/x.parquet") == tmp_path / "a table" / "splits/all/x.parquet"


def test_torn_temporary_files_and_lock_files_are_invisible(tmp_path: Path) -> None:
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "torn.part").write_bytes(b"half")
    (tmp_path / ".tmp" / "0123.lock").write_bytes(b"")
    store = LocalStore(tmp_path)
    store.put("k", b"1", IfAbsent())
    assert [info.key for info in store.list("")] == ["k"]
    assert [info.key for info in store.list(".t")] == []


def test_a_put_leaves_no_temporary_file_behind_whatever_its_outcome(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("k", b"1", IfAbsent())
    store.put("k", b"2", IfAbsent())
    store.put("k", b"3", IfMatch("stale"))
    store.put("k", b"4", Overwrite())
    assert os.listdir(tmp_path / ".tmp") == []


def test_files_of_killed_writers_are_removed_after_a_day_and_not_before(tmp_path: Path) -> None:
    folder = tmp_path / ".tmp"
    folder.mkdir()
    old, young = folder / "old.part", folder / "young.part"
    for each, hours in ((old, 25), (young, 23)):
        each.write_bytes(b"half")
        stamp = time.time() - hours * 3600
        os.utime(each, (stamp, stamp))
    LocalStore(tmp_path).put("k", b"1", IfAbsent())
    assert os.listdir(folder) == ["young.part"]


def test_a_symlink_to_a_file_is_refused_by_every_call(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    root = tmp_path / "table"
    root.mkdir()
    (root / "link").symlink_to(outside)
    store = LocalStore(root)
    for call in (store.get, store.head, store.local_path, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(InvalidInput, match="symlink"):
            call("link")
    for mode in (IfAbsent(), Overwrite(), IfMatch("x")):
        with pytest.raises(InvalidInput, match="symlink"):
            store.put("link", b"x", mode)
    assert "symlink" in (store.delete(["link"])["link"] or "")
    assert list(store.list("")) == []
    assert outside.read_bytes() == b"secret"
    assert (root / "link").is_symlink()


def test_a_symlink_to_a_folder_is_refused_and_nothing_behind_it_changes(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "object").write_bytes(b"secret")
    root = tmp_path / "table"
    root.mkdir()
    (root / "splits").symlink_to(outside, target_is_directory=True)
    store = LocalStore(root)
    for call in (store.get, store.head, store.local_path, lambda key: store.put(key, b"x", Overwrite())):
        with pytest.raises(InvalidInput, match="symlink"):
            call("splits/object")
    with pytest.raises(InvalidInput, match="symlink"):
        store.put("splits/new", b"x", IfAbsent())
    assert "symlink" in (store.delete(["splits/object"])["splits/object"] or "")
    assert list(store.list("splits/")) == []
    assert os.listdir(outside) == ["object"]


def test_a_symlink_in_place_of_the_temporary_folder_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "table"
    root.mkdir()
    (root / ".tmp").symlink_to(outside, target_is_directory=True)
    with pytest.raises(InvalidInput, match="symlink"):
        LocalStore(root).put("k", b"x", IfAbsent())
    assert os.listdir(outside) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="not a folder"):
        LocalStore(tmp_path / "file").put("k", b"", IfAbsent())


def test_a_root_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1", IfAbsent())
    with limited(*open_files(0)):
        with pytest.raises(Unavailable, match="Too many open files"):
            store.get("a")
        with pytest.raises(Unavailable, match="Too many open files"):
            store.put("b", b"1", IfAbsent())
        with pytest.raises(Unavailable, match="Too many open files"):
            list(store.list(""))
    with pytest.raises(InvalidInput, match="longer than this file system allows"):
        LocalStore(tmp_path / ("x" * 300)).get("a")


def test_a_folder_that_cannot_be_listed_is_unavailable(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1", IfAbsent())
    with limited(*open_files(1)), pytest.raises(Unavailable, match="Too many open files"):
        list(store.list(""))
    with limited(*open_files(2)), pytest.raises(Unavailable, match="Too many open files"):
        LocalStore(tmp_path).put("b", b"1", IfAbsent())


def test_an_object_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"", IfAbsent())
    with pytest.raises(InvalidInput, match="a/b"):
        store.put("a/b", b"", IfAbsent())


def test_a_name_longer_than_the_file_system_allows_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(InvalidInput, match="longer"):
        store.put("a" * 300, b"", Overwrite())
    with pytest.raises(InvalidInput, match="longer"):
        store.put("a" * 300, b"", IfAbsent())


def test_a_fifo_is_no_object_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(tmp_path)
    with pytest.raises(NotFound):
        store.get("pipe")
    assert list(store.list("")) == []


def test_a_replacement_is_always_stamped_later_than_what_it_replaces(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("k", b"0", IfAbsent())
    ahead_ns = time.time_ns() + 3600 * 10**9
    os.utime(tmp_path / "k", ns=(ahead_ns, ahead_ns))
    for number in range(1, 4):
        assert isinstance(store.put("k", b"x", IfMatch(store.head("k").etag)), Committed)
        assert (tmp_path / "k").stat().st_mtime_ns == ahead_ns + number


def test_a_lock_of_a_living_holder_is_never_broken(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, clock=ImpatientClock())
    created = store.put("k", b"1", IfAbsent())
    assert isinstance(created, Committed)
    with exclusive(tmp_path, "k", ImpatientClock()), pytest.raises(Unavailable, match="lock"):
        store.put("k", b"2", IfMatch(created.etag))
    assert store.get("k").data == b"1"
    assert isinstance(store.put("k", b"2", IfMatch(created.etag)), Committed)


def test_the_lock_of_a_killed_holder_is_taken_over_at_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    created = store.put("k", b"1", IfAbsent())
    assert isinstance(created, Committed)
    program = (
        "import sys, time; from pathlib import Path; from storage_core.base.clock import SystemClock\n"
        "from storage_core.store.local import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'k', SystemClock()):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
    assert len(os.listdir(tmp_path / ".tmp")) == 1
    assert isinstance(store.put("k", b"2", IfMatch(created.etag)), Committed)
    assert os.listdir(tmp_path / ".tmp") == []


def test_two_processes_swapping_one_object_lose_no_increment(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("counter", b"0", IfAbsent())
    program = (
        "import sys; from storage_core.store.contract import *\n"
        "from storage_core.store.local import LocalStore\n"
        "store = LocalStore(sys.argv[1]); done = 0\n"
        "while done < 50:\n"
        "    blob = store.get('counter')\n"
        "    result = store.put('counter', b'%d' % (int(blob.data) + 1), IfMatch(blob.etag))\n"
        "    done += isinstance(result, Committed)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=REPOSITORY) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert store.get("counter").data == b"100"
