"""Monitors: a TOML file that ROWCALL_DRIFT names, a table `[monitor.NAME]` each; wrong ones stop the start."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from consumer.errors import ConfigurationError
from consumer.settings import faults
from producers.drift.detectors import SEQUENTIAL, Detector, Options
from producers.drift.episodes import Rules
from producers.drift.values import Expression
from producers.drift.windows import WINDOWED

_Name = Annotated[str, StringConstraints(pattern=r"^(?:[a-z0-9][a-z0-9_.-]{0,99})$")]
_Topic = Annotated[str, StringConstraints(pattern=r"^(?:[A-Za-z0-9._-]{1,249})$")]
# Warning and critical where the monitor names none; None where it must.
_LEVELS: Final[dict[str, tuple[float, float] | None]] = {
    **dict.fromkeys(SEQUENTIAL, (0.05, 0.002)),
    "distribution": (0.1, 0.25),
    "unseen": (0.02, 0.1),
    "volume": (4.0, 6.0),
    "schema": (1.0, 2.0),
    "threshold": None,
    "freshness": None,
}
_LEARN: Final = {"volume": 10, "schema": 20}
_FALLING: Final = frozenset(SEQUENTIAL)
WITHOUT_VALUE: Final = frozenset({"freshness", "volume", "schema"})
QUEUES: Final = ("backlog", "age", "lag")


class Monitor(BaseModel):
    """One monitor.

    Args:
        topic, sql, watch: the source, one of them: a topic; a query of the database, run every `every` seconds; or what
            Rowcall knows of itself: `backlog`, `age`, `lag`, `validation`, `risk`, `tokens`, `latency`.
        value: a column, a path or arithmetic; the detectors freshness, volume and schema need none.
        segment: expression whose value keeps one detector each; empty for one over all.
        warning, critical: the two levels; what they mean depends on the detector (docs/drift.md).
        learn: values (windows for volume) the frozen baseline is made of.
        window: values of a window (distribution, unseen); window_seconds: of volume.
        hysteresis: a drift is over when it is down to this share of what it was.
        effect: the least shift of the mean, in spreads, that may be a warning; critical_effect: that may be critical
            (0: any that is sure, however small); settle: values a recovery needs.
        confirm, recover: readings in a row that raise a level and end an episode.
        cooldown: seconds after a recovery in which nothing is raised.
        remind: seconds after which a critical episode that goes on is told again, while values come; 0 for never.
        late: seconds behind the segment's newest value at which a value is left out.
        no_data_after: seconds without a value after which the state is no_data; tell_no_data: whether entering and
            leaving that state is told, as a warning.
        start: of a topic read for the first time: `latest` or `earliest`.
        max_segments: more than these are not watched, which is told once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Name
    topic: _Topic | None = None
    sql: Annotated[str, StringConstraints(min_length=6)] | None = None
    watch: Literal["backlog", "age", "lag", "validation", "risk", "tokens", "latency"] | None = None
    every: float = Field(60.0, ge=0.1)
    timeout: float = Field(10.0, gt=0, le=60)
    operations: frozenset[Literal["c", "u", "d", "r"]] = frozenset({"c", "u"})
    value: str = ""
    segment: str = ""
    detector: Literal["values", "mean", "variance", "null_rate", "shares", "distribution", "unseen", "threshold",
                      "freshness", "volume", "schema"] = "values"  # fmt: skip
    warning: float | None = None
    critical: float | None = None
    below: bool = False
    method: Literal["psi", "ks"] = "psi"
    learn: int = Field(500, ge=1, le=10_000)
    window: int = Field(500, ge=1, le=10_000)
    window_seconds: float = Field(300.0, ge=1)
    hysteresis: float = Field(0.5, gt=0, le=1)
    effect: float = Field(0.1, ge=0)
    critical_effect: float = Field(0.0, ge=0)
    settle: int = Field(100, ge=10)
    confirm: int = Field(1, ge=1)
    recover: int = Field(1, ge=1)
    cooldown: float = Field(300.0, ge=0)
    remind: float = Field(0.0, ge=0)
    late: float = Field(3600.0, gt=0)
    no_data_after: float | None = Field(None, gt=0)
    tell_no_data: bool = False
    start: Literal["latest", "earliest"] = "latest"
    max_segments: int = Field(10_000, ge=1, le=100_000)

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = data.get("detector", "values")
        made = dict(data)
        if data.get("watch") in QUEUES:
            kind = made.setdefault("detector", "threshold")
            made.setdefault("confirm", 2)
        if data.get("watch"):
            made.setdefault("value", "value")
            made.setdefault("segment", "queue" if data["watch"] in QUEUES else "agent")
        if kind in _LEARN:
            made.setdefault("learn", _LEARN[kind])
        levels = _LEVELS.get(kind)
        if kind == "distribution" and data.get("method") == "ks":
            levels = (0.001, 0.0001)
        if levels is not None:
            made.setdefault("warning", levels[0])
            made.setdefault("critical", levels[1])
        return made

    @model_validator(mode="after")
    def _sound(self) -> Monitor:
        if sum(item is not None for item in (self.topic, self.sql, self.watch)) != 1:
            raise ValueError("name exactly one source: topic, sql or watch")
        if not self.value and self.detector not in WITHOUT_VALUE:
            raise ValueError(f"the detector {self.detector} needs value, a column or an expression")
        for text in filter(None, (self.value, self.segment)):
            Expression(text)
        if self.warning is None or self.critical is None:
            raise ValueError(f"the detector {self.detector} needs warning and critical")
        falling = self.detector in _FALLING or (self.method == "ks" and self.detector == "distribution") or self.below
        if (self.warning < self.critical) if falling else (self.warning > self.critical):
            raise ValueError("warning must lie on the safe side of critical")
        if self.tell_no_data and self.no_data_after is None:
            raise ValueError("tell_no_data needs no_data_after, the seconds without a value")
        if self.detector == "distribution" and min(self.learn, self.window) < 500:
            raise ValueError("distribution needs learn and window of at least 500; with less it alarms without a drift")
        if self.detector in _FALLING and not 0 < self.critical <= self.warning < 1:
            raise ValueError("warning and critical are chances of a false alarm, between 0 and 1")
        return self

    @classmethod
    def of(cls, **fields: Any) -> Monitor:
        """A monitor of these fields; ValidationError names what is wrong."""
        return cls.model_validate(fields)

    @property
    def source(self) -> str:
        """What is watched, for people and for the group that owns it."""
        return f"topic:{self.topic}" if self.topic else f"{'sql' if self.sql else 'watch'}:{self.name}"

    @property
    def tells_silence(self) -> bool:
        """Whether it means something to it that nothing comes."""
        return self.detector == "freshness" or self.no_data_after is not None

    @cached_property
    def rules(self) -> Rules:
        """Those of its episodes."""
        return Rules(self.confirm, self.recover, self.cooldown, self.remind)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the detector has to learn anew."""
        fields = ("topic", "sql", "watch", "value", "segment", "detector", "method", "learn", "window",
                  "window_seconds")  # fmt: skip
        return hashlib.sha256(repr([getattr(self, name) for name in fields]).encode()).hexdigest()[:16]

    def make(self) -> Detector:
        """A fresh detector."""
        options = Options(self.warning, self.critical, self.learn, self.window, self.window_seconds, self.hysteresis,
                          self.effect, self.settle, self.below, self.method, self.critical_effect)  # fmt: skip
        return (SEQUENTIAL.get(self.detector) or WINDOWED[self.detector])(options)


class Topics(BaseModel):
    """Where events go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    warning_topic: _Topic = "drift.warning"
    critical_topic: _Topic = "drift.critical"
    backlog_topic: _Topic = "backlog.threshold"


def load(path: Path) -> tuple[Topics, list[Monitor]]:
    """The monitors of a TOML file.

    Raises:
        ConfigurationError: the file cannot be read, or a field is wrong; names monitor and field.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the file of monitors {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    found, topics = tables.pop("monitor", {}), tables.pop("topics", {})
    if tables or not isinstance(found, dict) or not found:
        raise ConfigurationError(f"{path}: write a table [monitor.NAME] for each monitor, beside them only [topics]")
    monitors = [_validated(path, f"monitor {name}", Monitor, {"name": name, **table} if isinstance(table, dict) else
                           table) for name, table in found.items()]  # fmt: skip
    return _validated(path, "topics", Topics, topics), monitors


def _validated(path: Path, where: str, model: type[Any], values: Any) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {where}: {faults(error, 'table', 'docs/drift.md')}") from None
