"""Fixtures by service: tests/fixtures/postgres.py, tests/fixtures/services.py. A service that cannot start fails."""

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.services", "tests.fixtures.world"]
