"""Times the masking of secrets on 1 MiB of inputs made to be slow, and the launcher's stderr.

python bench/secret_masking.py
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from lockstep_records.secret_patterns import mask_secrets

MIBIBYTE = 1 << 20
PIECES = (
    "0123456789abcdef", "a-", "a_b.", "token", "token ", "token token ", "token: ", "token:a ",
    "token=abcd1234 ", "pwd=a ", "pass=", "secret", "://", "://a:b@c ", "http://a:", "a:b@", "@",
    "eyJ", "-eyJ", "eyJabcdefgh.", '"', "'", "\\", '\\"', '"token": "', "api_key", "api-", "cookie:",
    "cookie: a\n", "authorization", "bearer ", "basic a", "?sig=", "&key=a", "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----", "sk-", "ghp_", "-sk-a", "SG.", "AKIA", "\n", "x\n", "\r", " ", "=",
    ":=", "[", "password=(' ", "\u0130", "\U0001f600", "tokens=1, ", "--token x ", 'token","', "hf_a ",
    "step 12: loss 2.31, tokens=4096, tokens_per_second: 120000\n", "xox", "glpat-", "SG.aaaaaaaaaaaaaaaaa",
)  # fmt: skip


def main() -> None:
    """Prints the slowest inputs, at once as one line and in lines, and the launcher's rate."""
    times = []
    for piece in PIECES:
        for end in ("", "\n"):
            unit = piece if not end else piece * max(1, 4000 // len(piece)) + end
            text = (
                (unit * (MIBIBYTE // len(unit.encode()) + 1))
                .encode()[:MIBIBYTE]
                .decode(errors="ignore")
            )
            begin = time.process_time()
            mask_secrets(text)
            times.append((time.process_time() - begin, piece, "lines" if end else "one line"))
    for seconds, piece, form in sorted(times, reverse=True)[:8]:
        print(f"{seconds * 1e3:7.1f} ms for 1 MiB of {piece!r}, {form}")


if __name__ == "__main__":
    main()
