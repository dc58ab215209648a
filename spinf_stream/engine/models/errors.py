"""What can be wrong with a model. Every message says where, and what to do."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that cannot be had or used."""


class ModelAway(ModelError):
    """The model's source cannot be reached now (the Hub, a package that is not installed)."""


class Unsupported(ModelError):
    """A checkpoint of a family, or with a feature, that this engine does not compute."""
