"""A retired agent: what is refused to it, and how a person brings it back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from consumer import activate, operate
from consumer.enqueue import enqueue
from consumer.errors import OperatorError
from consumer.intake.redrive import redrive
from consumer.positions import PartitionId
from tests.envelopes import ORDERS
from tests.integration.admitting import CLUSTER, Rig, agent, at, event
from tests.integration.test_admission_lineage import Brokers

WHERE = PartitionId(f"id-of-{ORDERS.topic}", 0)


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    """Agent `a`, once started at 100 and retired since."""
    opened = Rig(database, [agent("a")])
    activate.activate(opened.session, Brokers(100), opened.agents)
    operate.retire(opened.session, "a", operate.Act("ada"))
    yield opened
    opened.close()


def state(rig: Rig) -> tuple[str, int]:
    (row,) = rig.rows("SELECT state FROM rowcall.agents WHERE name = 'a'")
    return row["state"], activate.starts(rig.session, CLUSTER, [WHERE.topic_id])[WHERE]["a"]


def test_a_retired_agent_comes_back_by_a_persons_wish_alone_and_starts_at_now(rig: Rig) -> None:
    (kept,) = activate.activate(rig.session, Brokers(200), rig.agents)
    assert (kept.outcome, state(rig)) == ("retired", ("RETIRED", 100))
    (back,) = activate.activate(rig.session, Brokers(300), rig.agents, revived_by="ada")
    assert (back.outcome, state(rig)) == ("activated", ("ACTIVE", 300))
    (again,) = activate.activate(rig.session, Brokers(400), rig.agents, revived_by="ada")
    assert (again.outcome, state(rig)) == ("unchanged", ("ACTIVE", 300))
    (audit,) = rig.rows("SELECT actor, subject FROM rowcall.audit WHERE action = 'activate'")
    assert audit == {"actor": "ada", "subject": "agent a"}
    assert enqueue(rig.session, "a", {}).status == "PENDING"


def test_the_sql_function_refuses_a_retired_agent_and_says_what_to_do(rig: Rig) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="'a' is retired") as raised:
        rig.look.execute("SELECT rowcall.enqueue('a', '{}')")
    assert "rowcall agents activate a" in (raised.value.diag.message_hint or "")
    rig.look.execute("SELECT rowcall.enqueue('not-activated-yet', '{}')")
    assert rig.rows("SELECT job_type FROM rowcall.agent_jobs") == [{"job_type": "not-activated-yet"}]


def test_a_redrive_of_a_topic_that_is_left_alone_names_the_agent_without_code(rig: Rig) -> None:
    activate.activate(rig.session, Brokers(), [agent("gone"), agent("b")])
    record = at(0, event(1))
    rig.look.execute(
        'INSERT INTO rowcall.dead_letters (cluster_id, topic, partition, "offset", message_key, message_value,'
        " error_code, error, app_version) VALUES ('c', %s, 0, 0, %s, %s, 'undecodable', 'x', '1')",
        (record.topic, record.key, record.value),
    )
    (letter,) = rig.letters()
    with pytest.raises(OperatorError, match="gone") as raised:
        redrive(rig.session, rig.settings, [agent("b")], rig.decoder, letter["id"], actor="ada")
    assert "ROWCALL_AGENTS" in str(raised.value) and "rowcall agents retire gone" in str(raised.value)
    assert rig.letters()[0]["state"] == "OPEN"


def test_a_name_that_the_database_does_not_know_is_refused_with_those_it_knows(rig: Rig) -> None:
    with pytest.raises(OperatorError, match="no agent 'nosuch'; it knows: a"):
        operate.require_agent(rig.session, "nosuch")
    operate.require_agent(rig.session, "a")
