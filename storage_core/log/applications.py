"""Work of an application: known by a name and a number, and done once, however often it is asked for."""

from __future__ import annotations

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.log.actions import Txn
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot

_APP = "app:"


def once(log: TransactionLog, head: Snapshot, application: object) -> tuple[Txn | None, bool]:
    """Return what records an application's work in its commit, and whether it, or later work, is recorded already.

    Nothing without an application. Raises `InvalidInput` for what is no name and number.
    """
    if application is None:
        return None, False
    match application:
        case (str(name), int(version)) if name and not isinstance(version, bool) and 0 <= version < 2**63:
            txn = Txn(appId=_APP + name, version=version, lastUpdated=log.clock.now_ms())
        case _:
            given = application if isinstance(application, tuple) and len(application) == 2 else (application,)
            raise InvalidInput(
                "an application is its name and the number of its work, from 0 to 2**63 - 1, as in ('nightly', 17); "
                f"found {' and '.join(map(quoted, given))}"
            )
    return txn, head.txns.get(txn.appId, -1) >= txn.version
