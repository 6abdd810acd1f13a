"""The messages for arguments that the command line cannot use.

Typer and pydantic find these faults. This module describes the faults in the words of Tidemark's other messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import typer

from storage_core.base.errors import InvalidInput
from storage_core.base.text import choice_of, counted, did_you_mean, quoted

_NOUNS: Final = {int: "a whole number", float: "a number", bool: "true or false"}


def usage_error(error: typer.TyperException, arguments: Sequence[str], commands: Sequence[str]) -> InvalidInput:
    """Return the error for arguments that Typer refused.

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
    """Return the fault and the next act. The classes of errors are those of Typer's parser."""
    match type(error).__name__:
        case "NoSuchOption":
            return _unknown_option(error.option_name, arguments, context)
        case "MissingParameter" if error.param is not None:
            return f"{_subject(error.param)} is missing. {_advice(error.param)}"
        case "BadParameter" if error.param is not None:
            return _bad_value(error)
        case "BadOptionUsage":
            refused = "not take a value" in error.format_message()  # the class is the same for both faults
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
            return f"{option} goes after the command: tidemark {' '.join([*rest, option])}"
    known = [name for each in _options(context) for name in each.opts]
    by_word = {each.lstrip("-"): each for each in known}
    likely = did_you_mean(option.lstrip("-"), by_word)
    return f"unknown option {option}" + (f". Did you mean {by_word[likely.split(chr(39))[1]]!r}?" if likely else "")


def _options(context: Any) -> list[Any]:
    if context is None:
        return []
    return [each for each in context.command.get_params(context) if each.param_type_name == "option"]


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
        return f"{_subject(parameter)} is not valid. {_advice(parameter)}"
    if form.choices:
        choices = [str(getattr(each, "value", each)) for each in form.choices]
        return choice_of(_subject(parameter), value, choices)
    least, most = form.parameter_info.min, form.parameter_info.max
    match found["type"]:
        case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
            wanted = f"{least} or more" if most is None else f"{least} to {most}"
            return f"{_subject(parameter)} is {value}. Give {wanted}"
        case _:
            return f"{_subject(parameter)} is {quoted(value)}. Give {_noun(form.annotation)}"


def _noun(annotation: Any) -> str:
    of = next((each for each in (annotation, *get_args(annotation)) if each in _NOUNS), None)
    return _NOUNS[of] if of is not None else "a valid value"
