"""Makes the report on a recording: analysed without any file or clock, then one document."""

from lockstep_reports.analysis.logs import analyse_log
from lockstep_reports.analysis.signs import event_signs, find_signs
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.document.logs import document_log
from lockstep_reports.document.model import Document
from lockstep_reports.document.published import Sign
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.recording import LogRecording, Recording


def make_document(
    recording: Recording | LogRecording,
    *,
    price_per_gpu_hour: float | None = None,
    signs_from: str | None = None,
) -> Document:
    """The document on a recording of any kind.

    Args:
        recording: what a reader returned.
        price_per_gpu_hour: price of one GPU in any currency; None without a price.
        signs_from: address of a Prometheus that knows the nodes; None asks none.
    """
    if isinstance(recording, LogRecording):
        return document_log(analyse_log(recording))
    analysis = analyse(recording, price_per_gpu_hour=price_per_gpu_hour)
    signs = event_signs(analysis, recording.events)
    return document_steps(analysis, (*signs, *_ask_for_signs(analysis, signs_from)))


def _ask_for_signs(analysis: StepAnalysis, address: str | None) -> tuple[Sign, ...]:
    if address is None or not analysis.episodes:
        return ()
    # httpx takes longer to import than a small report takes to write.
    from lockstep_prometheus.client import Prometheus  # noqa: PLC0415  # see above

    with Prometheus(address) as server:
        return find_signs(analysis, server)
