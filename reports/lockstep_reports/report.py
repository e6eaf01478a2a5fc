"""Makes the report on a recording: analysed without any file or clock, then one document."""

from lockstep_reports.analysis.logs import analyse_log
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.document.logs import document_log
from lockstep_reports.document.model import Document
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.recording import LogRecording, Recording
from lockstep_reports.recording.window import Window, cut_before, cut_inside
from lockstep_reports.signs.find import event_signs, find_signs
from lockstep_reports.signs.sign import Sign


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
    from lockstep_records.shared.prometheus import Prometheus  # noqa: PLC0415  # see above

    with Prometheus(address) as server:
        return find_signs(analysis, server)


def cut_to_window(recording: Recording | LogRecording, window: Window) -> Recording | LogRecording:
    """The part of a recording inside a window.

    Raises:
        ValueError: nothing lies inside, or this kind has nothing to cut by.
    """
    if isinstance(recording, Recording):
        return cut_inside(recording, window)
    # The first cause of a failure may be anywhere in a log.
    if not window.is_open:
        raise ValueError("a log is judged as a whole; leave out --from and --to")
    return recording


def cut_to_baseline(recording: Recording | LogRecording, window: Window) -> Recording:
    """The part of a recording before a window; raises as ``cut_to_window``."""
    if isinstance(recording, Recording):
        return cut_before(recording, window)
    raise ValueError("a log has no window to hold against its baseline; give another log")
