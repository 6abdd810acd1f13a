"""The rule for late rows (docs/architecture/ingestion.md)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import InvalidInput
from storage_core.data.rows.windows import Arrival, LateMetrics, LateRule
from storage_core.data.settings.setting import parse_duration
from storage_core.data.settings.table import LONGEST_ACCEPTANCE_MS, LateData, TableConfig

NOW_MS = 1_700_000_000_000
BOUND_US = (NOW_MS - HOUR_MS) * 1000
RULE = LateRule("at", LateData())


def late(times: Sequence[int | None], arrived_ms: Arrival = NOW_MS, *, zone: str | None = "UTC") -> list[bool]:
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", zone))})
    found: list[bool] = RULE.is_late(rows, arrived_ms).to_pylist()
    return found


def test_a_row_exactly_at_the_bound_is_in_time_and_a_microsecond_older_is_late() -> None:
    assert late([BOUND_US, BOUND_US - 1, BOUND_US + 1]) == [False, True, False]


def test_the_future_and_no_time_at_all_are_never_late() -> None:
    assert late([NOW_MS * 1000 + 1, 10 * NOW_MS * 1000, None]) == [False, False, False]


def test_times_are_instants_whatever_their_zone_and_utc_without_one() -> None:
    times = [BOUND_US, BOUND_US - 1]
    assert late(times, zone="Asia/Kolkata") == late(times, zone="UTC") == late(times, zone=None) == [False, True]


def test_times_before_1970_are_judged_like_others() -> None:
    assert late([-1, 0, None, -5_000_000], HOUR_MS) == [True, False, False, True]
    assert late([-1, -2], -5 + HOUR_MS) == [False, False]


def test_rows_may_each_have_arrived_at_a_time_of_their_own() -> None:
    arrived = pa.array([NOW_MS, NOW_MS + 1, NOW_MS + 1], pa.int64())
    assert late([BOUND_US, BOUND_US, None], arrived) == [False, True, False]


def test_rows_in_several_chunks_keep_their_order_and_none_is_no_row() -> None:
    chunks = pa.chunked_array([[BOUND_US - 1], [], [BOUND_US, None]], pa.timestamp("us"))
    assert RULE.is_late(pa.table({"at": chunks}), NOW_MS).to_pylist() == [True, False, False]
    assert late([]) == []


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32()])
def test_a_column_that_is_not_of_a_tables_times_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="microseconds"):
        RULE.is_late(pa.table({"at": pa.array([1], kind)}), NOW_MS)


def test_the_longest_window_there_may_be_judges_every_time_of_the_calendar() -> None:
    rule = LateRule("at", LateData(acceptance_ms=parse_duration("999999999h") * 1000))
    rows = pa.table({"at": pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us"))})
    assert rule.is_late(rows, 0).to_pylist() == rule.is_late(rows, 253_402_300_799_999).to_pylist() == [False, False]
    with pytest.raises(InvalidInput, match="Give 999999999h or less"):
        LateData(acceptance_ms=LONGEST_ACCEPTANCE_MS + 1)


def test_a_table_that_says_nothing_has_no_rule() -> None:
    assert LateRule.of(TableConfig(time_column="at")) is None
    assert LateRule.of(TableConfig(time_column="at", late_data=LateData(policy="accept"))) is not None


def test_an_acceptance_window_alone_means_quarantine_after_an_hour() -> None:
    assert LateData() == LateData(policy="quarantine", acceptance_ms=3_600_000)


def test_metrics_add_up_and_tell_what_is_not_in_the_table() -> None:
    total = LateMetrics(accepted=1, dropped=2) + LateMetrics(accepted=10, quarantined=5)
    assert total.as_mapping() == {"rows_late_accepted": 11, "rows_late_quarantined": 5, "rows_late_dropped": 2}
    assert total.not_written == 7
