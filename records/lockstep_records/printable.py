"""Text of others as one line that may be shown in a terminal."""

MAX_CHARACTERS = 2000


def printable(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """A text as one line without control characters.

    Each run of blanks, line ends and characters that a terminal obeys or hides becomes one blank:
    escapes, carriage returns, marks that reverse the direction of text, and surrogates.

    Args:
        text: as a job, a user or another machine wrote it.
        max_characters: of the result; dots stand for what is left out.
    """
    is_long = len(text) > max_characters
    text = text[:max_characters]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    text = " ".join(text.split())
    return text[: max_characters - 3] + "..." if is_long else text
