"""A process with an open writer loses no acknowledged row after a fork. The writer in the child writes nothing.

A separate program runs every scenario, because fork() is unsafe with the threads of a test run (decision 0011).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_core.base.clock import SystemIds
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.settings.table import TableConfig
from storage_core.store.resolve import open_store
from storage_core.write.raw_log.history import union
from storage_core.write.region.spec import first_specs
from tests.support.keyed_table import PLANES, KeyedTable, seats
from tests.support.s3_server import S3Server

REPOSITORY = Path(__file__).parents[2]
COPY = "copied_process"
REGIONS = TableConfig(
    primary_key=("tailnum",), region_specs=first_specs([{"transform": "bucket", "source": "tailnum", "n": 4}], PLANES)
)
SCENARIOS: Mapping[str, TableConfig | None] = {
    "before_the_first_put": None,
    "alternately": None,
    "by_multiprocessing": None,
    "the_same_rows": None,
    "with_rows_pending": None,
    "child_claims_anew": None,
    "everything_in_the_child": None,
    "regions": REGIONS,
    "raw_log": None,
    "lease": None,
}


@dataclass(frozen=True, slots=True)
class Told:
    """The results of one process: the keys of acknowledged rows, the kinds of errors, and other observations."""

    acknowledged: list[str]
    errors: list[str]
    seen: list[str]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one scenario."""

    uri: str
    parent: Told
    child: Told

    @property
    def table(self) -> KeyedTable:
        return KeyedTable(open_store(self.uri), ids=SystemIds())


@pytest.fixture(scope="module", params=["local", "s3"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Run]]:
    folder = tmp_path_factory.mktemp("forked")
    uris = {name: (folder / name).as_uri() for name in SCENARIOS}
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            server: S3Server = request.getfixturevalue("_s3_server")
            for name, value in server.environment.items():
                patch.setenv(name, value)
            uris = {name: server.uri(f"{folder.name}/{name}") for name in SCENARIOS}
        for name, config in SCENARIOS.items():
            if name != "raw_log":
                KeyedTable(open_store(uris[name]), ids=SystemIds()).create(config=config)
        yield _run(uris, folder)


def _run(uris: Mapping[str, str], folder: Path) -> Mapping[str, Run]:
    """Return the results of parents and children, and check that no process hangs or dies."""
    work = json.dumps([(name, uri, str(folder)) for name, uri in uris.items()])
    command = [sys.executable, "-m", "tests.integration.forking_program", work]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(zip(uris, map(json.loads, done.stdout.splitlines()), strict=True))
    assert [name for name, each in found.items() if each["status"] or each["child"] is None] == [], done.stderr
    return {name: Run(uris[name], Told(*each["parent"]), Told(*each["child"])) for name, each in found.items()}


@pytest.mark.parametrize("scenario", ["before_the_first_put", "alternately", "by_multiprocessing", "the_same_rows"])
def test_rows_that_parent_or_child_were_told_are_durable_are_there(runs: Mapping[str, Run], scenario: str) -> None:
    run = runs[scenario]
    told = {*run.parent.acknowledged, *run.child.acknowledged}
    assert told
    assert told <= set(seats(run.table))
    run.table.merge()
    assert told <= set(seats(run.table))
    assert (run.child.acknowledged, {*run.child.errors}) == ([], {COPY})
    assert run.parent.errors == []


def test_rows_that_wait_at_a_fork_are_the_parents_to_write(runs: Mapping[str, Run]) -> None:
    run = runs["with_rows_pending"]
    assert (run.parent.acknowledged, run.parent.errors) == (["pending"], [])
    assert (run.child.acknowledged, run.child.errors) == ([], [COPY] * 3)
    assert set(seats(run.table)) == {"pending"}


def test_a_child_that_claims_anew_shares_no_connection_with_its_parent(runs: Mapping[str, Run]) -> None:
    run = runs["child_claims_anew"]
    assert (len(run.child.acknowledged), run.child.errors) == (20, [])
    assert set(run.parent.errors) <= {"writer_fenced"}
    assert {*run.parent.acknowledged, *run.child.acknowledged, "before"} == set(seats(run.table))


def test_no_call_of_a_copy_hangs_on_what_threads_of_its_parent_hold(runs: Mapping[str, Run]) -> None:
    child = runs["everything_in_the_child"].child
    assert (child.acknowledged, child.errors) == ([], [COPY] * 10)


def test_a_writer_of_several_regions_is_refused_in_a_copy(runs: Mapping[str, Run]) -> None:
    run = runs["regions"]
    assert (len(run.parent.acknowledged), run.parent.errors) == (3, [])
    assert (run.child.acknowledged, run.child.errors) == ([], [COPY] * 5)
    assert set(run.parent.acknowledged) <= set(seats(run.table))


def test_a_writer_of_a_raw_log_is_refused_in_a_copy(runs: Mapping[str, Run]) -> None:
    run = runs["raw_log"]
    assert (run.parent.acknowledged, run.parent.errors) == (["parent"], [])
    assert (run.child.acknowledged, run.child.errors) == ([], [COPY] * 2)
    chunks = (each for each in union([run.uri]).read() if isinstance(each, RawColumns))
    texts = [text for chunk in chunks for text in chunk.records.column("fields").to_pylist()]
    assert sorted(texts) == [
        '{"a":"parent"}',
        '{"a":0}',
    ]


def test_a_lease_is_held_by_the_process_that_acquired_it_and_no_copy(runs: Mapping[str, Run]) -> None:
    run = runs["lease"]
    assert (run.parent.acknowledged, run.parent.errors) == (["held", "renewed", "advanced"], [])
    assert (run.child.acknowledged, run.child.errors) == ([], [COPY] * 3)
    assert run.parent.seen == ["held"]  # the copy of the lease in the child process did not release the lease
