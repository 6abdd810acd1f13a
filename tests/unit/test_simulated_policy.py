"""The simulated policy has the same limits per run as real runs. The simulation lasts until no work is pending."""

from __future__ import annotations

import pytest

from pipelines.commands.maintenance import simulate_policy
from pipelines.commands.policy_simulation import MOST_ROUNDS, Ingestion, Simulation, simulate
from storage_core.base.errors import InvalidInput
from storage_core.compact.work import MOST_INPUTS
from storage_core.data.settings.layout import MOST_RUN_INPUTS, CompactionSettings

MOST = CompactionSettings().most_inputs


def _replaced(done: Simulation) -> list[int]:
    """Return the number of splits that each round replaced. Every merge leaves one split."""
    return [each.live_before - each.live_after + each.merges for each in done.rounds]


def test_a_simulated_run_replaces_as_many_splits_as_a_planned_one() -> None:
    few = Ingestion(rates=[50] * 120, split_bytes=1, plan_inputs=600)
    assert max(_replaced(simulate(few))) in range(600, 600 + MOST_RUN_INPUTS)
    (first, *_) = _replaced(simulate(Ingestion(rates=[MOST_INPUTS * 3 // 2], split_bytes=1)))
    assert first in range(MOST_INPUTS, MOST_INPUTS + MOST)


def test_what_a_bounded_run_leaves_is_the_next_ones_and_ends_as_without_a_bound() -> None:
    loads = [Ingestion(rates=[50] * 120, split_bytes=1, plan_inputs=bound) for bound in (600, MOST_INPUTS)]
    bounded, free = map(simulate, loads)
    assert bounded.converged
    assert free.converged
    assert _most_live(bounded) > _most_live(free)
    assert bounded.splits_per_window == free.splits_per_window


def test_a_compaction_every_minute_is_simulated_for_all_of_the_day() -> None:
    done = simulate(Ingestion(rates=[1] * 1440, split_bytes=1, every_minutes=1))
    assert done.converged
    assert done.bytes_ingested == 1440
    assert len(done.rounds) > 1440 > MOST_ROUNDS


def test_runs_that_get_nowhere_are_not_simulated_for_ever() -> None:
    two = CompactionSettings(factor=2, most_inputs=2)
    done = simulate(Ingestion(rates=[3 * MOST_ROUNDS], split_bytes=1, settings=two, every_minutes=15, plan_inputs=1))
    cold = (15 + 60) // 15
    assert (done.converged, len(done.rounds)) == (False, cold + MOST_ROUNDS)


def test_a_day_that_no_compaction_keeps_up_with_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"600000 splits .* replaces 80000\. Choose a smaller --every"):
        simulate_policy(rate=10_000, every=60)


def _most_live(done: Simulation) -> int:
    return max(each.live_before for each in done.rounds)
