"""Reads in turn. The thread of the caller immediately executes reads that are otherwise concurrent.

If one of several concurrent reads fails, it depends on the scheduling of threads which of the remaining reads start. A
test that compares every request of two runs therefore needs reads that run one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

import pytest

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class InTurn(Executor):
    """An executor that runs each call when it is submitted."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        del max_workers, thread_name_prefix

    def submit(
        self, call: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Return the finished result of the call."""
        done: Future[Result] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001
            done.set_exception(error)
        return done


def read_in_turn(patch: pytest.MonkeyPatch) -> None:
    """Make all concurrent reads of the store run in turn until the patch is undone."""
    patch.setattr("storage_core.store.meter.ThreadPoolExecutor", InTurn)
