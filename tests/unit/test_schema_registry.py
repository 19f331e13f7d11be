"""The registry client's decisions that need no registry: what an answer means, and references put in place."""

from __future__ import annotations

import pytest

from consumer.errors import ConfigurationError
from consumer.http import Response
from consumer.schema_registry import SchemaRegistry, in_place, outage_of
from consumer.wire.avro import parse

MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "price", "type": "Money"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "total", "type": "shop.Money"},
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "refund", "type": ["null", "Money"]},
        {"name": "by_name", "type": {"type": "map", "values": "shop.Line"}},
        {"name": "note", "type": {"type": "string"}},
    ],
}


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 504])
def test_status_of_a_registry_in_trouble_is_an_outage(status: int) -> None:
    outage = outage_of(Response(status, {}, b'{"message":"storage is away"}'), "http://registry")
    assert outage is not None
    assert outage.dependency == "registry"
    assert "storage is away" in str(outage)


@pytest.mark.parametrize("status", [200, 204, 404, 409, 422])
def test_other_statuses_are_not(status: int) -> None:
    assert outage_of(Response(status, {}, b"{}"), "http://registry") is None


def test_answer_of_a_proxy_is_shown_in_part() -> None:
    outage = outage_of(Response(502, {}, b"<html>" + b"x" * 10_000), "http://registry")
    assert outage is not None
    assert len(str(outage)) < 400


def test_referenced_types_are_written_out_once_where_first_used() -> None:
    whole = in_place(ORDER, {"shop.Money": MONEY, "shop.Line": LINE})
    fields = {field["name"]: field["type"] for field in whole["fields"]}
    assert fields["total"] == MONEY
    assert fields["lines"]["items"]["fields"][0]["type"] == "Money"
    assert fields["refund"] == ["null", "Money"]
    assert fields["by_name"]["values"] == "shop.Line"
    assert parse(whole)["name"] == "shop.Order"


def test_references_of_references_are_put_in_place() -> None:
    order = ORDER | {"fields": [ORDER["fields"][1]]}
    whole = in_place(order, {"shop.Line": LINE, "shop.Money": MONEY})
    assert parse(whole)["fields"][0]["type"]["items"]["fields"][0]["type"]["name"] == "shop.Money"


def test_schema_without_references_stays_as_it_is() -> None:
    assert in_place(MONEY, {}) == MONEY
    assert in_place("string", {}) == "string"


def test_address_that_is_no_url_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError):
        SchemaRegistry("registry:8081")
