"""Reads the text of sacct: rows of named values.

Texts may hold line ends, delimiters and invalid UTF-8, and Slurm escapes nothing: the name of a job
may hold columns and forged rows. Only a delimiter that nobody can guess makes sure that none does.
"""

import re
from collections.abc import Callable, Iterable, Iterator

_DELIMITERS = ("|#", "|")
# A table of the columns that the ledger asks for shows any delimiter of its own in its header.
_OWN_DELIMITER = re.compile(r"JobID(\W.*?)User\1")
_JOB_ID = re.compile(r"\d+(?:_(?:\d+|\[[\d,%-]+\]))?(?:\+\d+)?(?:\.\w+)?")
# A table that is torn in the middle would otherwise be gathered to its end.
_MOST_FIELD_BYTES = 1 << 20
_FREE_TEXTS = frozenset({"JobName", "Comment", "SubmitLine", "WorkDir", "Extra"})
_REMEDY = "print the table with --parsable and a --delimiter that no name holds"


def rows(
    lines: Iterable[bytes | str],
    delimiter: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, str]]:
    """Rows of a table that sacct printed: as many columns as the header, and a job's id.

    Args:
        lines: the output; a row whose text holds line ends is joined again.
        delimiter: between columns; found on the first line when left out.
        warn: gets a sentence for each row that is left out, and on names that can forge rows.

    Raises:
        ValueError: the first line is not the header of such a table.
    """
    pending, num_values = "", 0
    header: tuple[str, ...] = ()
    for number, line in enumerate(map(_read_line, lines), 1):
        if number == 1:
            delimiter = delimiter or _find_delimiter(line)
            # --parsable ends each row by a delimiter: the end of its last text.
            num_values = len(line.split(delimiter))
            header = _read_header(line, delimiter, warn)
            continue
        assert delimiter
        pending += f"\n{line}" if pending else line
        values = pending.split(delimiter)
        if len(values) < num_values and len(pending) < _MOST_FIELD_BYTES:
            continue
        pending = ""
        row: dict[str, str] = dict(zip(header, map(str.strip, values), strict=False))
        if len(values) != num_values:
            warn(f"row on line {number} has {len(values)} columns of {num_values}; {_REMEDY}")
        elif _JOB_ID.fullmatch(row.get("JobID", "0")):
            yield row
        else:
            warn(f"row on line {number} begins with no job id, {row['JobID']!r:.80}; {_REMEDY}")
    if pending:
        warn(f"the last row has fewer than {num_values} columns; {_REMEDY}")


def _read_line(raw: bytes | str) -> str:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return text.rstrip("\r\n")


def _read_header(line: str, delimiter: str, warn: Callable[[str], None]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in line.removesuffix(delimiter).split(delimiter))
    if delimiter in _DELIMITERS and _FREE_TEXTS & {*names}:
        warn(f"names of jobs can hold {delimiter!r} and forge rows; {_REMEDY}")
    return names


def _find_delimiter(line: str) -> str:
    if match := _OWN_DELIMITER.match(line):
        return match[1]
    for text in _DELIMITERS:
        if text in line:
            return text
    raise ValueError(f"no table of Slurm begins with {line[:60]!r}; print it with --parsable")
