"""Schema registry and model endpoint. The model is asked for its list of models, which costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from consumer import http
from consumer.doctor.finding import Finding, refused
from consumer.errors import RowcallError
from consumer.llm.target import Target
from consumer.schema_registry import SchemaRegistry
from consumer.settings import Settings

_REGISTRY: Final = "registry"
_MODEL: Final = "model"
_COMPLETIONS: Final = "/chat/completions"


def registry(settings: Settings) -> list[Finding]:
    """Findings about SCHEMA_REGISTRY_URL."""
    try:
        SchemaRegistry(settings.schema_registry_url).check()
    except RowcallError as error:
        return [refused(_REGISTRY, error, "SCHEMA_REGISTRY_URL")]
    return [Finding("ok", _REGISTRY, "answers")]


def model(settings: Settings) -> list[Finding]:
    """Findings about MODEL_BASE_URL, MODEL_API_KEY and MODEL_NAME."""
    try:
        target = Target(settings)
        with http.open_sync("model", connect_seconds=5.0, read_seconds=10.0) as client:
            answer = client.request("GET", _models(target.url), headers=target.headers("rowcall-doctor"))
    except RowcallError as error:
        return [refused(_MODEL, error, "MODEL_BASE_URL")]
    return list(_judged(answer, target))


def _judged(answer: http.Response, target: Target) -> Iterator[Finding]:
    where = f"{target.shown.removesuffix(_COMPLETIONS)} answers HTTP {answer.status}"
    if answer.status in (401, 403):
        yield Finding(
            "fail", _MODEL, where, "the key is refused; agents pause at their first call", "set MODEL_API_KEY"
        )
    elif answer.status >= 500:
        yield Finding("warn", _MODEL, where, "it fails now; runs are tried again later", "ask whoever runs it")
    elif 300 <= answer.status < 400:
        why = "redirects are not followed, for the key would go along"
        yield Finding("fail", _MODEL, where, why, "set MODEL_BASE_URL to where it leads")
    elif answer.ok:
        yield Finding("ok", _MODEL, where)
        names = _names(answer)
        if names and target.model not in names:
            why = f"it lists {', '.join(sorted(names)[:10])}"
            yield Finding(
                "warn", _MODEL, f"{target.model} is not listed", why, "correct MODEL_NAME, or `rowcall model check`"
            )
    else:
        yield Finding("ok", _MODEL, where, "it has no list of models; `rowcall model check` asks a real question")


def _models(completions: str) -> str:
    parts = urlsplit(completions)
    return urlunsplit(parts._replace(path=parts.path.removesuffix(_COMPLETIONS) + "/models"))


def _names(answer: http.Response) -> set[str]:
    try:
        body = answer.json()
    except ValueError:
        return set()
    items = body.get("data") if isinstance(body, dict) else None
    return {str(item["id"]) for item in items or [] if isinstance(item, dict) and "id" in item}
