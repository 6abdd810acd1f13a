"""A store whose requests fail as real requests do: lost replies, drops, late arrivals, outages, damage, crashes.

A script sets the faults, with one step per request. The script selects requests by their kind and a part of their key,
or by number. Alternatively, a seed chooses faults at given rates. If neither the script nor the seed has a step for a
request, the wrapped store executes the request normally.
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
