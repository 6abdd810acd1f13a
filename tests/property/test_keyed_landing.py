"""Random envelopes of Debezium change a keyed table. The table then equals a Python dictionary with the same changes.

The landed files are shuffled, and the ingestion runs are random.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.keyed_landing import KEYED, THREE_REGIONS, change, make_landing
from tests.support.scale import scaled

UNAVAILABLE = "__debezium_unavailable_value"
Change = dict[str, object]

operations = st.sampled_from(["c", "u", "u", "r", "d", "patch"])
histories = st.lists(st.tuples(operations, st.integers(1, 4)), min_size=1, max_size=25)
between_runs = st.sampled_from(["nothing", "sort", "merge"])


@dataclass
class Dictionary:
    """The rows of a table by key, and the order number of each unmerged delete."""

    rows: dict[object, Change] = field(default_factory=dict)
    deleted: dict[object, int] = field(default_factory=dict)

    def apply(self, changes: Iterable[tuple[str, int, int, Change]]) -> None:
        """Apply the changes of one run in their order.

        A change has no effect if an earlier run had a newer change of the key.
        """
        known = {key: int(str(row["lsn"])) for key, row in self.rows.items()}
        before = {**self.deleted, **known}
        for op, lsn, key, values in sorted(changes, key=lambda each: each[1]):
            if lsn < before.get(key, -1):
                continue
            self.deleted.pop(key, None)
            if op == "d":
                self.rows.pop(key, None)
                self.deleted[key] = lsn
            elif op == "patch":
                empty: Change = {"id": key, "name": None}
                self.rows[key] = {**self.rows.get(key, empty), "price": values["price"], "lsn": lsn}
            else:
                self.rows[key] = {"id": key, "name": values["name"], "price": values["price"], "lsn": lsn}


def envelope(op: str, lsn: int, key: int, values: Change) -> Change:
    if op == "patch":
        return change("u", lsn, key, **{**values, "name": UNAVAILABLE})
    return change(op, lsn, key, **({} if op == "d" else values))


@settings(max_examples=scaled(40), deadline=None)
@given(history=histories, seed=st.integers(0, 2**16), runs=st.integers(1, 4), pauses=st.lists(between_runs, min_size=4))
def test_a_history_in_any_files_and_runs_equals_a_dictionary(
    history: list[tuple[str, int]], seed: int, runs: int, pauses: Sequence[str]
) -> None:
    random = Random(seed)
    changes = [
        (op, lsn, key, {"name": f"{op} {lsn}", "price": lsn / 2}) for lsn, (op, key) in enumerate(history, start=1)
    ]
    in_order = Dictionary()
    for each in changes:
        in_order.apply([each])
    random.shuffle(changes)
    expected = Dictionary()
    with tempfile.TemporaryDirectory() as folder:
        config = replace(KEYED, region_specs=THREE_REGIONS)
        landing = make_landing(Path(folder), config, envelope="debezium", order_by="source.lsn")
        for run in range(runs):
            arriving = changes[run::runs]
            files: dict[int, list[Change]] = {}
            for each in arriving:
                files.setdefault(random.randrange(3), []).append(envelope(*each))
            for number, records in files.items():
                landing.land(f"{run}-{number}", *records)
            landing.ingest()
            expected.apply(arriving)
            if pauses[run] == "sort":
                landing.table.sort()
            if pauses[run] == "merge":
                landing.table.merge_all()
                expected.deleted.clear()
            assert landing.rows() == expected.rows
        has_merged_before_the_last_run = "merge" in pauses[: runs - 1]
        has_patches = any(op == "patch" for op, _ in history)
        if runs == 1 or not (has_patches or has_merged_before_the_last_run):
            assert landing.rows() == in_order.rows
        assert landing.ingest().status == "nothing_to_do"
        assert landing.reasons() == []
