"""The kinds of report, each with the recording that it is made from; a new kind is one entry."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockstep_records.job_goodput import whole_job
from lockstep_reports.job_report import JobReport
from lockstep_reports.log_analysis import analyse_log
from lockstep_reports.recording.log_recording import LogRecording
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.window import before_window, inside_window
from lockstep_reports.recording.window_spec import Window
from lockstep_reports.render.log_report import LogReport
from lockstep_reports.render.step_report import StepReport
from lockstep_reports.signs.find import event_signs, find_signs
from lockstep_reports.step_analysis import StepAnalysis, analyse_recording
from lockstep_reports.verdict.sign import Sign


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSettings:
    """What a report is made with.

    Attributes:
        now_seconds: wall clock, to tell a running job from one that fell silent.
        price_per_gpu_hour: price of one GPU in any currency; None without a price.
        signs_from: address of a Prometheus that knows the nodes; None asks none.
    """

    now_seconds: float
    price_per_gpu_hour: float | None = None
    signs_from: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportKind:
    """What can be done with one type of recording.

    Attributes:
        inside: the part of a recording inside a window.
        before: the part before a window, its baseline.
        make_report: the report on a recording.
    """

    inside: Callable[[Any, Window], Any]
    before: Callable[[Any, Window], Any]
    make_report: Callable[[Any, ReportSettings], JobReport]


def _report_on_steps(recording: Recording, settings: ReportSettings) -> JobReport:
    analysis = analyse_recording(
        recording,
        now_seconds=settings.now_seconds,
        price_per_gpu_hour=settings.price_per_gpu_hour,
    )
    return StepReport(
        replace(
            analysis,
            signs=_signs(analysis, recording, settings.signs_from),
            job=whole_job(recording.events),
        )
    )


def _signs(analysis: StepAnalysis, recording: Recording, address: str | None) -> tuple[Sign, ...]:
    """Signs by the job's events, and by a Prometheus where there is one."""
    signs = event_signs(analysis, recording.events)
    if address is None or not analysis.episodes:
        return signs
    # httpx takes longer to import than a small report takes to write.
    from lockstep_reports.readers.prometheus_api import Prometheus  # noqa: PLC0415  # see above

    server = Prometheus(address)
    try:
        return signs + find_signs(analysis, server)
    finally:
        server.close()


def _uncut_log(recording: LogRecording, window: Window) -> LogRecording:
    # The first cause of a failure may stand anywhere in a log.
    if not window.is_open:
        raise ValueError("a log is judged as a whole; leave out --from and --to")
    return recording


def _no_baseline(recording: LogRecording, window: Window) -> LogRecording:
    # The signature is that of every kind.
    del recording, window
    raise ValueError("a log has no window to hold against its baseline; give another log")


def _report_on_log(recording: LogRecording, settings: ReportSettings) -> JobReport:
    return LogReport(analyse_log(recording, now_seconds=settings.now_seconds))


_KINDS: dict[type[Recording | LogRecording], ReportKind] = {
    Recording: ReportKind(inside=inside_window, before=before_window, make_report=_report_on_steps),
    LogRecording: ReportKind(inside=_uncut_log, before=_no_baseline, make_report=_report_on_log),
}


def kind_of(recording: Recording | LogRecording) -> ReportKind:
    """The kind of report that a recording gets."""
    # By the exact type: a new recording without an entry fails here and not in a renderer.
    return _KINDS[type(recording)]
