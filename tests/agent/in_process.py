"""The command line in this process: a case in milliseconds, where a process takes half a second."""

import sys

import pytest

from lockstep_cli.main import main


def refused_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """What a command with bad input writes: one line on stderr, with exit status 2."""
    monkeypatch.setattr(sys, "argv", ["lockstep", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    assert (ended.value.code, output.out) == (2, "")
    assert output.err.count("\n") == 1
    return output.err
