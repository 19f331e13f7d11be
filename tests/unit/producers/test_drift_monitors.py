"""The file of monitors: what is wrong is said with place, field and what to do; expressions."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.errors import ConfigurationError
from producers.drift.monitors import load
from producers.drift.values import Expression, Refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write a table"),
        ("[monitor.a]\nvalue='v'", "table: name exactly one source"),
        ("[monitor.a]\ntopic='t'\nsql='SELECT 1'\nvalue='v'", "exactly one source"),
        ("[monitor.a]\ntopic='t'", "needs value"),
        ("[monitor.a]\ntopic='t'\nvalue='v'\nwarn=1", "warn: there is no such key; docs/drift.md has"),
        ("[monitor.a]\ntopic='t'\nvalue='__import__(1)'", "holds more than columns"),
        ("[monitor.a]\ntopic='t'\nvalue='v'\ndetector='threshold'", "needs warning and critical"),
        ("[monitor.a]\ntopic='t'\nvalue='v'\ndetector='threshold'\nwarning=9\ncritical=3", "safe side"),
        ("[monitor.a]\ntopic='t'\nvalue='v'\ndetector='distribution'\nwindow=50", "at least 500"),
        ("[monitor.a]\ntopic='t'\nvalue='v'\nwarning=0.001", "safe side"),
        ("[other]", "write a table"),
        ("x =", "is not TOML"),
    ],
)
def test_wrong_monitor_is_named_with_its_fault(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "drift.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        load(tmp_path / "drift.toml")


def test_expressions_compute_and_refuse() -> None:
    row = {"a": 6, "b": 3, "c": {"d": 2}, "n": None}
    assert Expression("a / b + c.d")(row) == 4
    assert Expression("-abs(b)")(row) == -3
    for text, word in (
        ("a / (b - 3)", "refused"),
        ("n", "missing"),
        ("x", "unknown_column"),
        ("c.x", "unknown_column"),
    ):
        with pytest.raises(Refused) as refused:
            Expression(text)(row)
        assert refused.value.word == word
