"""Random operations one after the other, of everything that a table can do, against dictionaries and lists.

After each the table must answer as its model does, whatever way it is asked. So many seeds (`TIDEMARK_SCALE` times as
many in a soak), each with a table of its own; `TIDEMARK_SEED` runs just that one.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.chaos.sequence import Sequence
from tests.scale import scaled

SEEDS = scaled(35)
BLOCK = 5
OPERATIONS = 80

ONE = os.environ.get("TIDEMARK_SEED")
BLOCKS = [range(int(ONE), int(ONE) + 1)] if ONE else [range(at, at + BLOCK) for at in range(0, SEEDS, BLOCK)]


@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_after_every_operation_the_table_answers_as_its_model_does(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        sequence = Sequence.begin(folder, Random(seed))
        try:
            for _ in range(OPERATIONS):
                sequence.step()
            sequence.end()
        except BaseException as error:
            error.add_note(f"sequence with TIDEMARK_SEED={seed}, in {folder}: {', '.join(sequence.done)}")
            raise
