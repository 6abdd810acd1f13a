"""The stores of a raw log that acknowledge: a chunk counts when each of them has it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from storage_core.clock import Clock
from storage_core.errors import CommitUnknown, Fenced, NotWritten, TidemarkError
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered

OPEN_ANOTHER = "open another RawLog, which writes under a new id"


class MandatoryStores:
    """At least one store; all of them are written at once, the first in the calling thread."""

    def __init__(self, stores: Sequence[ObjectStore], *, clock: Clock) -> None:
        self._first, *self._others = stores
        self._clock = clock
        self._pool = ThreadPoolExecutor(len(self._others), thread_name_prefix="raw log") if self._others else None

    def put(self, key: str, data: bytes, *, alone: bool) -> None:
        """Return when every store has the chunk; `alone` says that no other store may have it. One PUT per store.

        Raises `NotWritten` when every store says that it kept nothing and no other may have it; else what a store that
        did not say so raised, or `CommitUnknown`. `Fenced` where another chunk has the key.
        """
        sent = [self._pool.submit(self._failure, each, key, data) for each in self._others] if self._pool else []
        try:
            first = self._failure(self._first, key, data)
        finally:
            wait(sent)
        failures = [first, *(each.result() for each in sent)]
        failed = [each for each in failures if each is not None]
        if not failed:
            return
        unknown = next((each for each in failed if not isinstance(each, NotWritten)), None)
        if unknown is not None:
            raise unknown
        if len(failed) == len(failures) and alone:
            raise failed[0]
        # Refused here, but perhaps kept by another store: for the caller that is no certain failure.
        raise CommitUnknown(f"{failed[0].found}; another store may have it; {OPEN_ANOTHER}", key=key) from failed[0]

    def close(self) -> None:
        """End the threads, when what they send is sent."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _failure(self, store: ObjectStore, key: str, data: bytes) -> TidemarkError | None:
        try:
            self._put(store, key, data)
        except TidemarkError as error:
            return error
        return None

    def _put(self, store: ObjectStore, key: str, data: bytes) -> None:
        try:
            if create_numbered(store, key, data, clock=self._clock):
                return
        except CommitUnknown as error:
            raise CommitUnknown(f"{store.uri}: {error}; {OPEN_ANOTHER}", key=key, uri=store.uri) from error
        except NotWritten as error:
            raise error.reworded(f"{store.uri} did not take {key}: {error.found}") from error
        except TidemarkError as error:
            # Refused here, but perhaps kept by another store: for the caller that is no certain failure.
            raise CommitUnknown(f"{store.uri} did not take {key}: {error.found}; {OPEN_ANOTHER}", key=key) from error
        raise Fenced(f"{store.uri}: {key} holds another chunk: the writer id is in use; {OPEN_ANOTHER}", key=key)
