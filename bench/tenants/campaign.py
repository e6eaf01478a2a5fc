"""Runs the table of attacks against the real programs: ``python bench/tenants/campaign.py``."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tenants import users
from tenants.arena import Arena
from tenants.attacks import (
    hostile_events,
    launched,
    logs,
    page_folders,
    pages,
    readers,
    side_files,
    verbs,
)
from tenants.table import ATTACKS, SLOW_TIER_SECONDS, Attack, Ground

TABLE = (pages, page_folders, side_files, hostile_events, logs, readers, launched, verbs)
# A choice for the ordinary suite: one or two of each kind, most of which succeeded once.
TELLING = (
    *("periodic_field_known_alone", "thousands_of_ranks", "stderr_as_private", "events_as_fifo"),
    *("spans_of_hostile_seconds", "spooled_end_of_a_neighbour", "posted_surrogate"),
    *("posted_detail_of_a_space", "ledger_half_headers", "kernel_xid_in_text", "report_of_fifos"),
    "folder_claimed_with_an_acl",
)
_ACT_SECONDS = 20.0
_WAVE = 12


class Attacker:
    """A process of the attacker's user, which acts once and holds what it has until it is ended."""

    def __init__(self, arena: Arena, attack: Attack) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            self._act(arena, attack, write)
        os.close(write)
        self._read = read
        self.obtained = ""

    @staticmethod
    def _act(arena: Arena, attack: Attack, write: int) -> None:
        status = 1
        try:
            os.setsid()
            users.ATTACKER.become()
            os.umask(0o022)
            signal.alarm(120)
            ground = Ground(
                root=arena.root,
                home=arena.base / "attacker",
                private=arena.private,
                agent_port=arena.agent_port,
                ledger_port=arena.ledger_port,
                token=arena.launcher_token,
                victim_pids=arena.victim_pids,
                pager_port=arena.pager_port,
                boards_port=arena.boards_port,
                name=attack.name,
            )
            attack.act(ground)
            os.write(write, b"done " + ground.obtained.encode("utf-8", "replace"))
            os.close(write)
            signal.pause()
        except BaseException as error:  # noqa: BLE001  # the harness is told, whatever it is
            os.write(write, f"the attack itself failed: {error!r}".encode())
        finally:
            os._exit(status)

    def wait(self) -> str:
        """Waits until the attack has been made; why it could not be, nothing where it was."""
        deadline = time.monotonic() + _ACT_SECONDS
        os.set_blocking(self._read, False)
        text = b""
        while time.monotonic() < deadline:
            try:
                part = os.read(self._read, 65536)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            text += part
            if not part:
                break
        os.close(self._read)
        # An attack that takes longer than its time goes on while everything is checked.
        self.obtained = text[5:].decode()
        return "" if not text or text.startswith(b"done ") else text.decode()

    def end(self) -> None:
        """Ends the attacker's processes."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                end(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Campaign:
    """Makes attacks one after the other, or those that need a slow tier a dozen at once."""

    def __init__(self, *, singly: bool) -> None:
        self._singly = singly
        self.arena = self._new()

    def _new(self) -> Arena:
        arena = Arena()
        try:
            arena.settle()
        except BaseException:
            arena.close()
            raise
        return arena

    def run(self, attacks: Iterable[Attack]) -> Iterator[tuple[Attack, str]]:
        """Yields each attack with the harm that it did, nothing where it did none."""
        for wave in _waves(list(attacks), 1 if self._singly else _WAVE):
            harm = self._harm(wave)
            if not any(harm.values()) or len(wave) == 1:
                yield from ((attack, harm[attack.name]) for attack in wave)
                continue
            for attack in wave:
                yield attack, self._harm([attack])[attack.name]

    def _harm(self, wave: list[Attack]) -> dict[str, str]:
        attackers = [Attacker(self.arena, attack) for attack in wave]
        harm = {}
        try:
            failures = {attacker.wait() for attacker in attackers} - {""}
            if failures:
                return {attack.name: min(failures) for attack in wave}
            time.sleep(max(attack.seconds for attack in wave))
            common = self.arena.complaint()
            for attack, attacker in zip(wave, attackers, strict=True):
                self.arena.attack = attack.name
                judged = attack.judge(self.arena, attacker.obtained) if attack.judge else ""
                harm[attack.name] = "; ".join(each for each in (common, judged) if each)
        finally:
            for attacker in attackers:
                attacker.end()
            self.arena.undo()
        if attack.judge is not None and not common:
            common = self.arena.complaint()
            harm[attack.name] = "; ".join(each for each in (harm[attack.name], common) if each)
        if common:
            self.arena.close()
            self.arena = self._new()
        return harm


def _waves(attacks: list[Attack], size: int) -> Iterator[list[Attack]]:
    slow = [each for each in attacks if each.seconds >= SLOW_TIER_SECONDS]
    for attack in attacks:
        if attack.seconds < SLOW_TIER_SECONDS:
            yield [attack]
    for begin in range(0, len(slow), size):
        yield slow[begin : begin + size]


def main() -> int:
    """Runs the chosen attacks, prints each result and writes them all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="attacks; default all")
    parser.add_argument("--surface", action="append", default=[], help="only attacks on these")
    parser.add_argument("--telling", action="store_true", help="only the most telling ones")
    parser.add_argument("--singly", action="store_true", help="never several attacks at once")
    parser.add_argument("--json", type=Path, help="file for the results")
    chosen = parser.parse_args()
    users.make_reachable()
    unknown = set(chosen.names) - set(ATTACKS)
    assert not unknown, f"no attacks: {sorted(unknown)}"
    attacks = [
        attack
        for attack in ATTACKS.values()
        if (not chosen.names or attack.name in chosen.names)
        and (attack.name in TELLING or not chosen.telling)
        and (not chosen.surface or attack.surface in chosen.surface)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    campaign = Campaign(singly=chosen.singly)
    results: dict[str, str] = {}
    begin = time.monotonic()
    try:
        for attack, harm in campaign.run(attacks):
            results[attack.name] = harm
            seconds = time.monotonic() - begin
            print(f"{seconds:6.1f} s  {attack.name:40} {harm or 'no harm'}", flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        report = campaign.arena.report_complaint()
    finally:
        campaign.arena.close()
    harmful = [name for name, harm in results.items() if harm]
    print(f"{len(results)} attacks, {len(harmful)} did harm; report: {report or 'unchanged'}")
    return 1 if harmful or report else 0


if __name__ == "__main__":
    sys.exit(main())
