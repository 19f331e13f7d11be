"""Schemas by ID from the registry, and registration of our own: what intake reads with and the outbox writes with.

Speaks the Confluent-compatible API of Apicurio Registry. A schema ID never changes its meaning, so what was read once
is kept for as long as the process lives. The registry being away is an `Outage`, never a bad message; only an ID the
registry still does not know after several tries is `Poison`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import orjson

from consumer.errors import ConfigurationError, Outage, Poison
from consumer.http import Response, SyncHttp, open_sync, without_secrets

API: Final = "/apis/ccompat/v7"
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
# A registry that is restoring its storage answers 404 for a moment. Two seconds in all stay far below the time a
# consumer may spend between two polls.
UNKNOWN_TRIES: Final = 5
UNKNOWN_PAUSE_SECONDS: Final = 0.5
# The registry API's error codes for a schema, a subject and a version it does not know.
UNKNOWN_CODES: Final = frozenset({40401, 40402, 40403})
# How long an unknown ID is refused without asking again, so that many bad messages do not wait for it one by one.
UNKNOWN_SECONDS: Final = 30.0
# New versions of our own records must be readable by agents that know the older one.
COMPATIBILITY: Final = "BACKWARD"

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})

_log = logging.getLogger(__name__)


class SchemaRegistry:
    """A registry's schemas; one object for all threads of a process.

    Args:
        url: SCHEMA_REGISTRY_URL, without a path.
        http: how requests are sent; a client of its own if left out.
        unknown_pause_seconds: pause between two questions for an unknown ID.
    """

    def __init__(
        self, url: str, http: SyncHttp | None = None, *, unknown_pause_seconds: float = UNKNOWN_PAUSE_SECONDS
    ) -> None:
        self._base = url.rstrip("/") + API
        self._shown = without_secrets(self._base)
        self._http = open_sync("registry", connect_seconds=3.0, read_seconds=10.0) if http is None else http
        self._pause = unknown_pause_seconds
        self._schemas: dict[int, Any] = {}
        self._unknown: dict[int, float] = {}
        self._registered: dict[tuple[str, bytes], int] = {}
        self._lock = threading.Lock()

    def schema(self, schema_id: int) -> Any:
        """The Avro schema with this ID as JSON objects, its references put in place.

        Raises:
            Poison: `unknown_schema`, when the registry does not know the ID after UNKNOWN_TRIES tries, or
                `unsupported_type`, when it is not an Avro schema.
            Outage: when the registry does not answer, or answers 401, 403, 429 or 5xx.
        """
        found = self._schemas.get(schema_id)
        if found is not None:
            return found
        with self._lock:
            if schema_id not in self._schemas:
                self._schemas[schema_id] = self._fetch(schema_id)
            return self._schemas[schema_id]

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        """Register a schema under `subject`, unless it is there already; returns its ID.

        Raises:
            ConfigurationError: when the registry refuses it, with the registry's own message.
            Outage: when the registry does not answer.
        """
        text = orjson.dumps(schema)
        with self._lock:
            schema_id = self._registered.get((subject, text))
            if schema_id is None:
                schema_id = self._registered[subject, text] = self._register(subject, text.decode())
                self._schemas.setdefault(schema_id, orjson.loads(text))
        return schema_id

    def check(self) -> None:
        """Ask for the list of subjects, for `rowcall doctor`.

        Raises:
            Outage: when the registry does not answer.
        """
        self._ask("GET", "/subjects")

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(self, schema_id: int) -> Any:
        refused_at = self._unknown.get(schema_id)
        if refused_at is not None and time.monotonic() - refused_at < UNKNOWN_SECONDS:
            raise _unknown(schema_id)
        for attempt in range(UNKNOWN_TRIES):
            if attempt:
                time.sleep(self._pause)
            answer = self._ask("GET", f"/schemas/ids/{schema_id}")
            if answer.ok:
                return self._assemble(_object(answer, self._shown))
            self._expect_unknown(answer)
        self._unknown[schema_id] = time.monotonic()
        _log.warning("schema ID unknown", extra={"action": "schema_unknown", "schema_id": schema_id})
        raise _unknown(schema_id)

    def _expect_unknown(self, answer: Response) -> None:
        # A wrong URL answers 404 as well; only the registry's own error code may condemn a message.
        code = _object(answer, self._shown).get("error_code")
        if code not in UNKNOWN_CODES:
            raise Outage(
                f"what answers at {self._shown} is not a schema registry: {answer.status} {_message(answer)}",
                dependency="registry",
                code="registry_answer",
            )

    def _assemble(self, body: Mapping[str, Any]) -> Any:
        kind = body.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise Poison(f"the schema is of type {kind}; only AVRO is read", code="unsupported_type")
        try:
            schema = orjson.loads(body["schema"])
        except (KeyError, TypeError, orjson.JSONDecodeError):
            raise Poison("the registry's schema is not JSON", code="unsupported_type") from None
        references = body.get("references") or []
        if not references:
            return schema
        definitions: dict[str, Any] = {}
        self._collect(references, definitions)
        return in_place(schema, definitions)

    def _collect(self, references: list[Mapping[str, Any]], definitions: dict[str, Any]) -> None:
        for reference in references:
            name = reference["name"]
            if name in definitions:
                continue
            answer = self._ask(
                "GET", f"/subjects/{quote(reference['subject'], safe='')}/versions/{reference['version']}"
            )
            if not answer.ok:
                raise Poison(f"the registry does not know the referenced schema {name}", code="unknown_schema")
            body = _object(answer, self._shown)
            definitions[name] = orjson.loads(body["schema"])
            self._collect(body.get("references") or [], definitions)

    def _register(self, subject: str, text: str) -> int:
        path = f"/subjects/{quote(subject, safe='')}"
        body = orjson.dumps({"schema": text, "schemaType": "AVRO"})
        known = self._ask("POST", path, body)
        if known.ok:
            return _id(known, self._shown)
        answer = self._ask("POST", f"{path}/versions", body)
        if not answer.ok:
            raise _refused(subject, _message(answer))
        # Before the first version there is no subject to give a rule; later versions are checked against it.
        self._ask("PUT", f"/config/{quote(subject, safe='')}", orjson.dumps({"compatibility": COMPATIBILITY}))
        _log.info("schema registered", extra={"action": "schema_registered", "subject": subject})
        return _id(answer, self._shown)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Response:
        headers = {"accept": f"{CONTENT_TYPE}, application/json"}
        if body is not None:
            headers["content-type"] = CONTENT_TYPE
        answer = self._http.request(method, self._base + path, content=body, headers=headers)
        if (outage := outage_of(answer, self._shown)) is not None:
            raise outage
        return answer


def outage_of(answer: Response, shown: str) -> Outage | None:
    """The outage an answer stands for, if it does: 401 and 403 too, for no message is to blame for them."""
    if answer.status not in (401, 403, 408, 429) and answer.status < 500:
        return None
    message = f"the schema registry at {shown} answered {answer.status}: {_message(answer)}"
    return Outage(message, dependency="registry", code=f"registry_{answer.status}")


def in_place(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Avro's JSON with each referenced type written out where its full name is first used."""
    pending = dict(definitions)

    def walk(node: Any, namespace: str) -> Any:
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return node
            name = node if "." in node or not namespace else f"{namespace}.{node}"
            return walk(pending.pop(name), "") if name in pending else node
        if isinstance(node, list):
            return [walk(branch, namespace) for branch in node]
        inner = _namespace(node, namespace)
        changed = {part: walk(node[part], inner) for part in ("type", "items", "values") if part in node}
        if node.get("type") in ("record", "error", "enum", "fixed", "array", "map"):
            changed.pop("type")
        if "fields" in node:
            changed["fields"] = [field | {"type": walk(field["type"], inner)} for field in node["fields"]]
        return node | changed

    return walk(schema, "")


def _namespace(node: Mapping[str, Any], outer: str) -> str:
    name = node.get("name", "")
    if "." in name:
        return str(name.rpartition(".")[0])
    return str(node.get("namespace", outer))


def _object(answer: Response, shown: str) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        # A proxy's page in the place of the registry: nothing a message could be blamed for.
        raise Outage(f"what answers at {shown} is not a schema registry", dependency="registry", code="registry_answer")
    return body


def _id(answer: Response, shown: str) -> int:
    number = _object(answer, shown).get("id")
    if not isinstance(number, int):
        raise Outage(f"the registry at {shown} gave no schema ID", dependency="registry", code="registry_answer")
    return number


def _message(answer: Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return answer.content[:200].decode("utf-8", "replace")
    return str(body.get("message") or body) if isinstance(body, dict) else str(body)[:200]


def _unknown(schema_id: int) -> Poison:
    return Poison(f"the schema registry does not know schema ID {schema_id}", code="unknown_schema")


def _refused(subject: str, message: str) -> ConfigurationError:
    return ConfigurationError(f"the schema registry refuses the schema of {subject}: {message}")
