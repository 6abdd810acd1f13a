"""A matrix of tests that is too large for each change: every run draws a part of it, from a seed that it prints.

`TIDEMARK_DRAW` is that seed. Without it, as in `make nightly` and where a person runs a file, all cases run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from random import Random

MOST_CASES = 6
"""A function with more cases than this is a matrix. It draws as many cases, or a share of them where that is more."""
SHARE = 1 / 4


def seed(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what this run draws from; None where it runs all cases."""
    return environment.get("TIDEMARK_DRAW") or None


def left_out(tests: Iterable[str], seed: str) -> set[str]:
    """Return the cases of matrices that this seed does not draw; a case is a test's id with `[…]` behind it.

    What a function draws depends on the seed and on its own cases alone, so that it is the same in all processes.
    """
    matrices: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        matrices[test.partition("[")[0]].append(test)
    return {
        case
        for name, cases in matrices.items()
        for case in {*cases}.difference(Random(f"{seed} {name}").sample(cases, _size(len(cases))))
    }


def _size(cases: int) -> int:
    return min(cases, max(MOST_CASES, round(cases * SHARE)))
