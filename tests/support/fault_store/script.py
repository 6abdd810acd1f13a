"""The choice of the fault for a request, by a script or by chance from a seed. Each choice yields one `Step`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from random import Random
from threading import Lock

from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.store.meter import RequestKind
from tests.support.fault_store.faults import FAULTS, CrashFault, Fault

Act = Callable[[], object]
Step = Fault | CrashFault | TidemarkError | Act
Rates = Mapping[Fault, float]


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `number` counts all requests from 0. `repeat` counts the earlier requests of the same kind and key."""

    number: int
    kind: RequestKind
    key: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Happening:
    """A request and its outcome: a fault, the type of an error, `act`, or None."""

    request: Request
    step: str | None


@dataclass(slots=True)
class Script:
    """A list of steps. Each step is applied to the next request that matches `fits`."""

    fits: Callable[[Request], bool]
    steps: list[Step]


class Chances:
    """Faults at given rates. The seed and a request's kind, key and `repeat` determine its fault.

    The same seed therefore gives the same faults, even if requests of several keys overlap. The rates of one kind of
    request add up to at most 1.
    """

    def __init__(self, seed: int, rates: Rates) -> None:
        """Raise `InvalidInput` if a rate is not a probability."""
        self._seed = seed
        self._ladder: dict[RequestKind, list[tuple[float, Fault]]] = {}
        for kind, faults in FAULTS.items():
            chosen = [(fault, rate) for fault, rate in rates.items() if isinstance(fault, faults)]
            sums = list(accumulate(rate for _, rate in chosen))
            if any(rate < 0 for _, rate in chosen) or (sums and sums[-1] > 1):
                raise InvalidInput(f"the rates of {kind} are {chosen}: expected shares that add up to 1 at most")
            self._ladder[kind] = list(zip(sums, (fault for fault, _ in chosen), strict=True))

    def step(self, request: Request) -> Fault | None:
        """Return the random fault of the request, or None."""
        ladder = self._ladder[request.kind]
        if not ladder:
            return None
        drawn = int.from_bytes(self._digest(request, "whether")) / 2**64
        return next((fault for limit, fault in ladder if drawn < limit), None)

    def details(self, request: Request) -> Random:
        """Return a random source for details of a fault: the flipped bit, the listing order or the swapped object."""
        return Random(self._digest(request, "how"))

    def _digest(self, request: Request, what: str) -> bytes:
        text = f"{self._seed} {what} {request.repeat} {request.kind} {request.key}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


class Fate:
    """Counter of the requests of one process.

    Several scripts may match a request. The oldest of these scripts determines the step (fault) of the request. If no
    script matches a request, the step (fault) of this request is random.

    `trace` records all requests in order. Safe for any number of threads.
    """

    def __init__(self, chances: Chances) -> None:
        self.trace: list[Happening] = []
        self._chances = chances
        self._scripts: list[Script] = []
        self._repeats: Counter[tuple[RequestKind, str]] = Counter()
        self._lock = Lock()

    def add(self, script: Script) -> None:
        """Add a script after the existing scripts."""
        with self._lock:
            self._scripts.append(script)

    def clear_script(self) -> None:
        """Remove all scripted steps that were not applied to a request yet. Random faults continue to occur."""
        with self._lock:
            self._scripts.clear()

    def next_step(self, kind: RequestKind, key: str) -> tuple[Request, Step | None]:
        """Assign the next number to a request. Return the request and its step (fault)."""
        with self._lock:
            request = Request(len(self.trace), kind, key, self._repeats[kind, key])
            self._repeats[kind, key] += 1
            step = self._scripted(request)
            if step is None:
                step = self._chances.step(request)
            self.trace.append(Happening(request, _name(step)))
        if isinstance(step, Fault) and not isinstance(step, FAULTS[kind]):
            raise InvalidInput(f"{kind} {key}: {step!r} is nothing that can happen to a {kind}", key=key)
        return request, step

    def details(self, request: Request) -> Random:
        """Return the random source that decides the details of the request's fault."""
        return self._chances.details(request)

    def _scripted(self, request: Request) -> Step | None:
        for script in self._scripts:
            if script.steps and script.fits(request):
                # The step is removed before its function runs, because this function may make the same request.
                return script.steps.pop(0)
        return None


def _name(step: Step | None) -> str | None:
    match step:
        case None:
            return None
        case TidemarkError():
            return type(step).__name__
        case str():
            return f"{type(step).__name__}.{step.name}"
        case _:
            return "act"
