"""The command of a job, `python -m jobs STEP`: its arguments, its report and its exit code.

The options of the step define the arguments. Exit codes:

- 0: done, or there was nothing to do.
- 1: an unexpected error, with its traceback on standard error.
- 2: invalid arguments or input.
- 3: conflict. Run the job again.
- 4: corrupt data.
- 5: the store or the outcome is unavailable.
- 6: fenced. Stop.
- 130: stopped by a signal. Run the job again to do the remaining work.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from jobs.process import end_with_parent, interrupt_on_first_signal, report_to_dagster
from jobs.spark.spark import SPARK, SmallWork, Spark, SparkUse
from storage_core.base.errors import Interrupted, TidemarkError, as_tidemark_error
from storage_core.base.text import log_to_stderr, printable
from storage_core.data.rows.window_range import WindowRange, to_argv, window_range
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import STEPS, Described, RunOptions, Step, described
from storage_core.log.job_run import report_of, run

_MILLISECONDS = "MS"


def parser(step: Step) -> argparse.ArgumentParser:
    """Return the argument parser for the job of a step.

    The parser also accepts arguments for the format of the report and for the use of Spark.
    """
    result = argparse.ArgumentParser(prog=f"python -m jobs {step.name}", description=step.summary)
    for each in described(step.options):
        _add(result, each)
    result.add_argument(
        "--spark",
        choices=[each.value for each in SparkUse],
        help=f"auto: do small work in this process. always: start Spark for it, too (default: {SPARK}, else auto).",
    )
    result.add_argument("--json", action="store_true", help="Print the report as one JSON object.")
    return result


def parse(step: Step, arguments: argparse.Namespace) -> RunOptions:
    """Return the options for parsed arguments. Raises `InvalidInput` for an invalid window."""
    given: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in vars(arguments).items()
    }
    if "window" in given:
        given["windows"] = window_range(arguments.window, arguments.start, arguments.end)
    return step.options(**{each.name: given[each.name] for each in fields(step.options)})


def from_arguments(step: str, argv: Sequence[str]) -> RunOptions:
    """Return the options of the step with this name. Raises the errors of `parse`."""
    return parse(STEPS[step], parser(STEPS[step]).parse_args(argv))


def to_arguments(options: RunOptions) -> list[str]:
    """Return the arguments that `parse` converts to these options."""
    return [text for each in fields(options) for text in _arguments(each.name, getattr(options, each.name))]


def _arguments(name: str, value: object) -> Iterator[str]:
    match value:
        case None | False:
            pass
        case True:
            yield _option(name)
        case Mode():
            yield from [] if value is Mode.FINALIZE else [_option(value)]
        case WindowRange():
            yield from to_argv(value)
        case tuple():
            yield from (f"{_repeated(name)}={one}" for one in value)
        case _:
            yield f"{_option(name)}={value}"


def _add(result: argparse.ArgumentParser, of: Described) -> None:
    option, about = _option(of.name), of.about
    metavar = _MILLISECONDS if about.is_duration else about.metavar
    if of.kind is WindowRange:
        _add_windows(result, about.help)
    elif of.kind is Mode:
        for mode, text in (about.choices or {}).items():
            result.add_argument(
                _option(mode), dest=of.name, action="store_const", const=mode, default=of.default, help=text
            )
    elif of.kind is bool:
        result.add_argument(option, action="store_true", help=about.help)
    elif of.kind == tuple[str, ...]:
        option = _repeated(of.name)
        result.add_argument(option, dest=of.name, action="append", default=[], metavar=metavar, help=about.help)
    else:
        default = None if of.is_required else of.default
        read = str if of.kind in (str, str | None) else int
        result.add_argument(
            option, type=read, default=default, required=of.is_required, metavar=metavar, help=about.help
        )


def _add_windows(result: argparse.ArgumentParser, text: str) -> None:
    which = result.add_argument_group(text)
    which.add_argument("--window", help="One window by its start: 2015-05-17T10:00 (UTC), seconds, or null.")
    which.add_argument("--from", dest="start", help="First window of the range (UTC).")
    which.add_argument("--to", dest="end", help="End of the range (UTC). The window that starts here is not included.")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _repeated(name: str) -> str:
    """Return the option for a field with several values.

    The option's name is singular, because users repeat the option.
    """
    return _option(name).removesuffix("s")


@interrupt_on_first_signal()
def main(job: str, argv: Sequence[str] | None = None) -> int:
    """Run a step with these arguments. Print the report of the step, and return the exit code.

    The arguments are parsed before Spark starts. An error in the arguments is therefore reported at once.
    """
    log_to_stderr(logging.INFO)
    step = STEPS[job]
    parsed = parser(step).parse_args(argv)
    try:
        with end_with_parent(os.environ):
            options = parse(step, parsed)
            named = {SPARK: parsed.spark} if parsed.spark else {}
            with Spark(options.master, SmallWork.of({**os.environ, **named})) as spark:
                report = run(options, spark)
    except TidemarkError as error:
        return _failed(job, error, as_json=parsed.json)
    except KeyboardInterrupt:
        stopped = Interrupted("stopped by a signal. Run the same command again.")
        return _failed(job, stopped, as_json=parsed.json)
    except Exception as error:  # noqa: BLE001  # the caller gets a report of any error
        sys.stderr.write(printable(traceback.format_exc()))
        return _failed(job, as_tidemark_error(error), as_json=parsed.json)
    sys.stdout.write((report.to_json() if parsed.json else printable(report.to_text())) + "\n")
    report_to_dagster(json.loads(report.to_json()))
    return 0


def failure_of(job: str, error: TidemarkError) -> dict[str, object]:
    """Return the message about a failed job, with the report of the work that it finished."""
    failure: dict[str, object] = {"job": job, "status": "failed", "error": error.kind, "message": str(error)}
    if (report := report_of(error)) is not None:
        failure["report"] = json.loads(report.to_json())
    return failure


def _failed(job: str, error: TidemarkError, *, as_json: bool) -> int:
    failure = failure_of(job, error)
    sys.stdout.write(json.dumps(failure) + "\n" if as_json else "")
    sys.stderr.write(printable(f"{job}: {error.kind}: {error}") + "\n")
    report_to_dagster(failure)
    return error.exit_code
