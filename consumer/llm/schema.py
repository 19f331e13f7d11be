"""The answer model as JSON Schema in the strict dialect of `response_format: json_schema`.

That dialect wants every object closed and every property required, knows neither defaults nor discriminators, and
allows nothing beside a `$ref`. What cannot be written in it (open mappings) is sent without `strict`; the answer is
validated here either way, for several servers accept the schema and do not enforce it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from consumer.errors import AgentError

_DROPPED: Final = frozenset({"default", "title", "discriminator", "examples"})
_NAMED: Final = frozenset({"properties", "$defs"})


@lru_cache(maxsize=256)
def schema_text(answer: type[BaseModel]) -> str:
    """The strict schema as JSON text, for the prompt."""
    return orjson.dumps(_strict(answer)[0]).decode()


@lru_cache(maxsize=256)
def response_format(answer: type[BaseModel]) -> orjson.Fragment:
    """`response_format` of kind json_schema, rendered once for each answer model."""
    schema, strict = _strict(answer)
    definition = {"name": function_name(answer), "schema": schema, "strict": strict}
    return orjson.Fragment(orjson.dumps({"type": "json_schema", "json_schema": definition}))


def function_name(answer: type[BaseModel]) -> str:
    """The answer's name as the protocol allows it: 1 to 64 of [A-Za-z0-9_-]."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", answer.__name__)[:64] or "answer"


def _strict(answer: type[BaseModel]) -> tuple[dict[str, Any], bool]:
    try:
        schema = answer.model_json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise AgentError(f"answer model {answer.__name__} has no JSON schema: {error}") from error
    open_objects: list[str] = []
    return _closed(schema, open_objects), not open_objects


def _closed(node: Any, open_objects: list[str]) -> Any:
    if isinstance(node, list):
        return [_closed(item, open_objects) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node and "$defs" not in node:
        return {"$ref": node["$ref"]}
    result: dict[str, Any] = {}
    for name, value in node.items():
        if name in _NAMED:
            result[name] = {key: _closed(item, open_objects) for key, item in value.items()}
        elif name not in _DROPPED:
            result["anyOf" if name == "oneOf" else name] = _closed(value, open_objects)
    if node.get("type") == "object":
        _close(result, open_objects)
    return result


def _close(node: dict[str, Any], open_objects: list[str]) -> None:
    if "properties" in node or not node.get("additionalProperties", False):
        node["additionalProperties"] = False
        node["required"] = list(node.setdefault("properties", {}))
    else:
        open_objects.append("additionalProperties")
