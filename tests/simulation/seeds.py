"""Which seeds a simulation runs: `TIDEMARK_SCALE` times so many, or just that of `TIDEMARK_SEED`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.support.scale import scaled

BLOCK = 100
MOST_SEEDS = 1_000
"""So many seeds without something that should happen: it cannot."""


def seed_blocks(default: int, block: int = BLOCK) -> pytest.MarkDecorator:
    """Parametrise a test by `seeds`, blocks of them: few enough tests, and each of them soon over."""
    one, count = os.environ.get("TIDEMARK_SEED"), scaled(default)
    blocks = (
        [range(start, min(start + block, count)) for start in range(0, count, block)]
        if one is None
        else [range(int(one), int(one) + 1)]
    )
    return pytest.mark.parametrize("seeds", blocks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


@contextmanager
def naming(seed: int) -> Iterator[None]:
    """A failure in the block says how to see it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"simulation with TIDEMARK_SEED={seed}")
        raise


def run_until_met(simulate: Callable[[int], Mapping[str, int]], wanted: Collection[str], *, first: int = 0) -> None:
    """Run seed after seed until everything that should happen has: a simulation that nothing happens in shows nothing.

    `simulate` says of a seed what happened how often. Which seeds are needed changes with the draws; that they are
    found does not.
    """
    met: Counter[str] = Counter()
    for seed in range(first, first + MOST_SEEDS):
        met.update(simulate(seed))
        if all(met[each] for each in wanted):
            return
    raise AssertionError(f"{MOST_SEEDS} seeds do not meet {[each for each in wanted if not met[each]]}")
