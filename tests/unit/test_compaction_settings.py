"""The settings of the compaction policy are stored with the table, and invalid settings are refused."""

from __future__ import annotations

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.settings.layout import COMPACTION_KEY, CompactionSettings
from storage_core.data.settings.table import TableConfig
from tests.support.many_splits import snapshot_of_many
from tests.support.merge_plan import plan


def test_only_what_differs_from_the_defaults_is_stored() -> None:
    config = TableConfig(compaction=CompactionSettings(factor=4, start=-3600))
    assert config.to_configuration() == {COMPACTION_KEY: '{"factor":4,"start":-3600}'}
    assert TableConfig.from_configuration(config.to_configuration()) == config
    assert TableConfig().to_configuration() == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"factr":4}',
        '{"factor":"4"}',
        '{"factor":1}',
        '{"most_inputs":9}',
        '{"most_inputs":257}',
        '{"generations":1000000}',
        '{"run_rows":0}',
        '{"coarsen_after_ms":-1}',
        '{"coarsen_to":5400}',
        '{"coarsen_to":31708800}',
    ],
)
def test_senseless_metrics_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        TableConfig.from_configuration({COMPACTION_KEY: text})


def test_windows_before_the_start_of_compaction_are_left_alone() -> None:
    settings = TableConfig(compaction=CompactionSettings(start=7200)).to_configuration()
    many = snapshot_of_many(12, 4, configuration=settings)
    assert [operation.window for operation in plan(many)] == [7200, 10800]
