"""Times the masking of secrets on 1 MiB of inputs made to be slow, and the launcher's stderr.

Processor time, so that a busy machine changes it little. See docs/security.md.

python bench/joblogs/secret_masking.py
"""

import os
import tempfile
import time
from pathlib import Path

from lockstep.launch.last_output import KeptOutput
from lockstep_records.text.secret_patterns import mask_secrets

MEBIBYTE = 1 << 20
PIECES = (
    "0123456789abcdef", "a-", "a_b.", "token", "token ", "token: ", "token:a ", "token=abcd1234 ",
    "pwd=a ", "pwd=abc ", "pass=", "secret", "://", "://a:b@c ", "http://a:", "a:b@", "@", "eyJ",
    "-eyJ", "eyJabcdefgh.", '"', "'", "\\", '\\"', '"token": "', "api_key", "api-", "cookie:",
    "cookie: a\n", "authorization", "bearer ", "basic a", "?sig=", "&key=a", "&key=abcd",
    "-----BEGIN ", "-----BEGIN PRIVATE KEY-----",
    "sk-", "ghp_", "-sk-a", "SG.", "AKIA", "\n", "x\n", "\r", " ",
    "=", ":=", "[", "password=(' ", "\u0130", "\U0001f600", "tokens=1, ", "--token x ", 'token","',
    "xox", "glpat-", "SG.aaaaaaaaaaaaaaaaa", "\x00", "\x1b[2J",
)  # fmt: skip
ORDINARY = "step 12: loss 2.31, tokens=4096, tokens_per_second: 120000, saved to /data/c/12\n"
STREAMS = {
    "ordinary lines": ORDINARY,
    "endless line of hexadecimal digits": "0123456789abcdef",
    "line ends": "\n",
    "carriage returns": "50%|####    | 5/10\r",
    "secrets": "token=abcd1234 pwd=abc ://a:b@c \n",
    "control characters": "\x00\x1b[2J\xff",
}


def main() -> None:
    """Prints the slowest inputs, as one line and in lines, and the launcher's rates."""
    times = []
    for piece in PIECES:
        for end in ("", "\n"):
            unit = piece if not end else piece * max(1, 4000 // len(piece)) + end
            text = (unit * (MEBIBYTE // len(unit.encode()) + 1)).encode()[:MEBIBYTE]
            seconds = min(_seconds(text.decode(errors="ignore")) for _ in range(3))
            times.append((seconds, piece, "in lines" if end else "as one line"))
    for seconds, piece, form in sorted(times, reverse=True)[:8]:
        print(f"{seconds * 1e3:7.1f} ms for 1 MiB of {piece!r}, {form}")
    for name, unit in STREAMS.items():
        print(f"{_rate(unit.encode('latin-1')) / 1e6:7.1f} MB/s of stderr, {name}")


def _seconds(text: str) -> float:
    begin = time.process_time()
    mask_secrets(text)
    return time.process_time() - begin


def _rate(unit: bytes) -> float:
    """Bytes of stderr for each second of the launcher's processor time."""
    data = (unit * (MEBIBYTE // len(unit) + 1))[: MEBIBYTE // 2]
    descriptor = os.memfd_create("stderr")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        page = Path(folder) / "rank-00000.page"
        output = KeptOutput(page, descriptor, lambda data, _seconds: len(data))
        begin, written = time.process_time(), 0
        while written < 32 * MEBIBYTE:
            for _ in range(5):  # as much as comes between two polls at a rate of 25 MB/s
                written += os.write(descriptor, data)
            output.drain()
        output.drain(at_end=True)
        return written / (time.process_time() - begin)


if __name__ == "__main__":
    main()
