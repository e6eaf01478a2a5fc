"""Merges what the files of one job say into one log."""

from lockstep_records.joblogs.model import JobLog
from lockstep_records.joblogs.reading.findings import merge_findings
from lockstep_records.joblogs.reading.log_times import LogTimes
from lockstep_records.joblogs.reading.rank_resolver import RankResolver, world_size
from lockstep_records.joblogs.reading.scan import Scan


def merge_files(files: list[Scan], notes: list[str]) -> JobLog:
    """What all files of a job say, as one log."""
    ranks = RankResolver(files)
    findings = merge_findings(files, ranks)
    # Steps and the end are those of one file: every rank may log the same ones.
    main = max(files, key=_end_and_steps)
    milestones, end = main.milestones, main.milestones.end
    seconds, numbers, blocks = milestones.steps.durations
    times = LogTimes(files)
    return JobLog(
        files=tuple(file.name for file in files),
        lines=sum(file.lines for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        findings=findings,
        world_size=world_size(files, findings, ranks) or None,
        first_sign=times.first_sign,
        training_start=times.training_start(main),
        last_progress=times.last_progress(),
        last_work=milestones.work,
        progress_order=milestones.progress_order,
        restart_order=max(file.milestones.restart_order for file in files),
        run_stop=times.run_stop(),
        run_status=end.status,
        run_stop_order=end.order,
        withdrawn_by=end.withdrawn_by,
        planned_minutes=end.planned_minutes,
        watched=times.watched(),
        last_sign=times.latest(lambda scan: scan.clock.latest),
        step_seconds=seconds,
        step_numbers=numbers,
        step_blocks=blocks,
        last_step=times.last_step(),
        enqueued=ranks.group_by_rank(lambda milestones: milestones.enqueued),
        timeouts=ranks.group_by_rank(lambda milestones: milestones.timeouts),
        notes=tuple(notes),
        num_known_lines=sum(file.milestones.num_lines for file in files)
        + sum(finding.count for finding in findings),
    )


def _end_and_steps(file: Scan) -> tuple[bool, int]:
    """Whether a file tells how the run ended, and how many steps it has."""
    milestones = file.milestones
    return milestones.end.is_known, len(milestones.steps.durations[0])
