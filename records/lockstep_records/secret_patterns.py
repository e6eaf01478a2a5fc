"""Masks what looks like a secret in the output of a rank, before it is kept or sent anywhere."""

import re

MASK = "***"
# What names a secret, and its value: api_key=..., "token": "...", --password ...
_NAMED = re.compile(
    r"(?i)((?:[\w.-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|secret|token|passw(?:or)?d|passwd"
    r"|credential|authorization)[\w-]*)[\"']?\s*(?:[=:]|\s(?=[^\s]{8}))\s*[\"']?)"
    r"((?:bearer|basic)\s+)?[^\s\"',;}&]{4,}"
)
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}")
_IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)")
_IN_QUERY = re.compile(r"(?i)([?&](?:sig|signature|x-amz-[\w-]+|key|code)=)[^&\s\"']+")
# Tokens that say by their form what they are: AWS, GitHub, GitLab, Hugging Face, Slack, OpenAI-like
# keys, Google, and JSON web tokens.
_BY_FORM = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|hf_[A-Za-z0-9]{16,}|xox[abposr]-[\w-]{10,}|sk-[\w-]{16,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")
# Counts of a language model, which name no secret though they hold the word.
_HARMLESS = re.compile(r"(?i)tokens|tokeni[sz]|token[_ /]*(?:count|per|id|type|budget)")


class SecretMask:
    """Masks the lines of one stream; a private key reaches over several of them."""

    def __init__(self) -> None:
        self._in_key = False

    def mask(self, line: str) -> str:
        """The line with what looks like a secret replaced by three stars."""
        if self._in_key:
            self._in_key = _KEY_ENDS.search(line) is None
            return MASK + line[len(line.rstrip()) :]
        if _KEY_BEGINS.search(line):
            self._in_key = _KEY_ENDS.search(line) is None
            return MASK + line[len(line.rstrip()) :]
        line = _NAMED.sub(_mask_value, line)
        line = _BEARER.sub(rf"\1{MASK}", line)
        line = _IN_ADDRESS.sub(rf"\1{MASK}", line)
        line = _IN_QUERY.sub(rf"\1{MASK}", line)
        return _BY_FORM.sub(MASK, line)


def _mask_value(match: re.Match[str]) -> str:
    name = match[1]
    if _HARMLESS.search(name):
        return match[0]
    return f"{name}{match[2] or ''}{MASK}"


def mask_secrets(text: str) -> str:
    """A text with its secrets masked, line by line."""
    mask = SecretMask()
    return "".join(mask.mask(line) for line in text.splitlines(keepends=True))
