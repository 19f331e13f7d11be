"""Dead letters: messages that could not be handled, kept whole, listed, shown, closed.

Written by admission in the transaction that moves past the message, so nothing is dropped; re-driven by
`consumer.intake.redrive`. The row that reports a fault must land whatever the fault is: texts and times are made
storable first, and what the database refuses all the same is written once more with its bare bytes.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import orjson

from consumer import db, telemetry
from consumer.errors import DataRefused, OperatorError
from consumer.kafka import Record
from consumer.records.jobs import storable

_log = logging.getLogger(__name__)
_SQL: Final = db.queries("dead_letters")
_APP_VERSION: Final = version("rowcall")
_FRAME_BYTES: Final = 5

STATES: Final = ("OPEN", "REDRIVEN", "DISCARDED")
OFFSET_GAP: Final = "offset_gap"
"""Error code of a row that stands for offsets Kafka lost before they were read."""
REFUSED: Final = "dead_letter_refused"
"""Error code of a row without all that the database refused in the first attempt; its error begins with the cause."""

# Postgres' timestamps reach further; Python's, which the row is shown with, end at the years 1 and 9999 in any zone.
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_MS: Final = (dt.datetime(2, 1, 1, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
_LAST_MS: Final = (dt.datetime(9998, 12, 31, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message and why it could not be handled; `agent` and `event_id` where only one agent's trigger failed."""

    record: Record
    code: str
    error: str
    agent: str | None = None
    event_id: str | None = None


def write(session: db.SyncSession, cluster: str, letters: Sequence[DeadLetter]) -> None:
    """Store dead letters, inside the caller's transaction.

    Raises:
        DataRefused: not even coordinates, bytes and a clean error of one of them can be stored.
    """
    if not letters:
        return
    try:
        _insert(session, [_row(cluster, letter) for letter in letters])
    except DataRefused as refusal:
        if len(letters) == 1:
            _write_bare(session, cluster, letters[0], refusal)
            return
        middle = len(letters) // 2
        write(session, cluster, letters[:middle])
        write(session, cluster, letters[middle:])


def announce(letters: Sequence[DeadLetter]) -> None:
    """Count and log dead letters that have been committed."""
    for letter in letters:
        telemetry.DEAD_LETTERS.add(code=letter.code)
        record = letter.record
        _log.warning(
            "dead letter: %s",
            letter.error[:200],
            extra={
                "action": "dead_letter",
                "code": letter.code,
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "agent": letter.agent,
            },
        )


def listed(session: db.SyncSession, *, state: str | None = "OPEN", limit: int = 100) -> list[dict[str, Any]]:
    """Dead letters without their bytes, newest first."""
    with db.translated():
        return session.execute(_SQL["list"], {"state": state, "limit": limit}).fetchall()


def shown(session: db.SyncSession, letter_id: int) -> dict[str, Any]:
    """One dead letter; `message_key` and `message_value` are bytes, `headers` a list of [name, text or {"hex"}].

    Raises:
        OperatorError: there is no such dead letter.
    """
    with db.translated():
        row = session.execute(_SQL["show"], {"id": letter_id}).fetchone()
    if row is None:
        raise OperatorError(f"there is no dead letter {letter_id}")
    return row | {"headers": orjson.loads(row["headers"])}


def record_of(row: dict[str, Any]) -> Record:
    """The message of a dead letter that `shown` gave, as it was read."""
    moment = row["message_at"]
    return Record(
        row["topic"],
        row["partition"],
        row["offset"],
        row["message_key"],
        row["message_value"],
        [(header_name(name), header_value(value)) for name, value in row["headers"]],
        None if moment is None else round(moment.timestamp() * 1000),
    )


def hold(session: db.SyncSession, letter_id: int) -> None:
    """Lock an open dead letter, inside the caller's transaction.

    Raises:
        OperatorError: it is gone or closed.
    """
    row = session.execute(_SQL["hold"], {"id": letter_id}).fetchone()
    if row is None:
        raise OperatorError(f"there is no dead letter {letter_id}")
    if row["state"] != "OPEN":
        raise OperatorError(f"dead letter {letter_id} is {row['state']} already")


def close(session: db.SyncSession, letter_id: int, *, state: str, actor: str, detail: dict[str, Any]) -> None:
    """End an open dead letter as REDRIVEN or DISCARDED and write who did it, inside the caller's transaction.

    Raises:
        OperatorError: it is gone or closed already.
    """
    if session.execute(_SQL["close"], {"id": letter_id, "state": state, "actor": actor}).fetchone() is None:
        raise OperatorError(f"dead letter {letter_id} does not exist or is closed already")
    session.execute(
        _SQL["audit"],
        {
            "actor": actor,
            "action": "dead_letter_redriven" if state == "REDRIVEN" else "dead_letter_discarded",
            "subject": f"dead_letter:{letter_id}",
            "detail": orjson.dumps(detail).decode(),
        },
    )


def _insert(session: db.SyncSession, rows: Sequence[dict[str, Any]]) -> None:
    with db.transaction(session):  # a savepoint: a refusal leaves the admission as it was
        session.cursor().executemany(_SQL["write"], rows)


def _write_bare(session: db.SyncSession, cluster: str, letter: DeadLetter, refusal: DataRefused) -> None:
    """Coordinates, bytes and the error; headers as hexadecimal text, so that it can still be re-driven."""
    record = letter.record
    error = f"{letter.code}: {letter.error[:1000]}\nthe database refused the whole dead letter: {refusal}"
    _log.error(
        "a dead letter was refused and is written without what is not bare bytes: %s",
        refusal,
        extra={
            "action": REFUSED,
            "code": refusal.code,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
        },
    )
    headers = [[_hex(name), None if value is None else _hex(value)] for name, value in record.headers or ()]
    bare = _row(cluster, DeadLetter(record._replace(headers=None, timestamp_ms=None), REFUSED, error))
    agent = None if letter.agent is None else storable(letter.agent)
    _insert(session, [bare | {"headers": orjson.dumps(headers).decode(), "schema_id": None, "agent": agent}])


def _row(cluster: str, letter: DeadLetter) -> dict[str, Any]:
    record = letter.record
    moment, error = record.timestamp_ms, storable(letter.error)
    if moment is not None and not _FIRST_MS <= moment <= _LAST_MS:
        error += f"\n(its Kafka timestamp, {moment} ms since 1970, is beyond what can be stored)"
        moment = None
    headers = [[_stored(name), None if value is None else _stored(value)] for name, value in record.headers or ()]
    return {
        "agent": letter.agent,
        "event_id": None if letter.event_id is None else storable(letter.event_id),
        "cluster": cluster,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "message_ms": moment,
        "key": record.key,
        "value": record.value,
        "headers": orjson.dumps(headers).decode(),
        "schema_id": schema_id(record.value),
        "code": letter.code,
        "error": error,
        "version": _APP_VERSION,
    }


def schema_id(value: bytes | None) -> int | None:
    """The registry ID in front of a framed message."""
    if value is None or len(value) < _FRAME_BYTES or value[0] != 0:
        return None
    return int.from_bytes(value[1:_FRAME_BYTES], "big")


def _stored(value: bytes | str) -> str | dict[str, str]:
    """Text where it is text that Postgres' json holds; otherwise its bytes."""
    data = _bytes(value)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return {"hex": data.hex()} if "\x00" in text else text


def _hex(value: bytes | str) -> dict[str, str]:
    return {"hex": _bytes(value).hex()}


def _bytes(value: bytes | str) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def header_name(stored: str | dict[str, str]) -> str:
    """A header's name as it was read."""
    return stored if isinstance(stored, str) else bytes.fromhex(stored["hex"]).decode("utf-8", "surrogateescape")


def header_value(stored: str | dict[str, str] | None) -> bytes | None:
    """A header's value as it was read."""
    if stored is None:
        return None
    return stored.encode() if isinstance(stored, str) else bytes.fromhex(stored["hex"])
