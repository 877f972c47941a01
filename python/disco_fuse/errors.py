"""Exceptions that callers may want to catch by name; all of them are ``ValueError`` kinds."""

from __future__ import annotations


class UnsupportedOperatorError(ValueError):
    """An operator of the model has no verified translation, or is used in an unverified way."""


class MissingInputError(ValueError):
    """A file that the caller named, or that must lie beside it, is not there."""


class WorkloadError(ValueError):
    """What a user's own function raised, or that it returned something else than is wanted."""
