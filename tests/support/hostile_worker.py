"""Hostile cases in a process of their own, so that one that kills it or never ends is noticed, and named.

A test module calls `survives`; run as a program, it calls `work`, which judges the cases one after the other.
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

from storage_core.errors import TidemarkError
from tests.support.limits import address_space, confine
from tests.support.scale import scaled

SEED = 13
ROOM_BYTES = 6 * 2**30
"""How much more address space a process may take than it has before its first case."""

_ROOT = Path(__file__).resolve().parents[2]
_JUDGED = re.compile(r"judged (\d+), refused (\d+)")

Case = Callable[[random.Random], str | None]
"""Makes one case of a source of chance, tries it, and returns what is wrong with the outcome, None for nothing.

It may let a `TidemarkError` pass where one is a right outcome; such a case is counted as refused.
"""


def survives(module: str, count: int) -> int:
    """Assert that a process judges so many cases and finds nothing wrong with any; return how many it refused.

    The cases are those of `TIDEMARK_SEED`; without it, of one seed per `TIDEMARK_SCALE`, so that a longer run tries
    other ones. A case that never ends is ended with the test by pytest's timeout, and a note names it.
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
    """Judge the cases that the command line asks for: `SEED COUNT`, or `SEED FIRST COUNT` to begin at one of them."""
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
    """Write lines at once, so that the last one is there when the process dies."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
