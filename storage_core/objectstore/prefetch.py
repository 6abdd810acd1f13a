"""Many reads of which some are under way at a time: a reply takes longer than the bytes in it.

`prefetch` bounds what is in memory, so it suits results that are taken one by one. `all_of` keeps them all, and so a
slow read holds up none behind it: where some take ten times as long as others, it is several times as fast as a list of
what `prefetch` yields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")


def prefetch(
    read: Callable[[Key], Found],
    keys: Iterable[Key],
    at_once: int,
    *,
    weight: Callable[[Key], int] = lambda _: 0,
    most: int = 0,
) -> Generator[Found]:
    """Yield what `read` returns for each key, in the order of the keys. `read` must be safe for threads.

    At most `at_once` keys are begun and not taken yet, and several only while they weigh at most `most` together. That
    bounds what is in memory, and what is read in vain where the caller stops early or a read raises: its error comes in
    the place of its result, no other read is begun after it, and those under way are waited for. One key is read in
    this thread; the keys are, as they are needed.
    """
    waiting = iter(keys)
    first = list(islice(waiting, 2))
    if len(first) < 2 or at_once < 2:
        yield from map(read, chain(first, waiting))
        return
    begun: deque[tuple[Future[Found], int]] = deque()
    held = 0
    with ThreadPoolExecutor(at_once, thread_name_prefix="tidemark-prefetch") as pool:
        try:
            for key in chain(first, waiting):
                own = weight(key)
                while begun and (len(begun) == at_once or held + own > most):
                    result, freed = begun.popleft()
                    held -= freed
                    yield result.result()
                begun.append((pool.submit(read, key), own))
                held += own
            while begun:
                yield begun.popleft()[0].result()
        finally:
            for result, _ in begun:
                result.cancel()


def all_of(read: Callable[[Key], Found], keys: Sequence[Key], at_once: int) -> list[Found]:
    """Return what `read` returns for each key, in the order of the keys; up to `at_once` run at a time.

    `read` must be safe for threads. Where a read raises, the first error in the order of the keys is raised, reads not
    begun are not made, and those under way are waited for. Where each key has a thread, the first is read in this one.
    """
    if len(keys) < 2 or at_once < 2:
        return list(map(read, keys))
    if len(keys) > at_once:
        with ThreadPoolExecutor(at_once, thread_name_prefix="tidemark-prefetch") as pool:
            return list(pool.map(read, keys))
    with ThreadPoolExecutor(len(keys) - 1, thread_name_prefix="tidemark-prefetch") as pool:
        others = pool.map(read, keys[1:])
        return [read(keys[0]), *others]


@contextmanager
def under_way(read: Callable[[], Found], *, near: bool = False) -> Iterator[Callable[[], Found]]:
    """Run `read` beside the block, which is given what returns its result, or raises its error, when it is asked.

    What is `near` waits for nothing, and is read when it is asked for.
    """
    if near:
        yield read
        return
    with ThreadPoolExecutor(1, thread_name_prefix="tidemark-prefetch") as pool:
        yield pool.submit(read).result


def both(first: Callable[[], Key], second: Callable[[], Found]) -> tuple[Key, Found]:
    """Return what both return, which run side by side. Where both raise, the error of the first is raised."""
    with ThreadPoolExecutor(1, thread_name_prefix="tidemark-prefetch") as pool:
        other = pool.submit(second)
        return first(), other.result()
