"""A schedule: when an agent is queued by the clock. Declared in an agents' module, in its list `SCHEDULES`, or in TOML.

The expression has cron's five fields (six with seconds first) and is read in the schedule's time zone by the rules of
Debian's cron: a time that a change of the clock leaves out fires once right after the gap, one that comes twice fires
at its first coming; expressions that fire by the hour or minute follow the clock as it goes.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from consumer.agents.limits import PRIORITIES
from consumer.errors import ConfigurationError

_LONGEST: Final = dt.timedelta(days=3660)
_MOST_ATTEMPTS: Final = 1_000_000
# A format of times under another name than `slot`, or with a distance that is none. It would be queued as it stands.
_MISSPELT: Final = re.compile(r"\{(?!slot(?:[+-]\d{1,6}[dhm])?:)\w+(?:[+-]\w+)?:%[^{}]*\}")
Overlap = Literal["skip", "queue_one", "allow", "cancel_previous"]
CatchUp = Literal["none", "last", "all"]


@dataclass(frozen=True)
class Schedule:
    """One schedule.

    Args:
        name: stable identity; each of its slots fires once under it.
        cron: `minute hour day month weekday`, or with seconds in front.
        agent: the agent to queue; or
        topic: a topic that gets a tick through the outbox instead.
        payload: the run's payload. In its texts `{slot:FORMAT}` is the slot's time in the schedule's zone, by strftime,
            and `{slot-1d:FORMAT}` the day before.
        dedupe_key: as of `rowcall enqueue`; may hold `{slot:FORMAT}` too.
        timezone: IANA name.
        overlap: what a slot does while a run of an earlier slot is not finished: `skip` it, `queue_one` behind it,
            `allow` both, or `cancel_previous`.
        catch_up: slots that came while no scheduler ran: `none` of them, the `last`, or `all` up to `catch_up_limit`.
        catch_up_limit: the most slots that are caught up at once; the newest ones count.
        catch_up_window: older slots than this are recorded as missed.
        grace: how late a slot may be without counting as one to catch up.
        jitter: each run starts up to this much after its slot, by the same amount whenever the slot is computed.
        tenant, priority, max_attempts: of the queued runs.
    """

    name: str
    cron: str
    agent: str = ""
    topic: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    dedupe_key: str | None = None
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    catch_up_limit: int = 100
    catch_up_window: dt.timedelta = dt.timedelta(days=1)
    grace: dt.timedelta = dt.timedelta(minutes=1)
    jitter: dt.timedelta = dt.timedelta(0)
    tenant: str = "default"
    priority: int = 0
    max_attempts: int = 5

    def check(self) -> None:
        """Refuse a schedule that could not fire.

        Raises:
            ConfigurationError: naming the schedule, the field and what is wrong with it.
        """
        if not 1 <= len(self.name) <= 100:
            raise ConfigurationError(f"schedule name {self.name!r} must have 1 to 100 characters")
        if bool(self.agent) == bool(self.topic):
            raise ConfigurationError(f"schedule {self.name}: give either an agent or a topic")
        self._check_choices()
        if self.catch_up_limit < 1 or self.max_attempts < 1:
            raise ConfigurationError(f"schedule {self.name}: catch_up_limit and max_attempts must be 1 or more")
        if self.priority not in PRIORITIES or self.max_attempts > _MOST_ATTEMPTS:
            raise ConfigurationError(
                f"schedule {self.name}: priority must be from -100 to 100, max_attempts at most {_MOST_ATTEMPTS:,}"
            )
        for name in ("catch_up_window", "grace", "jitter"):
            if not dt.timedelta(0) <= getattr(self, name) <= _LONGEST:
                raise ConfigurationError(
                    f"schedule {self.name}: {name} must not be negative, nor more than {_LONGEST.days} days"
                )
        self._check_places()
        next(self.after(dt.datetime.now(dt.UTC)), None)

    def after(self, moment: dt.datetime) -> Iterator[dt.datetime]:
        """The slots after a moment, in UTC; ends after the year 2090, where cron's calendar does.

        Raises:
            ConfigurationError: the expression or the time zone is none.
        """
        try:
            zone = ZoneInfo(self.timezone)
        except (LookupError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"schedule {self.name}: {self.timezone!r} is no time zone; write a name such as Europe/Berlin"
            ) from error
        try:
            for slot in CronSim(self.cron, moment.astimezone(zone)):
                yield slot.astimezone(dt.UTC)
        except CronSimError as error:
            raise ConfigurationError(f"schedule {self.name}: cron {self.cron!r}: {str(error).lower()}") from error

    def _check_places(self) -> None:
        for text in _texts([self.payload, self.dedupe_key]):
            if misspelt := _MISSPELT.search(text):
                raise ConfigurationError(
                    f"schedule {self.name}: {misspelt.group()} names no slot; write {{slot:FORMAT}} or "
                    "{slot-1d:FORMAT} (also h and m)"
                )

    def _check_choices(self) -> None:
        if self.overlap not in ("skip", "queue_one", "allow", "cancel_previous"):
            raise ConfigurationError(
                f"schedule {self.name}: overlap {self.overlap!r} must be skip, queue_one, allow or cancel_previous"
            )
        if self.catch_up not in ("none", "last", "all"):
            raise ConfigurationError(f"schedule {self.name}: catch_up {self.catch_up!r} must be none, last or all")


def _texts(value: Any) -> Iterator[str]:
    """The texts of a payload that nobody has looked at yet: it may be as deep as it likes, and hold itself."""
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting.extend(item.values() if isinstance(item, Mapping) else item)
