"""Findings of a job's log: the gathered lines of all its files, with their ranks and times."""

from dataclasses import replace

from lockstep_records.joblogs.model import Finding
from lockstep_records.joblogs.reading.groups import LineGroup
from lockstep_records.joblogs.reading.rank_resolver import RankResolver
from lockstep_records.joblogs.reading.scan import Scan


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


def merge_findings(files: list[Scan], ranks: RankResolver) -> tuple[Finding, ...]:
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
