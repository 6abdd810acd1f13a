"""Hostile cases in a process of their own, so that one that kills it or never ends is noticed, and named.

A test module calls `survives`; run as a program, it calls `work`, which judges the cases one after the other.
"""

from __future__ import annotations

import faulthandler
import random
import subprocess
import sys
from collections.abc import Callable

from tests.limits import confine

SEED = 13
_SECONDS = 600  # a case that never ends is an error; how long a sound one takes is not judged
_MEMORY_BYTES = 6 * 2**30

Case = Callable[[random.Random], str | None]
"""Makes one case of a source of chance, tries it, and returns what is wrong with the outcome, None for nothing."""


def survives(module: str, count: int) -> None:
    """Assert that a process judges so many cases, and finds nothing wrong with any."""
    command = [sys.executable, "-m", module, str(SEED), str(count)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{command}: a case never ended: {str(error.stdout)[-300:]}") from error
    said = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{command} ended with {ended.returncode} in {said[-1:]}: {ended.stderr[-3000:]}"
    assert said[-1] == f"judged {count}", f"{command}: {said}"


def work(case: Case) -> None:
    """Judge the cases that the command line asks for: `SEED COUNT`, or `SEED FIRST COUNT` to begin at one of them."""
    faulthandler.enable()
    confine(_MEMORY_BYTES)
    seed, *first, count = map(int, sys.argv[1:])
    numbers = range(sum(first), sum(first) + count)
    wrong = []
    for number in numbers:
        say(f"seed {seed} case {number}")
        try:
            found = case(random.Random(f"{seed}/{number}"))
        except BaseException as error:  # noqa: BLE001  # a panic of tantivy is no Exception
            found = f"untyped {type(error).__name__}: {str(error)[:300]!r}"
        wrong += [] if found is None else [f"seed {seed} case {number}: {found}"]
    say(*wrong[:20], f"{len(wrong)} of {count} are wrong" if wrong else f"judged {count}")


def say(*lines: str) -> None:
    """Write lines at once, so that the last one is there when the process dies."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
