"""Commands configure logging for their process; here that process goes on with other tests."""

from tests.fixtures.logs import logging_as_it_was

__all__ = ["logging_as_it_was"]
