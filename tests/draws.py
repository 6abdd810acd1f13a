"""Test matrices that are too large to run on every change. Each run selects a part of the cases by a printed seed.

`TIDEMARK_DRAW` is the seed. Without a seed, all cases run, as in `make nightly` or when a user runs one file. A matrix
is a test with many cases, or a loop inside a test. A matrix in a loop runs over values (`part_of`) or over the requests
of an operation (`instants`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from random import Random
from typing import TypeVar

T = TypeVar("T")

MOST_CASES = 6
"""A test function with more cases than this number is a matrix.

A run with a seed selects this number of cases of a matrix, or the fraction `SHARE` of all cases if it is greater.
"""
SHARE = 1 / 4


def seed(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the seed of this run, or None if it runs all cases."""
    return environment.get("TIDEMARK_DRAW") or None


def left_out(tests: Iterable[str], seed: str) -> set[str]:
    """Return the matrix cases that a run with this seed omits. A case is a test ID that ends in `[…]`.

    The selected cases of a function depend only on the seed and on all cases of that function. All processes of a run
    therefore select the same cases.
    """
    matrices: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        matrices[test.partition("[")[0]].append(test)
    return {
        case
        for name, cases in matrices.items()
        for case in {*cases}.difference(Random(f"{seed} {name}").sample(cases, _size(len(cases))))
    }


def part_of(values: Iterable[T], name: str) -> list[T]:
    """Return the values of a loop that this run tests, in the given order. Without a seed, return all values.

    `name` distinguishes the loop from the other loops of the run.
    """
    found, given = [*values], seed()
    if given is None:
        return found
    chosen = Random(f"{given} {name}").sample(range(len(found)), _size(len(found)))
    return [found[each] for each in sorted(chosen)]


def instants(name: str) -> Iterator[int]:
    """Yield, without end, the request numbers that this run tries. Without a seed, yield every number.

    With a seed, the numbers have equal distances, and the seed determines the first number. `name` is as in `part_of`.
    """
    given, step = seed(), round(1 / SHARE)
    return count() if given is None else count(Random(f"{given} {name}").randrange(step), step)


def _size(cases: int) -> int:
    return min(cases, max(MOST_CASES, round(cases * SHARE)))
