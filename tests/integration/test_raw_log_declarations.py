"""The declaration of a raw log and the request for a distribution run: parsed, checked and passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.command import from_arguments, to_arguments
from pipelines.tables import read_raw_logs
from storage_core.base.errors import InvalidInput
from storage_core.data.steps import Distribute
from storage_core.raw_log_steps import parse_give_up


def test_a_request_travels_as_arguments() -> None:
    request = Distribute(
        raw_log="raw_logs/a b.yaml",
        tables=("tables/x.yaml", "tables/y.yaml"),
        root="/somewhere",
        skip_gaps=("w:3",),
        dry_run=True,
        run_id="run",
        master="local[1]",
    )
    assert from_arguments("distribute", to_arguments(request)) == request
    assert parse_give_up(request.skip_gaps) == {"w": 3}
    with pytest.raises(InvalidInput, match="WRITER:LAST"):
        parse_give_up(["w"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: all\n", "field `stores` is missing"),
        ("name: all\nstores: [raw, raw]\n", "'raw' is given twice"),
        ("name: all\nstores:\n  - uri: raw\n    mandatory: false\n", "needs a mandatory store"),
        ("name: all\nstores: [raw]\ntabels: [x]\n", "unknown field `tabels`"),
        ("name: All\nstores: [raw]\n", "field `name`: 'All' is not a valid table name"),
        ("name: all\nstores: [../raw]\n", "leaves its folder"),
        ("name: all\nstores: [raw]\nschedule: daily\n", "field `schedule`: 'daily' is not a cron line"),
        (
            "name: all\nstores: [raw]\nupkeep_schedule: 0 24 * * *\n",
            "field `upkeep_schedule`: '24' is not a valid hour of",
        ),
    ],
)
def test_a_declaration_of_a_raw_log_is_refused_with_file_line_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "raw_logs").mkdir()
    (tmp_path / "raw_logs" / "all.yaml").write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_raw_logs(tmp_path / "tables").find("all")
    assert message in str(refused.value)
    assert "all.yaml:" in str(refused.value)
