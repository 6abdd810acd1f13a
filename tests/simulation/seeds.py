"""Which seeds a simulation runs: `TIDEMARK_SCALE` times so many, or just that of `TIDEMARK_SEED`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.scale import scaled

BLOCK = 100


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
