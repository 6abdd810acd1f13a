"""The reaction of a job to the signals that end it."""

from __future__ import annotations

import signal
import threading

import pytest

from jobs.command import main
from jobs.process import STOP_SIGNALS, interrupt_on_first_signal, restore_signal_handlers
from storage_core.log.job_run import JobReport


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_job_that_a_signal_ends_is_interrupted_with_130(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object) -> JobReport:
        signal.raise_signal(number)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr("storage_core.catalog.opening.run_refresh_catalog", run)
    assert main("refresh_catalog", []) == 130
    assert capsys.readouterr().err.startswith("refresh_catalog: interrupted: ")


@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_only_the_first_signal_is_heard_also_when_another_took_its_handler_meanwhile(second: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with interrupt_on_first_signal():
        with pytest.raises(KeyboardInterrupt), restore_signal_handlers():
            signal.raise_signal(signal.SIGINT)
        with restore_signal_handlers():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(second)
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_a_thread_that_hears_no_signal_changes_none() -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    found: list[object] = []

    def look() -> None:
        with interrupt_on_first_signal():
            found.extend(signal.getsignal(each) for each in STOP_SIGNALS)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == before
