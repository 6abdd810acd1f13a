"""Run hostile cases in a separate process.

If a case kills the process or never ends, the test fails and reports the case.

A test module calls `survives`. If the module runs as a program, it calls `work`, which checks the cases one after
another.
"""

from __future__ import annotations

import faulthandler
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from storage_core.base.errors import TidemarkError
from tests.support.limits import address_space, confine
from tests.support.scale import scaled

SEED = 13
ROOM_BYTES = 6 * 2**30
"""The bytes of address space that the process may allocate after the start of its first case."""

_ROOT = Path(__file__).resolve().parents[2]
_JUDGED = re.compile(r"judged (\d+), refused (\d+)")

Case = Callable[[random.Random], str | None]
"""Function that makes one case from a random source, tries it, and returns the fault found, or None.

The function may raise a `TidemarkError` if this error is a correct outcome of the case. A case that raises a
`TidemarkError` counts as refused.
"""


def survives(module: str, count: int) -> int:
    """Assert that a process checks this many cases without a fault, and return the number of refused cases.

    The cases come from the seed `TIDEMARK_SEED`. Without `TIDEMARK_SEED`, the seed depends on `TIDEMARK_SCALE`, so that
    a longer run tries different cases. If a case never ends, the timeout of pytest ends the test and the case. A note
    of this timeout error contains the case.
    """
    seed = int(os.environ.get("TIDEMARK_SEED", SEED * scaled(1)))
    command = [sys.executable, "-m", module, str(seed), str(count)]
    print(f"TIDEMARK_SEED={seed}: {count} cases of {module}")  # noqa: T201 -- to repeat them
    with tempfile.TemporaryFile("w+") as told:
        try:
            ended = subprocess.run(command, cwd=_ROOT, stdout=told, stderr=subprocess.PIPE, text=True, check=False)
        except BaseException as error:
            error.add_note(f"{command} was ended in {_end_of(told)}")
            raise
        said = _end_of(told)
    assert ended.returncode == 0, f"{command} ended with {ended.returncode} in {said}: {ended.stderr[-3000:]}"
    judged = _JUDGED.fullmatch(said[-1])
    assert judged is not None, f"{command}: {said}"
    assert int(judged[1]) == count
    return int(judged[2])


def _end_of(told: TextIO) -> list[str]:
    told.seek(0)
    return told.read().splitlines()[-21:] or [""]


def work(case: Case, room_bytes: int = ROOM_BYTES) -> None:
    """Check the cases of the command line: `SEED COUNT`, or `SEED FIRST COUNT` to begin at a certain case."""
    faulthandler.enable()
    confine(address_space(room_bytes)[1])
    seed, *first, count = map(int, sys.argv[1:])
    numbers = range(sum(first), sum(first) + count)
    wrong, refused = [], 0
    for number in numbers:
        say(f"seed {seed} case {number}")
        try:
            found = case(random.Random(f"{seed}/{number}"))
        except TidemarkError:
            refused += 1
            continue
        except BaseException as error:  # noqa: BLE001  # a panic of tantivy is no Exception
            found = f"untyped {type(error).__name__}: {str(error)[:300]!r}"
        wrong += [] if found is None else [f"seed {seed} case {number}: {found}"]
    say(*wrong[:20], f"{len(wrong)} of {count} are wrong" if wrong else f"judged {count}, refused {refused}")


def say(*lines: str) -> None:
    """Write lines and flush, so that the last line is kept if the process dies."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
