"""The seeds of a simulation.

The number of seeds is a default number multiplied by `TIDEMARK_SCALE`. If `TIDEMARK_SEED` is set, the simulation uses
only this seed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.support.scale import scaled

BLOCK = 100
MOST_SEEDS = 1_000
"""After this many seeds without an expected event, the event counts as impossible."""


def seed_blocks(default: int, block: int = BLOCK) -> pytest.MarkDecorator:
    """Parametrize a test by `seeds` in blocks, so that there are few tests and each ends soon."""
    one, count = os.environ.get("TIDEMARK_SEED"), scaled(default)
    blocks = (
        [range(start, min(start + block, count)) for start in range(0, count, block)]
        if one is None
        else [range(int(one), int(one) + 1)]
    )
    return pytest.mark.parametrize("seeds", blocks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


@contextmanager
def naming(seed: int) -> Iterator[None]:
    """Add a note with the seed to a failure in the block, so that the failure can be repeated."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"simulation with TIDEMARK_SEED={seed}")
        raise


def run_until_met(simulate: Callable[[int], Mapping[str, int]], wanted: Collection[str], *, first: int = 0) -> None:
    """Run seed after seed until all wanted events have happened.

    Without the wanted events, a simulation would not test the code for them.

    For a seed, `simulate` returns the number of occurrences of each event. A change of the random choices can change
    which seeds cause an event. Among the tried seeds, at least one seed must cause each wanted event.
    """
    met: Counter[str] = Counter()
    for seed in range(first, first + MOST_SEEDS):
        met.update(simulate(seed))
        if all(met[each] for each in wanted):
            return
    raise AssertionError(f"{MOST_SEEDS} seeds do not meet {[each for each in wanted if not met[each]]}")
