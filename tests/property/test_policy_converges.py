"""For any arriving splits, compaction ends, no byte is lost, and every window is finalized."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.commands.policy_simulation import Ingestion, simulate
from storage_core.data.settings.layout import CompactionSettings
from tests.support.scale import scaled

TARGET = 1_000
ROWS = 100

loads = st.builds(
    Ingestion,
    rates=st.lists(st.integers(0, 60) | st.just(0), min_size=1, max_size=90),
    split_bytes=st.sampled_from([1, 7, 90, 400, 499, 500, 800, 2500]),
    window_seconds=st.sampled_from([60, 900, 3600]),
    target_bytes=st.just(TARGET),
    late_share=st.sampled_from([0.0, 0.03, 0.2, 1.0]),
    late_minutes=st.integers(1, 200),
    every_minutes=st.sampled_from([1, 7, 60]),
    split_rows=st.sampled_from([1, 20, 49, 300]),
    settings=st.sampled_from(
        [
            CompactionSettings(),
            CompactionSettings(factor=2, most_inputs=2, generations=1),
            CompactionSettings(run_rows=ROWS),
        ]
    ),
)


@settings(max_examples=scaled(60), deadline=None)
@given(loads)
def test_every_window_converges(load: Ingestion) -> None:
    done = simulate(load)
    assert done.converged
    assert done.finalized_windows == len(done.splits_per_window), "however large a window is"
    assert sum(done.bytes_per_window) == done.bytes_ingested == sum(load.rates) * load.split_bytes
    for count, size in zip(done.splits_per_window, done.bytes_per_window, strict=True):
        # Mature splits have at least half the target size or half the rows. Besides its mature splits, a window can
        # have late splits.
        by_rows = 2 * size // load.split_bytes * load.split_rows // load.settings.run_rows
        assert count <= 2 * size // TARGET + by_rows + 1 + load.settings.most_files
    # Compaction rewrites each byte at most once per generation, and once more into the sorted run of its window. In
    # addition, each late byte costs at most ten rewritten bytes.
    assert done.write_amplification <= 1 + load.settings.generations + 1 / 0.1 + 1


@settings(max_examples=scaled(20), deadline=None)
@given(loads)
def test_a_simulation_can_be_repeated(load: Ingestion) -> None:
    assert simulate(load) == simulate(load)
