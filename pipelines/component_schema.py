"""The JSON schema of a component's attributes, by which `dg check yaml` judges a `defs.yaml` and editors complete it.

The schema of a declaration describes the values after they were read. People write text such as `1h`, `timestamp!` or
`{{ env.WAREHOUSE }}`, so the schema takes a scalar wherever a value may be written as one. The component itself
checks each value when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import JsonSchemaValue

_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_OF_ITS_OWN = frozenset({"Publish", "FeedingRawLog"})
"""Models that are written in another form than the one they have."""
_OPEN = frozenset({"IndexDeclaration"})
"""Models that take further fields: the options of an index may stand beside its kind."""
_SAID = ("title", "description", "default")


def as_written(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of what a person may write for a declaration with this schema. Its fields stay closed.

    The result has no references, so a schema that contains it needs no definitions.
    """
    return _fields("", schema, schema.get("$defs", {}))


def _fields(name: str, model: Mapping[str, Any], models: Mapping[str, Any]) -> JsonSchemaValue:
    fields = {field: _value(each, models) for field, each in model.get("properties", {}).items()}
    said = {each: model[each] for each in ("title", "description", "required") if each in model}
    return {**said, "type": "object", "properties": fields, "additionalProperties": name in _OPEN}


def _value(schema: Any, models: Mapping[str, Any]) -> JsonSchemaValue:
    """The schema of one value: a list, a mapping, a model or a scalar, each of which may be written as a scalar."""
    if not isinstance(schema, Mapping):
        return {}
    said = {name: schema[name] for name in _SAID if name in schema}
    if "anyOf" in schema:
        return {**said, "anyOf": [_value(each, models) for each in schema["anyOf"]]}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {**said, **({} if name in _OF_ITS_OWN else {"anyOf": [_fields(name, models[name], models), _SCALAR]})}
    match schema.get("type"):
        case "array":
            items = {"type": "array", "items": _value(schema.get("items"), models)}
            return {**said, "anyOf": [items, _SCALAR]}
        case "object":
            fields = {"type": "object", "additionalProperties": _value(schema.get("additionalProperties"), models)}
            return {**said, "anyOf": [fields, _SCALAR]}
        case _:
            examples = {"examples": schema["enum"]} if "enum" in schema else {}
            return {**said, **_SCALAR, **examples}
