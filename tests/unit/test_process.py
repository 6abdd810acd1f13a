"""A process copy that fork() makes has only one thread, so it must not wait for threads of the original."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from storage_core.base.process import OwnLock
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import KeptValues


def _meter() -> tuple[OwnLock, Callable[[], object]]:
    store = MeteredStore(MemoryStore("forked"))
    return store.meter._lock, lambda: store.requests


def _kept() -> tuple[OwnLock, Callable[[], object]]:
    kept = KeptValues()
    return kept._lock, lambda: kept.get(("a",))


@pytest.mark.parametrize("made", [_meter, _kept])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_copy_waits_for_no_thread_of_its_parent(made: Callable[[], tuple[OwnLock, Callable[[], object]]]) -> None:
    lock, use = made()
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        is_held.wait()
        child = os.fork()
        if not child:
            use()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        is_over.set()
        holder.join()


def test_a_lock_is_held_by_one_thread_at_a_time() -> None:
    lock, seen = OwnLock(), list[str]()

    def follow() -> None:
        with lock:
            seen.append("second")

    with lock:
        follower = threading.Thread(target=follow)
        follower.start()
        seen.append("first")
    follower.join()
    assert seen == ["first", "second"]
