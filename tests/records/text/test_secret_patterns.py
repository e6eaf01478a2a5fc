"""Secrets are masked, other text stays, and the time is linear in the length."""

import time

import pytest

from lockstep_records.text.secret_patterns import MAX_LINE_CHARACTERS, SecretMask, mask_secrets

SECRET = "Q7kPz81mWs03LdYx55Tr"  # noqa: S105  # no secret
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c"


@pytest.mark.parametrize(
    "line",
    [
        f"api_key={SECRET}",
        f'"api_key": "{SECRET}"',
        f"WANDB_API_KEY={SECRET} python train.py",
        f"WANDB_API_KEY={HEX}",
        f"Authorization: Bearer {SECRET}",
        f"authorization: Custom {SECRET}",
        f'Authorization: Digest username="a", response="{SECRET}"',
        f"Proxy-Authorization: Negotiate {SECRET}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/x, Signature={SECRET}",
        f"curl -H 'Authorization: token {SECRET}' https://api.example",
        f'curl -H "Cookie: a=b" -H "Authorization: Bearer {SECRET}" x',
        f"headers = {{'Authorization': 'Bearer {SECRET}', 'Accept': '*/*'}}",
        f"Cookie: session={SECRET}; theme=dark",
        f"Set-Cookie: id={SECRET}; HttpOnly",
        f"{{'cookie': 'sid={SECRET}'}}",
        f"export AWS_SECRET_ACCESS_KEY='{SECRET}'",
        f"password = {SECRET}",
        f"DB_PASS={SECRET}",
        f"db_pass: {SECRET}",
        f'"pass": "{SECRET}"',
        f"PGPASSWORD={SECRET} psql",
        f"Server=db;Uid=me;Pwd={SECRET};",
        f"pwd={SECRET}",
        f"passphrase={SECRET}",
        f"passphrase: correct-horse{SECRET}",
        f"--hf-token {SECRET}",
        f"--password {SECRET}",
        f"--password={SECRET}",
        f'["train.py", "--token", "{SECRET}"]',
        f"['--api-key', '{SECRET}', '--lr', '1']",
        f'("api_key", "{SECRET}")',
        f'{{"api_key": "{SECRET}", "lr": 1}}',
        f'{{"password": "with \\" quote {SECRET}"}}',
        f'"{{\\"api_key\\": \\"{SECRET}\\"}}"',
        f'"{{\\\\"token\\\\": \\\\"{SECRET}\\\\"}}"',
        f"env --env=API_KEY={SECRET}",
        f"config['secret'] = '{SECRET}'",
        f"password=SecretStr('{SECRET}')",
        f"AccountName=a;AccountKey={SECRET}==;EndpointSuffix=x",
        f"mysql -u me -p{SECRET} -h db.example metrics",
        f"sshpass -p '{SECRET}' ssh me@node",
        f"machine h login me password {SECRET}",
        f"client_secret: !!str {SECRET}",
        f"wandb login {SECRET}",
        f"openssl enc -aes-256-cbc -k {SECRET} -in a",
        f"curl --user=me:{SECRET} https://registry.example/",
        f"echo {SECRET} | passwd --stdin me",
        f"https://user:{SECRET}@registry.example/x",
        f"https://user:p@ss{SECRET}@registry.example/x",
        f"postgresql://u:{SECRET}@host:5432/db?sslmode=require",
        f"redis://:{SECRET}@10.0.0.1:6379/0",
        f"https://{SECRET}@github.com/a/b.git",
        f"http://a.example:80/x,http://u:{SECRET}@b.example",
        f"root:{SECRET}@tcp(10.0.0.1:3306)/db",
        f"user:p@ss{SECRET}@db.example/name",
        f"GET /x?a=1&X-Amz-Signature={SECRET}&b=2",
        f"https://a.blob.core.windows.net/c?sv=2022&sig={SECRET}%3D",
        f"x-goog: https://storage/x?X-Goog-Signature={SECRET}",
        f"bearer {SECRET}",
        f"hf_{SECRET}",
        f"ghp_{SECRET}{SECRET}",
        f"github_pat_{SECRET}_{SECRET}",
        f"glpat-{SECRET}",
        f"AKIA{SECRET[:16].upper()} {SECRET.swapcase()}",
        f"xoxb-1234567890-{SECRET}",
        f"sk-{SECRET}",
        f"sk-ant-api03-{SECRET}",
        f"AIza{SECRET}{SECRET}",
        f"npm_{SECRET}{SECRET}",
        f"pypi-AgEIcHlwaS5vcmc{SECRET}",
        f"sk_live_{SECRET}",
        f"dckr_pat_{SECRET}",
        "dapi0123456789abcdef0123456789abcdef",
        f"dop_v1_{HEX}",
        f"SG.{SECRET}.{SECRET}",
        f"nvapi-{SECRET}",
        f"hvs.{SECRET}{SECRET}",
        f"eyJhbGciOiJI.{SECRET}.{SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f'"-----BEGIN PRIVATE KEY-----\\n{SECRET}\\n-----END PRIVATE KEY-----\\n"',
    ],
)
def test_what_looks_like_a_secret_is_masked(line: str) -> None:
    masked = mask_secrets(f"before\n{line}\nafter\n")
    for secret in (SECRET, HEX, "0123456789abcdef", SECRET[:16].upper()):
        assert secret not in masked
    assert masked.startswith("before\n")
    assert masked.endswith("after\n")
    assert "***" in masked


@pytest.mark.parametrize(
    "line",
    [
        "step 12: loss 2.31, tokens=4096, tokens_per_second: 120000",
        "RuntimeError: expected scalar type Half but found Float",
        "NCCL WARN Bootstrap : no socket interface found",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "https://pytorch.org/docs/stable/elastic/errors.html",
        'File "/opt/train.py", line 12, in main',
        "num_tokens: 8192",
        "tokenizer: Qwen2TokenizerFast(vocab_size=151643)",
        "tokenizer_path=/data/tokenizer.model, token_type: bpe",
        "1234.5 tokens/s, token count 17, max_token = unlimited",
        "eos_token: <|endoftext|>, pad_token='<pad>', bos_token_id=1, token=None",
        "--num-tokens 100000000 --tokenizer-path /data/tok --max-token-len 4096",
        "commit 9ceff1a1f3e80c5a0d1c4ad1b2d3e4f5a6b7c8d9 is checked out",
        "image registry.example/train@sha256:9ceff1a1f3e80c5a0d1c4ad1b2d3e4f5",
        "The next token is generated by the model; tokenization finished",
        "forward_pass=0.21 s, backward_pass=0.42 s, num_passes: 3, bypass=cache",
        "PWD=/home/user/run OLDPWD=/home/user",
        "master at tcp://10.0.0.1:29500, store http://node-7:8080/x?mail=me@x.example",
        "git@github.com:pytorch/pytorch.git at 10:30 by me@example.org",
        "basic understanding of the bearer bonds",
        "mkdir -p /data/out && cp -p a b, PasswordError: password must not be empty",
        "key=value pairs, cache_key: 17, keyboard interrupt, KeyError: 'layer.3.weight'",
        "secret_name: hf, password_file=/run/secrets/db",
        "task-specific risk-adjusted loss, desk-organizer-long-words-here",
    ],
)
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
