"""Sentences about the nodes of slow ranks, and about the time of the whole job."""

from lockstep_records.job_goodput import WholeJob
from lockstep_reports.verdict.sign import Sign
from lockstep_reports.wording import clock, duration, percent, plural, printable


def sign_sentences(signs: tuple[Sign, ...]) -> list[str]:
    """A sentence for each sign: what, when, how much, by what source, and whether it is proven."""
    return [
        f"{'Proven' if sign.proven else 'Also then'}: {sign.cause.replace('_', ' ')} on "
        f"{printable(sign.node)}, {_when(sign)}, up to {sign.value:,.3g} {sign.unit} "
        f"({printable(sign.source)})."
        for sign in signs
    ]


def _when(sign: Sign) -> str:
    if sign.end_time - sign.begin_time < 1:
        return clock(sign.begin_time)
    return f"{clock(sign.begin_time)} to {clock(sign.end_time)}"


def job_sentence(job: WholeJob | None) -> str | None:
    """Where the allocated time of all attempts went; None where nobody told it."""
    if job is None or not job.goodput.allocated_gpu_seconds:
        return None
    allocated = job.goodput.allocated_gpu_seconds
    states = ", ".join(
        f"{state.replace('_', ' ')} {percent(seconds / allocated)}"
        for state, seconds in sorted(job.goodput.gpu_seconds.items(), key=lambda pair: -pair[1])
        if seconds > 0
    )
    ettr = job.goodput.ettr_ratio
    effective = "" if ettr is None else f" Effective training time (ETTR): {percent(ettr)}."
    return (
        f"The whole job, {plural(job.num_attempts, 'attempt')}, {duration(allocated)} of ranks"
        f" allocated: {states}.{effective}"
    )
