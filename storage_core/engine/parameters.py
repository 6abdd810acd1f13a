"""Values for the parameters of a query: `?`, `$1` or `$name`, as DuckDB's own literals in its text.

So a query with values is one SELECT like any other: checked, pruned and run as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage_core.engine.constants import literal
from storage_core.engine.statement import parse
from storage_core.engine.tree import nodes_of, shown
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

Parameters = Sequence[object] | Mapping[str, object]


def with_values(text: str, parameters: Parameters) -> str:
    """Return the query with a literal where a parameter was: `?` and `$1` from a sequence, `$name` from a mapping.

    Every parameter has a value, and every value a parameter: raises `InvalidInput` otherwise, and for a value that
    DuckDB has no literal for.
    """
    values = _by_name(parameters)
    places = {
        int(node["query_location"]): (int(node["query_location_length"]), str(node["identifier"]))
        for node in nodes_of(parse(text))
        if node.get("class") == "PARAMETER"
    }
    named = {name for _, name in places.values()}
    if named != values.keys():
        wanted, given = (", ".join(sorted(each)) or "none" for each in (named, values.keys()))
        raise InvalidInput(f"the query {shown(text)} has the parameters {wanted}; found values for {given}", query=text)
    coded = text.encode()
    for place, (length, name) in sorted(places.items(), reverse=True):
        written = f"({literal(values[name], f'parameter {name} cannot be')})"
        coded = coded[:place] + written.encode() + coded[place + length :]
    return coded.decode()


def _by_name(parameters: object) -> dict[str, object]:
    if isinstance(parameters, Mapping):
        return {str(name): value for name, value in parameters.items()}
    if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes):
        return {str(number): value for number, value in enumerate(parameters, 1)}
    raise InvalidInput(f"parameters are a list of values, or values by name, found {quoted(parameters)}")
