"""Masks what looks like a secret in the output of a rank, before it is stored or sent anywhere.

One scan finds the literals that begin a secret's name or a token; what follows is matched by
bounded, possessive or atomic patterns, which never step back. So the time is linear in the length
of the text, whatever it holds (docs/evidence/joblogs.md). Groups are atomic and never
possessive: Python 3.11.2, which Debian 12 has, loses characters after possessive groups. Lines are
cut at ``MAX_LINE_CHARACTERS`` before they are masked: what follows could be the rest of a secret
whose begin is not there.
"""

import re
from collections.abc import Callable, Iterator

MASK = "***"
MAX_LINE_CHARACTERS = 8192
_MAX_KEY_CHARACTERS = 16_384  # the PEM text of an RSA key of 16,384 bits has 12,600


def _ignore_case(words: str) -> str:
    """A pattern of words in lower case that matches capitals too.

    Each alternative begins with a letter and not with a class, by which ``re`` finds the next
    candidate several times faster than without regard to case.
    """
    alternatives = []
    for word in words.split():
        rest = re.sub("[a-z]", lambda match: f"[{match[0]}{match[0].upper()}]", word[1:])
        alternatives += [word[0] + rest, word[0].upper() + rest]
    return "|".join(alternatives)


def _not_after(words: str, width: int) -> str:
    """A condition on the end of a name of that width: none of these words stands before it."""
    conditions = "".join(rf"(?<!(?i:{word})[_-].{{{width}}})" for word in words.split())
    return rf"(?>(?<![_-].{{{width}}})|{conditions})"


_LONG_LINE = re.compile(rf"(?m)^([^\n]{{{MAX_LINE_CHARACTERS}}})[^\n]++")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# A quote may itself be escaped, in JSON inside of JSON.
_QUOTED = (
    r"[bru]{0,2}+(?:\"[^\"\\\n]*+(?>(?:\\.[^\"\\\n]*+)*)|'[^'\\\n]*+(?>(?:\\.[^'\\\n]*+)*)"
    r"|\\{1,4}+[\"'](?>(?:[^\\\n]|\\(?!\\{0,3}+[\"']))*))"
)
_VALUE = rf"(?:{_QUOTED}|[^\s\"'&;]{{3,}}+(?>(?:(?<=\()[\"'][^\"'\n]*+)?))"
_BLANKS = r"[ \t]{0,8}+"
_CLOSE = r"(?>(?:\\{0,4}+[\"'])?)"
_IS = rf"{_CLOSE}\]?+{_BLANKS}(?:=>|:=|[=:]){_BLANKS}[\[({{]{{0,2}}+"
_SCHEME = r"(?>(?:(?:(?i:bearer|basic|digest|token)|!{1,2}\w{1,16}+)[ \t]{1,8}+)?)"
_KEYS = (
    "api[_-]?key access[_-]?key account[_-]?key auth[_-]?key private[_-]?key signing[_-]?key"
    " ssh[_-]?key shared[_-]?key encryption[_-]?key master[_-]?key"
)
_NAMES = _ignore_case(f"secret passw(?:or)?d passwd passphrase pwd credential {_KEYS}")
# Settings that name where a secret is and not what it is.
_END = (
    r"[\w.-]{0,40}+(?<!(?i:[_.-]file))(?<!(?i:[_.-]path))(?<!(?i:[_.-]name))(?<!(?i:[_.-]dir))"
    r"(?<!(?i:error))"
)
_NAMED = re.compile(
    rf"((?:{_NAMES}){_END}(?:{_IS}|{_CLOSE},{_BLANKS}(?=[bru]{{0,2}}+\\{{0,4}}+[\"'])){_SCHEME})"
    # The shell's own variable PWD holds a folder.
    rf"(?!(?<=(?i:pwd)=)/){_VALUE}"
)
# Words of language models, and numbers: counts, rates, and ids of tokens.
_TEXT_WORDS = (
    "bos eos pad unk sep cls mask max num new per next last stop image first input output prompt"
    " target special"
)
_WORK_WORDS = "forward backward fwd bwd one two per first train second single"
_TOKEN = re.compile(
    rf"((?:{_ignore_case('token')})"
    + _not_after(_TEXT_WORDS, 5)
    + rf"(?!(?i:s|i[sz]|[_/-]?(?:count|per|id|type|budget|len))){_END}{_IS}{_SCHEME})"
    rf"(?![\"']?+(?:[\d.,_]++|(?i:none|null|true|false)|<[^>\n]{{0,40}}+>)[\"'),;\]}}]*+(?:\s|$))"
    rf"(?=.{{4}}){_VALUE}"
)
_PASS = re.compile(
    rf"((?:{_ignore_case('pass')})(?<![A-Za-z0-9].{{4}})(?:(?<=[_-].{{4}})|(?=[\"'=]))"
    + _not_after(_WORK_WORDS, 4)
    + rf"{_IS}){_VALUE}"
)
# --password x and ["--token", "x"]
_OPTION = re.compile(
    r"(-(?<![^\s\"'=]-)-?(?=[a-zA-Z])(?=[\w-]{0,40}?(?i:token|pass|secret|pwd|credential|key))"
    r"(?!(?i:max|num)-)[\w-]{1,80}+(?<!s)(?<!(?i:-(?:file|path|name|type)))"
    r"(?:[ \t]{1,8}+|[\"'],[ \t]{0,8}+(?=[\"'])))"
    r"(?!-|\d{1,9}(?:\s|$))(?:\"[^\"\n]*+|'[^'\n]*+|[^\s\"']{3,}+)"
)
_HEADER_NAME = r"(?i:(?>(?:set-|proxy-)?)(?:authorization|cookie))"
_QUOTED_HEADER = re.compile(rf"(([\"']){_HEADER_NAME}{_BLANKS}:)(?>(?:(?!\2)[^\n])+)")
_HEADER = re.compile(
    rf"((?:{_ignore_case('authorization cookie')}){_CLOSE}{_BLANKS}[:=]{_BLANKS})"
    rf"(?!\*\*\*)(?:(?=[bru\\]{{0,4}}+[\"']){_QUOTED}|[^\n]++)"
)
_BEARER = re.compile(
    rf"((?:{_ignore_case('bearer basic')})[ \t]{{1,8}}+)"
    r"(?=[A-Za-z.~+/_-]{0,200}+[\d=])[\w.~+/=-]{8,}+"
)
_QUERY_SECRET = re.compile(
    r"([?&](?i:sig|signature|x-(?:amz|goog)-[\w-]{1,40}|key|code|access_token)=)[^&\s\"']{4,}+"
)
_ADDRESS = re.compile(r"://(?!://)[^\s\"'<>:]*+(?>(?::(?!//)[^\s\"'<>:]*+)*)")
_PORT = re.compile(r"\d{1,5}(?:/|$)")
_LOGIN = re.compile(
    r"((?<![^\s\"'=(])(?!mailto:)[\w.-]{1,64}+:)[^\s\"'/]{1,256}"
    r"(?=@(?:(?:tcp|unix)\(|[\w-]{1,63}\.|localhost))"
)
# Arguments whose meaning only their program knows.
_ARGUMENT = re.compile(
    r"(\b(?:(?:mysql|mariadb)[\w-]{0,20}+\b[^\n|;]{0,200}?[ \t]-p(?=[^\s])"
    r"|sshpass\b[^\n|;]{0,80}?[ \t]-p[ \t]{0,8}|wandb[ \t]{1,8}login[ \t]{1,8}(?!-)"
    r"|openssl\b[^\n|;]{0,200}?[ \t]-(?:k|K|pass|passin|passout)[ \t]{1,8}"
    r"|curl\b[^\n|;]{0,400}?[ \t](?:-u|--user)[ \t=]{0,8}[\"']?[^\s:]{0,64}:"
    r"|login[ \t]{1,8}\S{1,64}+[ \t]{1,8}password[ \t]{1,8}"  # netrc
    r"|echo[ \t]{1,8}(?=[^|\n]{3,200}\|[^|\n]{0,80}\b(?:ch)?passwd\b)))"
    r"(?:\"[^\"\n]*+|'[^'\n]*+|[^\s\"']{3,}+)"
)
_MIN_LOGIN_TOKEN_CHARACTERS = 20
# Prefixes by which the issuers' own scanners find their tokens. Sources: the rules of gitleaks
# (github.com/gitleaks/gitleaks, config/gitleaks.toml) and the issuers' documentation.
_PREFIXED_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+"
    r"|gl(?:pat|dt|rtr?|ptt|cbt|soat|ft|imt|agent|oas|wt|ffct)-[\w.-]{16,}+"  # GitLab
    r"|GR1348941[\w-]{16,}+"  # GitLab, runners
    r"|(?:hf|api_org)_[A-Za-z0-9]{16,}+"  # Hugging Face
    r"|xox[abdeoprs]-[\w-]{10,}+|xapp-\d-[\w-]{10,}+|hooks\.slack\.com/services/[\w/]{10,}+"
    r"|sk-[\w-]{16,}+"  # OpenAI, Anthropic (sk-ant-), OpenRouter, DeepSeek
    r"|gsk_\w{20,}+|xai-[\w-]{20,}+|pplx-\w{20,}+|r8_\w{20,}+"  # Groq, xAI, Perplexity, Replicate
    r"|AIza[\w-]{30,}+|GOCSPX-[\w-]{16,}+|ya29\.[\w.-]{16,}+"  # Google
    r"|npm_[A-Za-z0-9]{30,}+|pypi-Ag[\w-]{16,}+|rubygems_[0-9a-f]{32,}+"
    r"|[rs]k_(?:live|test)_\w{10,}+|whsec_[\w+/=]{16,}+"  # Stripe
    r"|dckr_[op]at_[\w-]{16,}+|dapi[0-9a-f]{32}(?:-\d)?|do[opr]_v1_[0-9a-f]{32,}+"
    r"|SG\.[\w-]{16,}+\.[\w-]{16,}+"  # SendGrid
    r"|nvapi-[\w-]{20,}+|wandb_v\d_\w{16,}+"  # NVIDIA NGC; W&B, whose older keys have names only
    r"|hv[bs]\.[\w-]{20,}+|gl(?:sa|c)_[\w+/=]{20,}+|tskey-[\w-]{16,}+"
    r"|ATATT3[\w=-]{30,}+|sntry[su]_[\w+/=]{20,}+|PMAK-[\w-]{20,}+|AGE-SECRET-KEY-1\w{20,}+"
    r"|eyJ[\w.-]{16,}+"  # JSON web tokens
    r")"
)


class SecretMask:
    """Masks the text of one stream; a private key may reach over several pieces of it."""

    def __init__(self) -> None:
        self._key_characters = 0  # of a private key that may still follow

    def mask(self, text: str) -> str:
        """Whole lines with their long ones cut and each secret replaced by three stars."""
        position = self._end_of_key(text)
        parts = [MASK] if position else []
        for begin, end in self._keys(text, position):
            parts += text[position:begin], MASK
            position = end
        text = "".join((*parts, text[position:]))
        return _mask_text(_LONG_LINE.sub(r"\1 ...", text))

    def skip(self, text: str) -> None:
        """Passes over text that is left out, in which a private key may begin or end."""
        for _ in self._keys(text, self._end_of_key(text)):
            pass

    def _end_of_key(self, text: str) -> int:
        """Position at which the private key ends in which the text begins; 0 without one."""
        if not self._key_characters:
            return 0
        end = _KEY_ENDS.search(text, 0, self._key_characters)
        position = end.end() if end else min(len(text), self._key_characters)
        self._key_characters = 0 if end else self._key_characters - position
        return position

    def _keys(self, text: str, begin: int) -> Iterator[tuple[int, int]]:
        while match := _KEY_BEGINS.search(text, begin):
            bound = match.end() + _MAX_KEY_CHARACTERS
            end = _KEY_ENDS.search(text, match.end(), bound)
            begin = end.end() if end else min(len(text), bound)
            self._key_characters = 0 if end else bound - begin
            yield match.start(), begin


def mask_secrets(text: str) -> str:
    """A text with its long lines cut and its secrets masked."""
    return SecretMask().mask(text)


def _mask_value(match: re.Match[str]) -> str:
    return match[1] + MASK


def _mask_password(match: re.Match[str]) -> str:
    """Masks an address from its first colon to the last @, whatever stands between."""
    address = match[0]
    login, at, host = address[3:].rpartition("@")
    user, colon, password = login.partition(":")
    if colon and not _PORT.match(password):
        return f"://{user}:{MASK}@{host}"
    is_token = at and not colon and len(login) >= _MIN_LOGIN_TOKEN_CHARACTERS and "/" not in login
    return f"://{MASK}@{host}" if is_token else address


_STEPS: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    ("authorization cookie", _QUOTED_HEADER, _mask_value),
    ("authorization cookie", _HEADER, _mask_value),
    ("secret passw passphrase pwd credential key", _NAMED, _mask_value),
    ("token", _TOKEN, _mask_value),
    ("pass", _PASS, _mask_value),
    ("token pass secret pwd credential key", _OPTION, _mask_value),
    ("bearer basic", _BEARER, _mask_value),
    ("://", _ADDRESS, _mask_password),
    ("@", _LOGIN, _mask_value),
    ("? &", _QUERY_SECRET, _mask_value),
    ("mysql mariadb sshpass login openssl curl passwd", _ARGUMENT, _mask_value),
)
"""Literals of which a text holds one, the pattern that is searched then, and what replaces it."""


def _mask_text(text: str) -> str:
    lower = text.lower()
    for literals, pattern, mask in _STEPS:
        if any(literal in lower for literal in literals.split()):
            text = pattern.sub(mask, text)
    return _PREFIXED_SECRET.sub(MASK, text)
