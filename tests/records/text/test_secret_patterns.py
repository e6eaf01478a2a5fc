"""Secrets are masked, other text stays, and the time is linear in the length."""

import time
from functools import reduce
from pathlib import Path

import pytest

from lockstep_records.text.secret_patterns import MAX_LINE_CHARACTERS, SecretMask, mask_secrets

SECRET = "Q7kPz81mWs03LdYx55Tr"  # noqa: S105  # no secret
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c"


HERE = Path(__file__).parent
# Capitals in braces stand for a secret, and an arrow for the end of a line.
PLACES = {
    "{SECRET}": SECRET, "{HEX}": HEX, "{UPPER}": SECRET[:16].upper(),
    "{SWAPPED}": SECRET.swapcase(), "⏎": "\n",
}  # fmt: skip


def lines_of(name: str) -> list[str]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [reduce(lambda line, pair: line.replace(*pair), PLACES.items(), x) for x in lines]


@pytest.mark.parametrize("line", lines_of("secret_lines.txt"))
def test_what_looks_like_a_secret_is_masked(line: str) -> None:
    masked = mask_secrets(f"before\n{line}\nafter\n")
    for secret in (SECRET, HEX, "0123456789abcdef", SECRET[:16].upper()):
        assert secret not in masked
    assert masked.startswith("before\n")
    assert masked.endswith("after\n")
    assert "***" in masked


@pytest.mark.parametrize("line", lines_of("ordinary_lines.txt"))
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert mask_secrets(line) == line


def test_a_private_key_is_masked_over_pieces_of_a_stream_and_ends() -> None:
    mask = SecretMask()
    assert mask.mask("a\n-----BEGIN OPENSSH PRIVATE KEY-----\n") == "a\n***"
    assert SECRET not in mask.mask(f"{SECRET}\n" * 20)
    assert mask.mask("-----END OPENSSH PRIVATE KEY-----\nloss 2.1\n") == "***\nloss 2.1\n"
    mask.mask("-----BEGIN PRIVATE KEY-----\n")
    mask.mask("x" * 20_000)
    assert mask.mask("a word about keys hides no later output\n").endswith("output\n")


def test_a_key_in_text_that_is_left_out_is_known_to_the_mask() -> None:
    mask = SecretMask()
    mask.skip("x" * 50_000 + "-----BEGIN PRIVATE KEY-----\nMII")
    assert SECRET not in mask.mask(f"{SECRET}\n-----END PRIVATE KEY-----\n")
    mask.skip("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n")
    assert mask.mask("text\n") == "text\n"


def test_long_lines_are_cut_before_they_are_masked() -> None:
    text = "x" * (MAX_LINE_CHARACTERS - 10) + f" pwd={SECRET}\nnext line\n"
    assert mask_secrets(text) == "x" * (MAX_LINE_CHARACTERS - 10) + " pwd=*** ...\nnext line\n"


PIECES = (
    "0123456789abcdef", "a-", "a_b.", "token", "token ", "token-", "token: ", "token=abcd1234 ",
    "pwd=abc ", "pwd", "pass=", "secret_", "://", "://a:b@c ", "http://a:", "a:b@", "@", "a:",
    "eyJ", "-eyJ", "eyJabcdefgh.", '"', "'", "\\", '\\"', '"token": "', "api_", "api-", "cookie",
    "cookie:", "cookie: a\n", "'cookie:", "authorization", "bearer ", "basic aaaaaaa", "?sig=",
    "&x-amz-", "&key=abcd", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----END ", "sk-",
    "ghp_", "-sk-a", "SG.", "AKIA", "\n", " ", "=", ":=", "[", "(", "password=(' ", "\u0130",
    "--", "-a", "--token", "--token x ", 'token","', "tokens=1, ", "key ", "key_", "b'", "*", ";",
)  # fmt: skip


@pytest.mark.parametrize("head", ["", "pwd=", "token -----BEGIN @ :// ?& bearer cookie pass key="])
@pytest.mark.parametrize("line_end", ["", "\n"])
def test_the_time_is_linear_in_the_length_of_any_input(head: str, line_end: str) -> None:
    for piece in PIECES:
        texts = [(head + piece * (n // len(piece)) + line_end) * 2 for n in (4000, 8000)]
        tries = (map(_seconds, texts) for _ in range(3))
        assert any(long < 3 * short + 2e-3 for short, long in tries), piece


def _seconds(text: str) -> float:
    begin = time.thread_time()
    mask_secrets(text)
    return time.thread_time() - begin
