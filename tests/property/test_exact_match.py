"""Without DuckDB, the same rows match as with DuckDB. DuckDB evaluates all conditions with casts or rounding."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from storage_core.engine.session import session
from storage_core.read.bounds import is_exact, meeting
from storage_core.read.predicate import Comparison, Filter, col
from storage_core.read.sql_predicate import from_sql
from tests.property.test_pruning_keeps_answers import POOLS, SCHEMA, TEXTS, conditions
from tests.property.test_row_group_pruning import LIKES, VALUES
from tests.support.scale import scaled

TYPES = {each.name: each.type for each in SCHEMA}
EXACT = ("n", "i", "s", "day", "moment", "naive", "b")


class Sample:
    """Random rows in several chunks.

    The same rows are also in DuckDB. Not a dataclass, because Hypothesis would print it.
    """

    def __init__(self) -> None:
        chance = random.Random(20150517)  # repeatable
        rows = [{name: chance.choice([*pool, None]) for name, pool in VALUES.items()} for _ in range(300)]
        whole = pa.Table.from_pylist(rows, schema=SCHEMA)
        self.rows = pa.concat_tables([whole.slice(0, 100), whole.slice(100, 1), whole.slice(101)])
        self.numbered = session().from_arrow(whole.append_column("place", pa.array(range(len(whole))))).set_alias("t")

    def require_told(self, wanted: Filter) -> bool:
        """Return True if the filter is exact. In that case, assert that DuckDB finds the same rows."""
        if not is_exact(wanted.predicate, TYPES):
            return False
        found = self.numbered.filter(wanted.expression).select("place").fetchall()
        told = pc.indices_nonzero(meeting(self.rows, wanted.predicate))
        assert told.to_pylist() == sorted(place for (place,) in found)
        return True


@pytest.fixture(scope="module")
def sample() -> Iterator[Sample]:
    found = Sample()
    yield found
    del found.numbered


@pytest.mark.parametrize("name", EXACT)
def test_a_literal_of_its_column_s_type_is_compared_as_duckdb_compares_it(sample: Sample, name: str) -> None:
    told = [
        sample.require_told(getattr(operator, comparison.name.lower())(col(name), value))
        for comparison in Comparison
        for value in POOLS[name][1]
        if not isinstance(value, str) or value.isprintable()
    ]
    assert told
    assert all(told)


def test_a_number_beyond_its_column_is_compared_as_a_number(sample: Sample) -> None:
    for value in (2**31, -(2**31) - 1, 2**63 - 1, -(2**63)):
        for comparison in Comparison:
            assert sample.require_told(getattr(operator, comparison.name.lower())(col("i"), value))


@settings(max_examples=scaled(80), deadline=None)
@given(wanted=conditions(EXACT))
def test_what_is_unknown_of_one_condition_is_settled_by_the_others(sample: Sample, wanted: Filter) -> None:
    sample.require_told(wanted)


@pytest.mark.parametrize("text", [*TEXTS, *LIKES, "n in (0, 1, 2)", "not (b or n > 1)", "b is null and pair is null"])
def test_a_sql_condition_is_told_as_duckdb_tells_it_or_not_at_all(sample: Sample, text: str) -> None:
    sample.require_told(from_sql(text))


@pytest.mark.parametrize(
    "text", ["n = 1.0", "f = 1.5", "s like 'a%'", "moment > '1970-01-01'", "n = i", "d = 1", "q = 1"]
)
def test_what_is_cast_rounded_or_no_column_is_left_to_duckdb(text: str) -> None:
    assert not is_exact(from_sql(text).predicate, TYPES)


def test_no_alternative_is_met_by_no_row_and_no_condition_by_all(sample: Sample) -> None:
    assert sample.require_told(col("n").isin([]))
    everything = ~col("n").isin([])
    assert np.count_nonzero(meeting(sample.rows, everything.predicate).to_numpy(zero_copy_only=False)) == 300
