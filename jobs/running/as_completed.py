"""Calls that run side by side in threads; what each brings is there as soon as it has ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from typing import TypeVar

from storage_core.errors import TidemarkError

Brought = TypeVar("Brought")


def as_completed(
    calls: Sequence[Callable[[], Brought]], at_once: int
) -> Generator[tuple[int, Brought | TidemarkError]]:
    """Yield the number and the outcome of each call once it has ended; they are begun in their own order.

    At most `at_once` run at a time; of those that end between two looks of the caller, any may come first. A
    `TidemarkError` is the outcome of its call and stops no other; anything else is raised. When the caller stops early,
    calls not begun are not made, and those under way are not waited for. One call runs in this thread.
    """
    if len(calls) == 1:
        yield 0, _outcome(calls[0])
        return
    pool = futures.ThreadPoolExecutor(max_workers=max(1, min(at_once, len(calls))), thread_name_prefix="tidemark-group")
    try:
        numbers = {pool.submit(_outcome, call): number for number, call in enumerate(calls)}
        for ended in futures.as_completed(numbers):
            yield numbers[ended], ended.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(call: Callable[[], Brought]) -> Brought | TidemarkError:
    try:
        return call()
    except TidemarkError as error:
        return error
