"""Reads logs of a job: MLPerf logs and ordinary output of Slurm, torchrun and NCCL."""

import codecs
import re
from pathlib import Path

from lockstep_outcomes.joblogs.model import log_files
from lockstep_outcomes.joblogs.read import read_log
from lockstep_records.file_access.compressed import read_head
from lockstep_reports.readers import ReadOptions
from lockstep_reports.recording.recording import LogRecording

_SNIFFED_BYTES = 1 << 16
_MAX_BINARY_SHARE = 0.02
_SNIFFED_FILES = 8
_STRUCTURED = re.compile(rb"\A\s*(?:\{|\[\s*[{\[\"])")
_OBJECT_A_LINE = re.compile(rb"\A\{[^\n]*\}\r?\n")
_TABLE = re.compile(rb"\A[\w./\"-]+(?:,[\w./\"-]*){1,400}\r?\n")


def recognises(path: Path) -> bool:
    """Whether it is text with lines, or a folder of such files."""
    if (path / "events.jsonl").exists():
        return False
    files = log_files(path)[:_SNIFFED_FILES]
    return bool(files) and all(map(_is_log, files))


def read(path: Path, options: ReadOptions) -> LogRecording:
    """The log, or the folder of logs of one job; raises as ``ReaderModule.read``."""
    log = read_log(path)
    if not log.num_known_lines and not log.num_severe:
        raise ValueError(
            f"{path}: its {log.lines:,} lines were not understood: none is of a known kind (steps,"
            " errors, exits, MLPerf's log); give the output of a training job"
        )
    return LogRecording(source_kind="log", path=path, log=log, read_at_seconds=options.now_seconds)


def _is_log(file: Path) -> bool:
    head = read_head(file, _SNIFFED_BYTES)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    if not head or b"\n" not in head:
        return False
    # Logs hold escape sequences (27) and now and then a stray byte; binary files hold many.
    num_control = sum(head.count(bytes([code])) for code in (*range(8), *range(14, 27)))
    if num_control > _MAX_BINARY_SHARE * len(head):
        return False
    # One JSON value is another reader's file; one object per line is a structured log.
    is_json = _STRUCTURED.match(head) is not None and _OBJECT_A_LINE.match(head) is None
    return not is_json and _TABLE.match(head) is None
