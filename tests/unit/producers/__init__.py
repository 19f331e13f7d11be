"""Unit tests of the producers."""
