"""The process that runs the jobs of several tables: its terminal output."""

from __future__ import annotations

import json
import os
from io import StringIO

import pytest

from jobs.command import to_arguments
from jobs.job_server import Answers, serve
from storage_core.base.errors import NotFound
from storage_core.data.steps import Checkpoint


@pytest.mark.parametrize("error", [NotFound("no \x1b[31mtable"), RuntimeError("no \x1b[31mtable")])
def test_an_error_sends_no_control_characters_to_the_terminal(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> None:
        raise error

    monkeypatch.setattr("storage_core.maintain.steps.run_checkpoint", run)
    reading, writing = os.pipe()
    line = json.dumps({"job": "checkpoint", "argv": to_arguments(Checkpoint(table_uri="/nowhere"))})
    os.write(writing, f"{line}\n".encode())
    os.close(writing)
    with os.fdopen(reading) as requests:
        assert serve(requests, Answers(StringIO()), 1) == 0
    written = capsys.readouterr().err
    assert "[31mtable" in written
    assert "\x1b" not in written
