"""Errors that the command line shows as one line."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user can mend; `code` is the exit code (see cli.py). The message says where and what to do."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code
