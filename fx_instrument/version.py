"""The version, in one place; it imports nothing, so that packaging can read it without torch."""

__version__ = "0.1.0"
