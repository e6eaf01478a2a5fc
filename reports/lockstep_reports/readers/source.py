"""Reads what the user names: a path, the address of a Prometheus, or a job id."""

from pathlib import Path

from lockstep_records.files.jobs import find_job
from lockstep_reports.readers import ADDRESSES, ReadOptions, find_reader, load_reader
from lockstep_reports.recording.recording import LogRecording, Recording


def read_source(source: str, options: ReadOptions) -> Recording | LogRecording:
    """The recording behind a path, a job id or the URL of a Prometheus.

    A path is read by the first reader that recognises its content.

    Raises:
        ValueError: nothing of that name exists, or it cannot be read; the text says why.
        OSError: a file cannot be read.
    """
    if source.startswith(ADDRESSES):
        # httpx takes longer to import than a small report takes to write.
        from lockstep_reports.readers.prometheus import read_url  # noqa: PLC0415  # see above

        return read_url(source, options)
    path = Path(source)
    if path.exists():
        reader = find_reader(path.resolve())
        if reader is not None:
            return reader.read(path.resolve(), options)
        if path.is_file():
            raise ValueError(
                f"{source} is of no kind that a report can be made from; give a job, trace or log"
            )
    return load_reader("jobs").read(find_job(source).resolve(), options)
