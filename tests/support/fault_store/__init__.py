"""A store whose requests fail as real ones do: lost replies, drops, late arrivals, outages, damage, crashes.

What happens is scripted per kind of request and part of the key, or by the number of the request, one step each; or it
follows from a seed at given rates. A request without a step is answered by the wrapped store.
"""

from tests.support.fault_store.faults import (
    FAULTS,
    Crash,
    CrashFault,
    DeleteFault,
    Fault,
    GetFault,
    HeadFault,
    ListFault,
    PutFault,
)
from tests.support.fault_store.interruption import Interruption
from tests.support.fault_store.script import Happening, Rates, Request
from tests.support.fault_store.store import FaultStore

__all__ = [
    "FAULTS",
    "Crash",
    "CrashFault",
    "DeleteFault",
    "Fault",
    "FaultStore",
    "GetFault",
    "Happening",
    "HeadFault",
    "Interruption",
    "ListFault",
    "PutFault",
    "Rates",
    "Request",
]
