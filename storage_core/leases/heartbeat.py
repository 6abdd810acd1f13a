"""The heartbeat: leases are renewed while somebody works under them (docs/architecture/ingestion.md, "Leases")."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from storage_core.errors import Fenced, TidemarkError
from storage_core.leases.lease import TTL_MS, Lease
from storage_core.process import HomeProcess

INTERVAL_MS = TTL_MS // 3

_logger = logging.getLogger(__name__)


class StopEvent(Protocol):
    """What wakes the heartbeat; `threading.Event` is one. Injected so that tests own its time."""

    def wait(self, timeout: float) -> bool:
        """Return False after `timeout` seconds, or True as soon as it is set."""
        ...

    def set(self) -> None:
        """Let every `wait` return True."""
        ...


class Heartbeat:
    """Renews leases in a thread of its own, every third of their time, until the block ends or all are lost.

    A renewal that fails is tried again at the next beat: two more come before the lease runs out. Work under a
    lease hears of its loss by `Lease.require_held`, not from here.
    """

    def __init__(self, leases: Sequence[Lease], stop: StopEvent | None = None) -> None:
        """Renew these leases once the block is entered."""
        self._leases = list(leases)
        self._stop = stop if stop is not None else threading.Event()
        self._home = HomeProcess()
        self._thread = threading.Thread(target=self._run, name="tidemark-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Start beating."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread; no renewal comes after it. In a copy of the process by fork() there is none to end."""
        if not self._home.is_here:
            return
        self._stop.set()
        self._thread.join()

    def beat(self) -> None:
        """Renew every lease that is not lost, once. One PUT each."""
        for lease in list(self._leases):
            try:
                lease.renew()
            except Fenced as error:
                _logger.warning("%s", error)
                self._leases.remove(lease)
            except TidemarkError as error:
                _logger.warning("%s is not renewed, the next beat tries again: %s", lease.resource, error)

    def _run(self) -> None:
        while self._leases and not self._stop.wait(INTERVAL_MS / 1000):
            self.beat()
