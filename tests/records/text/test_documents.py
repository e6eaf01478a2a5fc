"""Documents of few bytes that stand for much are refused before they are decoded."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep_records.text.documents import DocumentError, decode_json, read_toml
from lockstep_records.text.yaml_documents import check_yaml, read_yaml

_LAUGHS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
YAML = {
    "aliases of aliases": f"a0: &a0 [x,x,x]\n{_LAUGHS}",
    "merges": "a: &a {k: v}\n" + "".join(f"b{n}: {{<<: [{'*a,' * 999}*a]}}\n" for n in range(99)),
    "contains itself": "a: &a [*a]\n",
    "nested lists": "[" * 50_000,
    "nested items": "- " * 50_000 + "x",
    "nested keys": "? " * 20_000,
    "base 60": "n: 1" + ":59" * 100_000,
    "hexadecimal": "n: 0x" + "f" * 10**6,
    "a program": "!!python/object/apply:os.system ['true']\n",
    "two documents": "a\n---\nb\n",
}
TOML = {"dotted key": "a" + ".a" * 20_000 + " = 1\n", "nested arrays": "a = " + "[" * 2000}
JSON: dict[str, str | bytes] = {
    "nested": "[" * 4_000_000,
    "nested members": '{"a":' * 1_000_000,
    "entries": "[" + "0," * 2_000_000 + "0]",
    "keys": "{" + ",".join(f'"{n}":0' for n in range(1_000_000)) + "}",
    "digits": "9" * 2_000_000,
    "not a number": "NaN",
    "UTF-16": '{"id": "a"}'.encode("utf-16"),
    "byte order": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("name", [*YAML, *TOML, *JSON])
def test_what_is_too_large_once_decoded_is_refused_in_a_moment(tmp_path: Path, name: str) -> None:
    path = tmp_path / "document"
    document: str | bytes = {**YAML, **TOML, **JSON}[name]
    path.write_bytes(document if isinstance(document, bytes) else document.encode())
    readers: dict[str, Callable[[Path], Any]] = {
        **dict.fromkeys(YAML, read_yaml),
        **dict.fromkeys(TOML, read_toml),
        **dict.fromkeys(JSON, lambda path: decode_json(path.read_bytes())),
    }
    begin = time.process_time()
    with pytest.raises(DocumentError) as raised:
        readers[name](path)
    assert time.process_time() - begin < 1.0
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("depth", [8, 64])
def test_ordinary_documents_are_read(tmp_path: Path, depth: int) -> None:
    text = f"a: &a [1, 1:30, '{'9' * 500}']\nb: *a\nc: *a\n" + "".join(
        f"line {n}: {n}\n" for n in range(2000)
    )
    path = tmp_path / "document"
    path.write_text(text)
    assert read_yaml(path)["b"] == read_yaml(path)["c"]
    check_yaml("[" * depth + "]" * depth)
    path.write_text("listen = '127.0.0.1:0'\n[a.b.c]\nd = 1\n")
    assert read_toml(path)["a"]["b"]["c"]["d"] == 1
    nested = "[" * depth + "9007199254740992" + "]" * depth
    assert str(decode_json(nested)) == nested
