"""Random sequences of all operations of a keyed table (see `sequence`)."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import sequence
from tests.chaos.sequence import BLOCK
from tests.simulation.seeds import seed_blocks


@seed_blocks(8, BLOCK)
def test_after_every_operation_a_keyed_table_answers_as_its_model_does(seeds: range, tmp_path: Path) -> None:
    sequence.run(seeds, tmp_path, keyed=True)
