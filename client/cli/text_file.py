"""A file of plain text that a command is to run through a model."""

from __future__ import annotations

from pathlib import Path

from rondel.client.cli.usage import WrongUsage


def read_text(path: Path) -> str:
    """The text as it is, line ends too. Raises WrongUsage when it cannot be read or is not UTF-8."""
    try:
        # Not Path.read_text, which would turn line ends into others.
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongUsage(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise WrongUsage(f"the text cannot be read: {error}") from None
