"""README, docs and CHANGELOG say what the code is: states, modules, metrics, codes, commands, files and the example."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from consumer.agents.door import Agent, Tier
from consumer.agents.issue_digest import request_of
from consumer.cli import main
from consumer.errors import ModelFatal, ModelInvalid, ModelRetryable, ModelUnavailable
from consumer.llm.codes import CODES
from consumer.records import Change, Event, Operation, Origin, decode
from consumer.settings import Settings
from consumer.telemetry.metrics import METRICS, documentation

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
DOCUMENTS = [README, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DECISIONS = {ModelRetryable: "retry", ModelInvalid: "re-ask", ModelFatal: "fail", ModelUnavailable: "pause"}


def section(title: str) -> str:
    """The text under a heading of README, up to the next one of its level."""
    _, found, rest = README.partition(f"\n## {title}\n")
    assert found, f"README has no section {title!r}"
    return rest.partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the tables of a section, headings and rules left out."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section(title).splitlines() if line[:1] == "|"
    ]
    return [row for row in cells[1:] if not re.fullmatch(r"-+", row[0])]


# --- tables of the code ---------------------------------------------------------------------------------------------


def test_the_metrics_table_is_the_one_the_code_prints() -> None:
    assert documentation() in section("Metrics")


def test_the_model_codes_are_those_of_the_code_with_their_decisions() -> None:
    expected = [[f"`{code.name}`", DECISIONS[code.error], code.meaning] for code in CODES]
    assert rows("Error codes of the model") == expected


def test_the_state_machine_is_the_databases() -> None:
    sql = (ROOT / "consumer/sql/migrations/0001_records.sql").read_text()
    body = sql.partition("FUNCTION rowcall.may_move")[2].partition("END;")[0]
    legal = set(moves_of(body))
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", section("States of a run"), re.MULTILINE))
    assert len(legal) > 20 and drawn == legal
    assert set(re.findall(r"\[\*\] --> (\w+)", README)) == {"PENDING", "PARKED"}
    assert set(re.findall(r"(\w+) --> \[\*\]", README)) == {"SUCCEEDED", "REJECTED"}


def moves_of(body: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"\bWHEN\b", body)[1:]:
        old, *news = re.findall(r"'(\w+)'", part)
        yield from ((old, new) for new in news)


def test_the_module_table_has_every_module_in_the_order_of_imports() -> None:
    named = [name for row in rows("Modules") for name in re.findall(r"`(\w+)`", row[0])]
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    level = {name.strip(): number for number, layer in enumerate(layers) for name in layer.split("|")}
    assert sorted(named) == sorted(level)
    assert [level[name] for name in named] == sorted(level[name] for name in named)


def test_the_glossary_has_one_meaning_a_word() -> None:
    words = [word.strip() for row in rows("Glossary") for word in row[0].split(",")]
    assert len(words) == len(set(words)) > 15


def test_each_decision_has_its_date() -> None:
    found = rows("Decisions")
    assert len(found) >= 5
    for date, decision, why in found:
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", date) and decision and why


# --- what is named exists -------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every `rowcall …` command line of README and docs, in code spans and blocks."""
    spans: list[str] = []
    for text in DOCUMENTS:
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        spans += [line for block in blocks for line in whole_commands(re.sub(r"\\\n\s*", "", block))]
        spans += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = {match[1].strip() for span in spans if (match := re.match(r"\s*(?:[A-Z_]+=\S+ )*(rowcall [a-z].*)", span))}
    return sorted(found)


def whole_commands(block: str) -> Iterator[str]:
    """The lines of a block; one that ends inside quotes goes on in the next."""
    begun = ""
    for line in block.splitlines():
        begun = f"{begun} {line.strip()}" if begun else line
        if all(begun.count(quote) % 2 == 0 for quote in "\"'") or "#" in begun:
            yield begun
            begun = ""


@pytest.mark.parametrize("line", commands())
def test_each_command_exists_with_its_options(line: str) -> None:
    words = shlex.split(line.partition(" #")[0])[1:]
    command: click.Command | None = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        group, name = command, words.pop(0)
        command = group.get_command(context, name)
        assert command is not None, f"{group.name} has no command {name}"
    assert command is not None
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word in options, f"{command.name} has no option {word}"


def test_readme_names_every_command_of_the_groups_that_people_act_with() -> None:
    named = {" ".join(line.split()[1:3]) for line in commands()}
    context = click.Context(main)
    for name in ("agents", "connectors", "dead-letters", "effects", "jobs", "reviews"):
        group = main.get_command(context, name)
        assert isinstance(group, click.Group)
        assert {f"{name} {command}" for command in group.list_commands(context)} <= named
    assert {"dev psql", "example-tables"} <= named


def test_the_line_of_sed_makes_the_shipped_connector_capture_the_example() -> None:
    (old, new) = re.findall(r"sed -i\.bak 's/(.*)/(.*)/' my-connectors/rows\.json", README)[0]
    shipped = (ROOT / "debezium/connectors/rows.json").read_text(encoding="utf-8")
    assert json.loads(re.sub(old, new, shipped))["table.include.list"] == new == "public.tickets"


def test_there_are_commands_to_look_at() -> None:
    assert len(commands()) > 20


def test_each_file_that_is_named_exists() -> None:
    for text in (README, OPERATIONS):
        for path in re.findall(r"`((?:consumer|debezium|deploy|docs|schemas|tests|benchmarks)/[\w./-]+)`", text):
            if path != "schemas/tickets.sorted.avsc" and not path.startswith("deploy/secrets"):
                assert (ROOT / path).exists(), path


def test_each_setting_that_is_named_exists() -> None:
    known = {str(field.alias) for field in Settings.model_fields.values()}
    others = {"ROWCALL_STACK_DIR", "ROWCALL_CACHE", "ROWCALL_JAVA"}
    for text in DOCUMENTS:
        named = set(re.findall(r"\b(?:ROWCALL|MODEL|KAFKA)_[A-Z_]+[A-Z]\b", text))
        named = {name for name in named if not name.startswith("ROWCALL_ALERT_")}  # what a command channel is given
        assert {name.removesuffix("_FILE") for name in named} - others <= known


def test_each_metric_that_is_named_exists() -> None:
    known = {f"{metric.name}_total" if metric.kind == "counter" else metric.name for metric in METRICS}
    assert set(re.findall(r"`(rowcall_[a-z_]+)`", OPERATIONS)) <= known


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "check"} <= set(targets)
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE)) <= set(targets)


def test_the_changelog_ends_with_the_version_of_the_project() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)
    assert versions[0][0] == PROJECT["project"]["version"]


def test_exactly_once_is_said_of_database_effects_alone() -> None:
    for text in (README, OPERATIONS, CHANGELOG, PROJECT["project"]["description"]):
        for match in re.finditer(r"exactly[- ]once\s+(\w+)(?:\s+(\w+))?", text, re.IGNORECASE):
            assert "effects" in match.groups()


# --- the examples work ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    source = re.search(
        r"^   ```python\n(.*?)^   ```", section("Your own agent in ten minutes"), re.MULTILINE | re.DOTALL
    )
    assert source is not None
    code = re.sub(r"^   ", "", source[1], flags=re.MULTILINE)
    names: dict[str, Any] = {"__name__": "my_agents"}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    return names


def test_the_readmes_agent_works(example: dict[str, Any]) -> None:
    (agent,) = example["AGENTS"]
    assert isinstance(agent, Agent)
    agent.check()
    origin = Origin("cdc", "d", "public", "tickets", 1, 1, 1)
    ticket = {"id": 1, "customer_id": 2, "body": "It is broken", "queue": None}
    new = Change("rc1:1", Operation.CREATE, None, ticket, {"id": 1}, origin)
    assert agent.wants(new)
    assert not agent.wants(Change("rc1:2", Operation.UPDATE, ticket, ticket, {"id": 1}, origin))
    sorting = example["Sorting"]
    calm = sorting(queue="technical", urgent=False, reason="The text says it is broken")
    assert agent.broken_rules(new, calm) == [] and agent.tier_of(new, calm) is Tier.LOW
    wrong = calm.model_copy(update={"queue": "sales", "urgent": True})
    assert agent.broken_rules(new, wrong) and agent.tier_of(new, wrong) is Tier.MEDIUM


def test_the_payload_in_the_docs_is_one_the_agent_takes() -> None:
    (payload,) = re.findall(r"--payload '(.*)'", OPERATIONS)
    request = request_of(Event("job:1", None, None, decode(payload)))
    assert (request.repository, len(request.issues or [])) == ("acme/shop", 1)


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_whole_module_of_agents_in_the_docs_works(document: Path) -> None:
    for source in re.findall(r"^```python\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        if "AGENTS = [" in source:
            names: dict[str, Any] = {"__name__": "agents_of_a_document"}
            exec(compile(source, document.name, "exec", dont_inherit=True), names)
            for agent in names["AGENTS"]:
                agent.check()
