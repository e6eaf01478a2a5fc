"""Makes the report on a recording: analysed without any file or clock, then one document."""

import math
from typing import Any

from lockstep_outcomes.prices.price import Price, PricedJob, Pricing
from lockstep_reports.analysis.findings import restore_findings
from lockstep_reports.analysis.logs import analyse_log
from lockstep_reports.analysis.steps import analyse
from lockstep_reports.document.logs import document_log
from lockstep_reports.document.model import Document
from lockstep_reports.document.steps import document_steps
from lockstep_reports.recording.recording import LogRecording, Recording


def make_document(
    recording: Recording | LogRecording, *, pricing: Pricing | None = None
) -> Document:
    """The document on a recording of any kind, priced as in the ledger, or by its own price."""
    if isinstance(recording, LogRecording):
        return document_log(analyse_log(recording))
    analysis = analyse(recording, price=find_price(recording, pricing or Pricing()))
    return document_steps(restore_findings(analysis))


def find_price(recording: Recording, pricing: Pricing) -> Price | None:
    """The mean price of a GPU-hour over the recorded steps; None without one, or of two currencies.

    The job's events state its project, the model of its GPUs and the price that it declares.
    """
    fields: dict[str, Any] = {}
    for event in recording.events:
        if event.kind in {"job_submitted", "job_started"}:
            fields = {**event.fields, **fields}
    declared = fields.get("price_per_gpu_hour")
    job = PricedJob(
        fields.get("project", ""),
        fields.get("gpu_model", ""),
        None if declared is None else Price(declared, fields.get("currency", "")),
    )
    steps = recording.steps
    begin, end = steps.measure_span()
    begin = recording.read_at_seconds if begin is None else begin
    # A source without a clock is of no day: the job's own price holds.
    begin = begin if math.isfinite(begin) else 0.0
    return pricing.mean_price(job, begin, begin if end is None else end)
