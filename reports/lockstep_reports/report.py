"""Makes the report on a recording: analysed without any file or clock, then one document."""

from lockstep_reports.analysis.logs import analyse_log
from lockstep_reports.analysis.steps import analyse
from lockstep_reports.document.logs import document_log
from lockstep_reports.document.model import Document
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.recording import LogRecording, Recording


def make_document(
    recording: Recording | LogRecording, *, price_per_gpu_hour: float | None = None
) -> Document:
    """The document on a recording of any kind; the price is in any currency, None without one."""
    if isinstance(recording, LogRecording):
        return document_log(analyse_log(recording))
    return document_steps(analyse(recording, price_per_gpu_hour=price_per_gpu_hour))
