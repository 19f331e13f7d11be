"""A streamed answer put together, for gateways that stream whether asked to or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def assemble(content: bytes) -> dict[str, Any] | None:
    """The chat completion that the events of `content` add up to; None where it ends before the model has.

    Comments (`: keep-alive`) and frames without choices are passed over. An error in any frame is the whole result:
    what came before it is not an answer.
    """
    text: list[str] = []
    result: dict[str, Any] = {}
    finish: Any = None
    ended = False
    for data in _frames(content):
        if data == "[DONE]":
            ended = True
            break
        frame = _loads(data)
        if frame.get("error"):
            return {"error": frame["error"]}
        result |= {name: frame[name] for name in ("model", "usage") if frame.get(name) is not None}
        for choice in _first_choice(frame):
            if choice.get("error"):
                return {"error": choice["error"]}
            delta = choice.get("delta") or choice.get("message") or {}
            text.append(delta.get("content") or "")
            finish = choice.get("finish_reason") or finish
    if not ended and finish is None:
        return None
    message = {"role": "assistant", "content": "".join(text)}
    return result | {"choices": [{"finish_reason": finish, "message": message}]}


def _frames(content: bytes) -> Iterator[str]:
    for block in content.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n\n"):
        lines = [line.removeprefix("data:").strip() for line in block.split("\n") if line.startswith("data:")]
        if lines:
            yield "\n".join(lines)


def _loads(data: str) -> dict[str, Any]:
    try:
        frame = json.loads(data)
    except (ValueError, RecursionError):
        return {"error": {"message": "an event of the stream is not JSON"}}
    return frame if isinstance(frame, dict) else {}


def _first_choice(frame: dict[str, Any]) -> list[dict[str, Any]]:
    choices = frame.get("choices")
    return [item for item in choices[:1] if isinstance(item, dict)] if isinstance(choices, list) else []
