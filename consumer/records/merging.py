"""Several stored inputs of one key as one: what a coalesced run sees.

Works on the stored JSON, below the codec, so that no value is turned over. The result reads as one change from the row
as it was before the first to the row as it is after the last.
"""

from __future__ import annotations

import json
from typing import Any

from consumer.records.codec import TAG

_BORN = ("c", "r")


def merged(kind: str, pending: str, latest: str) -> str:
    """The payload of `pending` after the later `latest` was taken in.

    An event is replaced. A change keeps the first `before`; inserted and updated is inserted, deleted and inserted
    again is updated. A row that came and went is a delete with its last values. A TOASTed value that the later change
    left alone is the one the earlier had.
    """
    if kind != "change":
        return latest
    old, new = json.loads(pending), json.loads(latest)
    new["after"] = _filled(old["after"], new["after"])
    if new["op"] == "d":
        new["before"] = new["before"] if old["before"] is None else old["before"]
    else:
        new["before"] = old["before"]
        new["op"] = old["op"] if old["op"] in _BORN else "u"
    return json.dumps(new, ensure_ascii=False, separators=(",", ":"))


def _filled(old: Any, new: Any) -> Any:
    if old is None or new is None or TAG in old or TAG in new:
        return new
    return {
        name: old[name] if name in old and isinstance(value, dict) and value.get(TAG) == "unchanged" else value
        for name, value in new.items()
    }
