"""Merges what the files of one job say into one log; its findings have their ranks and times."""

from dataclasses import replace

from lockstep_outcomes.joblogs.model import Finding, JobLog
from lockstep_outcomes.joblogs.reading.groups import LineGroup
from lockstep_outcomes.joblogs.reading.log_times import LogTimes
from lockstep_outcomes.joblogs.reading.rank_resolver import RankResolver, world_size
from lockstep_outcomes.joblogs.reading.scan import Scan


def merge_files(files: list[Scan], notes: list[str]) -> JobLog:
    """What all files of a job say, as one log."""
    ranks = RankResolver(files)
    findings = _merge_findings(files, ranks)
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


def _build_finding(group: LineGroup, file: Scan, ranks: RankResolver) -> Finding:
    own = {rank for origin in group.origins for rank in ranks.resolve(origin, file.rank)}
    if not group.origins and file.rank is not None:
        own = {file.rank}
    # A line about an exit is printed by a launcher; the ranks that it names count.
    if group.named_ranks:
        own = set(group.named_ranks)
    nodes = dict.fromkeys(group.nodes) or {
        origin.node: None for origin in group.origins if origin.node is not None
    }
    first_rank = next(iter(ranks.resolve(group.line.origin, file.rank)), None)
    line = replace(group.first, rank=first_rank, time=file.clock.seconds(group.line.stamp))
    return Finding(
        kind=group.kind.name,
        key=group.key,
        count=group.count,
        ranks=tuple(sorted(own)),
        nodes=tuple(nodes),
        num_origins=len(group.origins),
        order=group.order,
        last_order=group.last_order,
        first=line,
        codes=tuple(sorted(group.codes)),
    )


def _merge_findings(files: list[Scan], ranks: RankResolver) -> tuple[Finding, ...]:
    """One finding per kind and key over all files; in order of time where there are several."""
    several = len(files) > 1
    findings = [
        _build_finding(group, file, ranks) for file in files for group in file.groups.values()
    ]
    by_key: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_key.setdefault((finding.kind, finding.key), []).append(finding)
    joined = [_merge_group(group, several=several) for group in by_key.values()]
    joined.sort(key=lambda finding: finding.order)
    if several and all(finding.first.time is not None for finding in joined):
        joined.sort(key=lambda finding: finding.first.time or 0.0)
    return tuple(joined)


def _merge_group(group: list[Finding], *, several: bool) -> Finding:
    first = min(
        group, key=lambda finding: (finding.first.time or 0.0 if several else 0.0, finding.order)
    )
    return replace(
        first,
        count=sum(finding.count for finding in group),
        ranks=tuple(sorted({rank for finding in group for rank in finding.ranks})),
        nodes=tuple(dict.fromkeys(node for finding in group for node in finding.nodes)),
        num_origins=sum(finding.num_origins for finding in group),
        last_order=max(finding.last_order for finding in group),
        codes=tuple(sorted({code for finding in group for code in finding.codes})),
    )
