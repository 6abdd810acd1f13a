"""The `tidemark` command, which parses arguments and prints tables for people, or JSON lines for programs.

Exit codes:

- 0: done, or there was nothing to do.
- 1: an error without an exit code of its own. The message contains the cause.
- 2: invalid arguments or input.
- 3: conflict. Run the command again.
- 4: corrupt data.
- 5: the store or the outcome is unavailable.
- 6: fenced. Stop.
- 7: a table is behind (`status`).
- 130: stopped by a signal.

Three measures make commands start fast:

- Each command itself imports its libraries, so `--help` answers without these imports.
- Text arguments and omitted arguments are not validated. Typer builds a pydantic validator for each argument. The
  import of pydantic takes longer than some commands. Numbers, choices and paths are still validated.
- Commands that only read a table do not load pandas, even if the `pipeline` extra installed pandas. Arrow imports
  pandas when it first converts Python values to an array, because a value might be a pandas object.

Typer and pydantic find invalid arguments. `usage_error` describes the errors of Typer and pydantic in the style of
Tidemark's messages.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Final, get_args

import typer
from typer.core import TyperGroup

from jobs.process import interrupt_on_first_signal
from pipelines.commands import (
    catalog,
    checking,
    inspecting,
    maintenance,
    output,
    overview,
    raw,
    reading,
    rows,
    services,
    tables,
)
from storage_core.base.errors import Interrupted, InvalidInput, TidemarkError, as_tidemark_error
from storage_core.base.text import choice_of, counted, did_you_mean, log_to_stderr, quoted

_NOUNS: Final = {int: "a whole number", float: "a number", bool: "true or false"}


def usage_error(error: typer.TyperException, arguments: Sequence[str], commands: Sequence[str]) -> InvalidInput:
    """Return the error for arguments that Typer rejected.

    Args:
        error: The error of Typer.
        arguments: The arguments of `tidemark`.
        commands: The names of all subcommands.
    """
    context = getattr(error, "ctx", None)
    first = arguments[0] if arguments and arguments[0] in commands else ""
    name = context.command_path if context else f"tidemark {first}".strip()
    message = _message(error, arguments, commands, context)
    end = "" if message.endswith("?") else "."
    return InvalidInput(f"{message}{end} See {name} --help")


def _message(error: Any, arguments: Sequence[str], commands: Sequence[str], context: Any) -> str:
    """Return the problem and its remedy. The classes of errors come from Typer's parser."""
    match type(error).__name__:
        case "NoSuchOption":
            return _unknown_option(error.option_name, arguments, context)
        case "MissingParameter" if error.param is not None:
            return f"{_subject(error.param)} is missing. {_advice(error.param)}"
        case "BadParameter" if error.param is not None:
            return _bad_value(error)
        case "BadOptionUsage":
            refused = "not take a value" in error.format_message()  # both errors have the same class
            return f"{error.option_name} " + (
                "takes no value. Leave the value out" if refused else "has no value. Give one"
            )
        case _:
            return _other(error, arguments, commands, context)


def _other(error: Any, arguments: Sequence[str], commands: Sequence[str], context: Any) -> str:
    if context is not None and context.parent is None and arguments:
        name = next((each for each in arguments if not each.startswith("-")), arguments[0])
        return f"unknown command {quoted(name)}{did_you_mean(name, commands)}"
    if context is not None and "extra argument" in error.format_message():
        takes = [each for each in context.command.params if each.param_type_name == "argument"]
        extra = error.format_message().partition("(s) (")[2].removesuffix(")")
        return f"unexpected argument {quoted(extra)}. The command takes {counted(len(takes), 'argument')}"
    return "the arguments cannot be used"


def _unknown_option(option: str, arguments: Sequence[str], context: Any) -> str:
    if context is not None and context.parent is None and option == "--json":
        rest = [each for each in arguments if each != option]
        if rest:
            return f"{option} must follow the command. Write tidemark {' '.join([*rest, option])}"
    known = [name for each in _options(context) for name in each.opts]
    by_word = {each.lstrip("-"): each for each in known}
    likely = did_you_mean(option.lstrip("-"), by_word)
    return f"unknown option {option}" + (f". Did you mean {by_word[likely.split(chr(39))[1]]!r}?" if likely else "")


def _options(context: Any) -> list[Any]:
    if context is None:
        return []
    return [each for each in context.command.get_params(context) if each.param_type_name == "option"]


def _given_in(error: Any) -> str:
    """Return the place of an invalid value: the parameter, or the environment variable with the value."""
    parameter, context = error.param, error.ctx
    source = context.get_parameter_source(parameter.name) if context is not None else None
    return str(parameter.envvar) if getattr(source, "name", "") == "ENVIRONMENT" else _subject(parameter)


def _subject(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).partition("|")[0]
    return _long(parameter) if parameter.param_type_name == "option" else name


def _long(parameter: Any) -> str:
    return str(max(parameter.opts, key=len))


def _advice(parameter: Any) -> str:
    what = getattr(parameter, "metavar", None) or "VALUE"
    return f"Give {_long(parameter)} {what}" if parameter.param_type_name == "option" else "Give one"


def _bad_value(error: Any) -> str:
    parameter = error.param
    found = error.__cause__.errors()[0] if hasattr(error.__cause__, "errors") else {}
    value, form = found.get("input"), parameter.type_descriptor
    if not found:
        return f"{_given_in(error)} is not valid. {_advice(parameter)}"
    if form.choices:
        choices = [str(getattr(each, "value", each)) for each in form.choices]
        return choice_of(_given_in(error), value, choices)
    least, most = form.parameter_info.min, form.parameter_info.max
    match found["type"]:
        case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
            wanted = f"{least} or more" if most is None else f"{least} to {most}"
            return f"{_given_in(error)} is {value}. Give {wanted}"
        case _:
            return f"{_given_in(error)} is {quoted(value)}. Give {_noun(form.annotation)}"


def _noun(annotation: Any) -> str:
    of = next((each for each in (annotation, *get_args(annotation)) if each in _NOUNS), None)
    return _NOUNS[of] if of is not None else "a valid value"


def as_given(group: Any) -> Any:
    """Return a Typer command that validates only parameters that need validation."""
    for command in [group, *group.commands.values()]:
        for parameter in command.get_params(typer.Context(command)):  # includes --help
            if build := getattr(parameter, "get_runtime_param", None):
                parameter.get_runtime_param = _Validated(build).deferred
    return group


@dataclass(frozen=True, slots=True)
class _Validated:
    """A parameter that builds its validator only when a value needs validation."""

    build: Callable[[], Any]

    def deferred(self) -> _Validated:
        """Return this object. Typer then uses this object as the validator."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of the parameter. Raises Typer's errors."""
        wanted = param.type_descriptor.annotation
        several = param.multiple or param.nargs == -1
        if value is None or (not several and type(value) is wanted):
            return value
        if several and wanted == list[str] and isinstance(value, tuple | list) and all(type(e) is str for e in value):
            return list(value)
        return self.build().coerce(value, param=param, ctx=ctx)


class _Finder:
    """An import finder that hides only pandas."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this command needs no pandas", name=fullname)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Prevent the import of pandas inside the block. If pandas is already loaded, it stays loaded."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


_STOPPED = (
    "stopped by a signal. Committed changes are kept (see `tidemark history`). Run the command again for the rest."
)

_ELSEWHERE: Final = frozenset({"ingest", "distribute", "catch-up", "merge-segments"})
"""The commands that run a maintenance step but are in another group of the help than Maintenance."""

_GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Data": {
        "append": rows.append,
        "ingest": maintenance.COMMANDS["ingest"],
        "import": tables.import_,
        "sql": reading.sql,
        "get": reading.get,
        "explain": reading.explain,
        "upsert": rows.upsert,
        "update": rows.update,
        "overwrite": rows.overwrite,
        "delete": rows.delete,
        "forget": checking.forget,
        "quarantine": rows.quarantine,
        "tail": inspecting.tail,
        "raw": raw.raw,
        "distribute": maintenance.COMMANDS["distribute"],
    },
    "Tables": {
        "init": tables.init,
        "tables": inspecting.tables,
        "status": overview.status,
        "describe": inspecting.describe,
        "files": inspecting.files,
        "regions": inspecting.regions,
        "alter": tables.alter,
        "clone": tables.clone,
        "publish": maintenance.publish,
        "report": overview.report,
        "metrics": overview.metrics,
        "catalog": catalog.catalog,
    },
    "Maintenance": {
        "debt": inspecting.debt,
        **{name: each for name, each in maintenance.COMMANDS.items() if name not in _ELSEWHERE},
        "leases": maintenance.leases,
        "cache": reading.cache,
        "fsck": checking.fsck,
        "audit": checking.audit,
        "repair": checking.repair,
    },
    "Indexes and search": {
        "search": reading.search,
        "recall": reading.recall,
        "catch-up": maintenance.COMMANDS["catch-up"],
        "merge-segments": maintenance.COMMANDS["merge-segments"],
    },
    "History": {
        "history": inspecting.history,
        "changes": inspecting.changes,
        "tag": inspecting.tag,
        "restore": inspecting.restore,
    },
    "Services": {
        "ui": services.ui,
        "serve": services.serve,
        "spark": services.spark,
        "backfill": services.backfill,
        "alerts": overview.alerts,
    },
    "Development": {
        "probe": checking.probe,
        "simulate-policy": maintenance.simulate_policy,
    },
}
"""The commands under their headings in `tidemark --help`. A heading lists its commands in the order of typical use."""

_WITHOUT_PANDAS: Final = frozenset(
    {
        *("alter", "catalog", "changes", "clone", "debt", "describe", "explain", "files", "get", "history", "init"),
        *("metrics", "publish", "recall", "report", "restore", "search", "sql", "status", "tables", "tag"),
    }
)
"""The commands that need no pandas. Without this list, Arrow would import pandas for commands that need no pandas."""


class _Grouped(TyperGroup):
    """The command `tidemark`. The help of `tidemark` lists the subcommands under their headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per group. The summaries in all sections begin in the same column."""
        del ctx
        width = max(map(len, self.commands))
        room = formatter.width - width - 6
        listed: list[Any] = [*self.commands.values()]
        for group, commands in groupby(listed, lambda each: each.rich_help_panel):
            with formatter.section(group):
                formatter.write_dl([(f"{each.name:<{width}}", each.get_short_help_str(room)) for each in commands])


def build(only: str | None = None) -> typer.Typer:
    """Return the command with all subcommands, or with only one subcommand if `only` contains its name.

    To add a subcommand takes some milliseconds.
    """
    app = typer.Typer(name="tidemark", cls=_Grouped, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_start)
    for group, commands in _GROUPS.items():
        for name, command in commands.items():
            if only in (None, name):
                app.command(name, rich_help_panel=group)(command)
    return app


def _start(
    context: typer.Context,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log to standard error what the command writes.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version of Tidemark.")] = False,
) -> None:
    """Searchable tables on object storage: create, fill, query and maintain them."""
    level = logging.INFO if verbose else logging.WARNING
    log_to_stderr(level)
    # Pandas cannot be imported in the whole process, because Arrow does not repeat a failed import of pandas.
    if context.invoked_subcommand in _WITHOUT_PANDAS and context.obj:
        context.with_resource(without_pandas())
    if version:
        output.line(f"tidemark {_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        output.line(context.get_help())


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("tidemark")
    except metadata.PackageNotFoundError:
        return "(run from its source, not installed)"


@interrupt_on_first_signal()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    An error is printed as one line on standard error. With `--json`, the error is also printed as JSON. An error
    without a type is a bug in Tidemark. The traceback of an error without a type is therefore printed too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = _asks_for_json(arguments)
    try:
        return _run(arguments, is_process=argv is None)
    except TidemarkError as error:
        return _failed(error, as_json=as_json)
    except typer.TyperException as error:
        return _failed(usage_error(error, arguments, command_names()), as_json=as_json)
    except (typer.Abort, KeyboardInterrupt):
        return _failed(Interrupted(_STOPPED), as_json=as_json)
    except (output.OutputClosedError, BrokenPipeError):
        _drop_output()
        return 0
    except Exception as error:  # noqa: BLE001  # programs get an object, and people get a traceback
        traceback.print_exception(error)
        return _failed(as_tidemark_error(error), as_json=as_json)


def _run(arguments: Sequence[str], *, is_process: bool) -> int:
    """Run the command and return its exit code.

    Raises `KeyboardInterrupt` for Ctrl-C, even if Typer converted the interruption to the exit code 130.
    """
    first = arguments[0] if arguments else ""
    only = first if any(first in commands for commands in _GROUPS.values()) else None
    command = as_given(typer.main.get_command(build(only)))
    code = command(arguments, prog_name="tidemark", standalone_mode=False, obj=is_process)
    sys.stdout.flush()
    if code == Interrupted.exit_code:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def command_names() -> list[str]:
    """Return the names of all subcommands."""
    return [name for commands in _GROUPS.values() for name in commands]


def _asks_for_json(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _failed(error: TidemarkError, *, as_json: bool) -> int:
    try:
        return output.error(error, as_json=as_json)
    except (output.OutputClosedError, BrokenPipeError):
        _drop_output()
        return error.exit_code


def _drop_output() -> None:
    """Discard buffered output after the reader has closed the pipe. The process can then end without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
