"""The JSON schema of declarations. With this schema, editors complete and check files.

`python -m pipelines.declaration_schema` prints the JSON schema of `tables/*.yaml`. In a Dagster component, each value
can be a template such as `{{ env.WAREHOUSE }}`. The schema for the attributes of a component therefore also accepts a
scalar where another type is required. When Dagster loads the component, the component checks each value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import JsonSchemaValue

from storage_core.change.declaration import TableDeclaration

_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_SAID = ("title", "description", "default", "required")


def schema_text() -> str:
    """Return the published schema of `tables/*.yaml`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **TableDeclaration.model_json_schema()}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def with_templates(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return a schema that also accepts a scalar where another type is required, but rejects unknown fields.

    The result contains no references. Another schema can therefore include the result without any definitions for
    references.
    """
    found: JsonSchemaValue = _opened(schema, schema.get("$defs", {}))["anyOf"][0]
    return {**{each: schema[each] for each in _SAID if each in schema}, **found}


def _opened(schema: Any, models: Mapping[str, Any]) -> JsonSchemaValue:
    """Return the schema of one value. The value can be a list or a mapping. A scalar is always valid."""
    if not isinstance(schema, Mapping):
        return {}
    said = {name: schema[name] for name in _SAID[:3] if name in schema}
    if "$ref" in schema:
        return {**_opened(models[schema["$ref"].rpartition("/")[2]], models), **said}
    if "anyOf" in schema:
        return {**said, "anyOf": [_opened(each, models) for each in schema["anyOf"]]}
    own = {**schema, "items": _opened(schema.get("items"), models)} if schema.get("type") == "array" else {**schema}
    if "properties" in own:
        own["properties"] = {name: _opened(each, models) for name, each in own["properties"].items()}
    if isinstance(own.get("additionalProperties"), Mapping):
        own["additionalProperties"] = _opened(own["additionalProperties"], models)
    if own.get("type") in ("array", "object"):
        own.pop("$defs", None)
        return {**said, "anyOf": [own, _SCALAR]}
    return {**said, **_SCALAR, **({"examples": own["enum"]} if "enum" in own else {})}


if __name__ == "__main__":
    print(schema_text(), end="")  # noqa: T201  # the program prints the schema
