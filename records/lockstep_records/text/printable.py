"""Text of others as lines that may be shown in a terminal."""

import logging
import re

MAX_CHARACTERS = 2000
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def strip_colours(text: str) -> str:
    """A text without a terminal's colours, titles and movements of the cursor."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def printable(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """A text of others as one line without control characters, dots for what is too long.

    A text that holds line ends or characters that a terminal obeys or hides (escapes, carriage
    returns, marks that reverse the direction of text, surrogates) has one blank for each run of
    these and of blanks; any other text stays as it is.
    """
    is_long = len(text) > max_characters
    text = text[:max_characters]
    if not text.isprintable():
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text[: max_characters - 3] + "..." if is_long else text


def drop_unprintable(text: str) -> str:
    """A text without the characters that a terminal obeys or hides, for the value of a label."""
    return "".join(character for character in text if character.isprintable())


def safe_lines(text: str) -> str:
    """A text of several lines, each of them printable, with its secrets masked."""
    from lockstep_records.text.secret_patterns import mask_secrets  # noqa: PLC0415  # its patterns take a while to build, and most commands need none

    return "\n".join(map(printable, mask_secrets(text).split("\n")))


class SafeLogRecord(logging.LogRecord):
    """A record whose message, which may quote anybody, is printable and shows no secrets."""

    def getMessage(self) -> str:  # noqa: N802  # name of the base class
        """The message with its arguments."""
        return safe_lines(super().getMessage())
