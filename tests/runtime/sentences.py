"""What every sentence of an error is made of."""

from __future__ import annotations


def one_sentence(message: str) -> str:
    """The message, once it is sure that it says what was expected, what was found, and what to do."""
    assert message.startswith("expected ")
    assert " found " in message
    assert ": " in message or "; " in message
    assert "\n" not in message
    return message
