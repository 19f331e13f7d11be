"""The registry lists working agents, and order-triage's events are what triage-notice reads."""

from __future__ import annotations

from pathlib import Path

import fastavro
import orjson
import pytest

import schemas
from consumer.agents import AGENTS, order_triage, registry, triage_notice
from consumer.agents.triage_notice import Notice, compose
from consumer.errors import ConfigurationError
from consumer.settings import load

TRIAGED = {
    "order_id": 42,
    "customer_id": 3,
    "amount": None,
    "currency": "EUR",
    "risk_level": "low",
    "action": "ship",
    "title": "Normal order",
    "summary": "The amount is usual for this customer.",
}


def test_each_agent_has_its_own_name_and_can_work() -> None:
    for agent in AGENTS:
        agent.check()
        assert agent.description
    assert len({agent.name for agent in AGENTS}) == len(AGENTS) == 5


def test_notices_follow_triages() -> None:
    assert list(triage_notice.agent.topics) == [order_triage.TRIAGED_TOPIC]


def test_the_topic_has_a_schema_with_the_fields_a_notice_needs() -> None:
    text = schemas.load(order_triage.TRIAGED_TOPIC)
    assert text is not None
    schema = fastavro.parse_schema(orjson.loads(text))
    assert isinstance(schema, dict)
    assert {field["name"] for field in schema["fields"]} == set(TRIAGED)


def test_a_notice_fits_its_limit_whatever_the_title() -> None:
    notice = Notice.model_validate(compose(TRIAGED | {"title": "x" * 500}), strict=True)
    assert notice.order_id == 42 and len(notice.text) == 200


def test_a_topic_without_a_schema_has_none() -> None:
    assert schemas.load("orders.unknown") is None
    assert schemas.load("../consumer/settings") is None
    assert {"orders.triaged", "drift.warning", "drift.critical"} <= set(schemas.topics())


@pytest.mark.parametrize("module", ["agents_of_nobody", "agents_of_nobody.within"])
def test_a_module_that_is_not_found_is_told_where_python_looks(module: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{module}.*put its folder on PYTHONPATH"):
        registry.load(load({"ROWCALL_AGENTS": module}))


def test_a_module_that_needs_another_one_is_not_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agents_that_need_more.py").write_text("import a_package_of_nobody\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="a_package_of_nobody") as error:
        registry.load(load({"ROWCALL_AGENTS": "agents_that_need_more"}))
    assert "PYTHONPATH" not in str(error.value)
