"""Which agents count: the database's word and this process's code together."""

from __future__ import annotations

import logging
import sys
import time
import types

import pytest
from pydantic import BaseModel

from consumer.activate import Roster, RosterRow
from consumer.agents import registry
from consumer.agents.door import Agent, Context
from consumer.errors import ConfigurationError
from consumer.intake.roster import REMIND_SECONDS, Reminder, view
from consumer.records import Change
from consumer.settings import Settings


class Answer(BaseModel):
    """What the agents would answer."""

    text: str


def agent(name: str, *topics: str) -> Agent:
    """An agent that can run."""
    made = Agent(name=name, version=2, answer=Answer, topics=topics)

    @made.run
    async def run(ctx: Context, message: Change) -> Answer:
        return Answer(text="")

    return made


def roster(*rows: tuple[str, str, tuple[str, ...]], version: int = 2) -> Roster:
    """A roster of (name, state, topics)."""
    return Roster(tuple(RosterRow(name, version, topics, {}, state) for name, state, topics in rows), "1:1")


def test_active_and_paused_agents_are_subscribed_retired_and_unknown_ones_are_not() -> None:
    code = [agent("a", "t"), agent("p", "t", "u"), agent("r", "v"), agent("new", "w")]
    seen = view(roster(("a", "ACTIVE", ("t",)), ("p", "PAUSED", ("t", "u")), ("r", "RETIRED", ("v",))), code)
    assert {topic: [item.name for item in found] for topic, found in seen.by_topic.items()} == {
        "t": ["a", "p"],
        "u": ["p"],
    }


def test_topics_of_an_active_agent_without_code_are_left_alone() -> None:
    seen = view(roster(("a", "ACTIVE", ("t", "u")), ("gone", "ACTIVE", ("t",))), [agent("a", "t", "u")])
    assert (set(seen.topics), seen.lacking, set(seen.left_alone)) == ({"u"}, ("gone",), {"t"})


def test_a_newer_version_elsewhere_is_told() -> None:
    assert view(roster(("a", "ACTIVE", ("t",)), version=3), [agent("a", "t")]).outdated == ("a",)


def test_missing_code_is_complained_of_every_minute_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reminder, seen = Reminder(), view(roster(("gone", "ACTIVE", ("t",))), [agent("a", "t")])

    def lines() -> int:
        caplog.clear()
        reminder.tell(seen)
        assert all(record.levelno == logging.ERROR for record in caplog.records)
        return sum("rowcall agents retire gone" in record.getMessage() for record in caplog.records)

    assert (lines(), lines()) == (1, 0)
    now += REMIND_SECONDS
    assert lines() == 1


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    """A module that can be imported."""
    made = types.ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


def load(*modules: str) -> list[Agent]:
    """The registry's answer for ROWCALL_AGENTS."""
    return registry.load(Settings.model_validate({"ROWCALL_AGENTS": modules}))


def test_agents_of_several_modules_are_loaded_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "agents_one", AGENTS=[agent("b"), agent("a")])
    module(monkeypatch, "agents_two", AGENTS=(agent("c"),))
    assert [item.name for item in load("agents_one", "agents_two")] == ["b", "a", "c"]


def test_what_is_wrong_with_a_module_is_said_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"no_such_agents cannot be imported: ModuleNotFoundError"):
        load("no_such_agents")
    module(monkeypatch, "agents_empty")
    with pytest.raises(ConfigurationError, match="agents_empty has no list AGENTS"):
        load("agents_empty")
    module(monkeypatch, "agents_none", AGENTS=[])
    with pytest.raises(ConfigurationError, match="names no agent"):
        load("agents_none")
    module(monkeypatch, "agents_x", AGENTS=[agent("same")])
    module(monkeypatch, "agents_y", AGENTS=[agent("same")])
    with pytest.raises(ConfigurationError, match="'same': one in agents_x, one in agents_y"):
        load("agents_x", "agents_y")
    module(monkeypatch, "agents_idle", AGENTS=[Agent(name="idle", version=1, answer=Answer)])
    with pytest.raises(ConfigurationError, match=r"idle has no @agent\.run"):
        load("agents_idle")
