"""Run scripts on a lab without feed and ledger: does the control plane do what they say?

    cd tests/ledger && python -m kubernetes_situations.rehearse LAB_FOLDER [NAME_PREFIX]...

Sums by hand are compared with what the server wrote of the pods.
"""

import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .diary import Diary
from .every_situation import SITUATIONS
from .kubelets import ControlPlane
from .scenario import Situation

AT_ONCE = 4
LAG_SECONDS = 1.5  # of the lab for each run of a pod: times are whole seconds


def compare_sums(situation: Situation, diary: Diary) -> list[str]:
    """Return where arithmetic by hand and the pods' own times differ."""
    findings = []
    for expected in situation.expected:
        pods = expected.pods or expected.name
        for name, value, lag in (
            ("gpu_seconds", expected.gpu_seconds, diary.gpus(pods) * LAG_SECONDS),
            ("queue_wait_seconds", expected.queue_wait_seconds, LAG_SECONDS),
        ):
            if callable(value):
                sys.stdout.write(f"  {expected.name} {name} = {value(diary):.1f}\n")
            elif isinstance(value, (int, float)) and name == "gpu_seconds":
                measured = diary.gpu_seconds(pods, expected.namespace or "")
                if abs(measured - value) > lag:
                    findings.append(f"{expected.name}: {measured:.1f} and not {value}")
    return findings


def rehearse(folder: Path, situation: Situation) -> list[str]:
    """Run one script; return what is not as it says."""
    namespace = f"s{time.monotonic_ns() // 10**6 % 10**7}-{situation.name}"
    cluster = ControlPlane(folder, namespace[:50].rstrip("-"))
    begin = time.monotonic()
    try:
        if situation.prepare:
            situation.prepare(cluster)
        situation.script(cluster)
        time.sleep(0.5)
        findings = compare_sums(situation, cluster.diary)
    except Exception:  # noqa: BLE001  # a script that fails is a finding of its own
        findings = [traceback.format_exc(limit=-4)]
    finally:
        cluster.close()
    state = "; ".join(findings) or "as it says"
    sys.stdout.write(f"{situation.name} {time.monotonic() - begin:.0f} s: {state}\n")
    sys.stdout.flush()
    return findings


def main(folder: str, prefixes: list[str]) -> int:
    """Run the scripts that the prefixes name; those that stop parts come one by one."""
    chosen = [each for each in SITUATIONS if not prefixes or each.name.startswith(tuple(prefixes))]
    shared = [each for each in chosen if not each.exclusive]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda each: rehearse(Path(folder), each), shared))
    found += [rehearse(Path(folder), each) for each in chosen if each.exclusive]
    failed = sum(bool(findings) for findings in found)
    sys.stdout.write(f"{len(chosen)} scripts, {failed} not as they say\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
