"""Access rules are reloaded when their files change, but TLS is not switched on or off."""

from pathlib import Path

from lockstep_agent.web.access_control import AccessControl

from .test_agent_web import certificate

TOKEN = "a-token-" * 4


def test_tls_is_not_switched_on_or_off_while_the_server_runs(tmp_path: Path) -> None:
    now = [0.0]
    web, tokens = tmp_path / "web.yml", tmp_path / "tokens"
    web.write_text("")
    tokens.write_text(TOKEN)
    access_control = AccessControl(web, tokens, clock=lambda: now[0])
    cert, key = certificate(tmp_path, "late")
    web.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}")
    tokens.write_text(TOKEN + " other")
    now[0] += 1.1
    rules = access_control.rules()
    assert rules.context is None
    assert rules.admission.admits(f"Bearer {TOKEN}"), "the old rules stay as a whole"


def test_access_control_polls_its_files_at_most_once_a_second(tmp_path: Path) -> None:
    now = [0.0]
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    access_control = AccessControl(tokens=tokens, clock=lambda: now[0])
    tokens.write_text(TOKEN[::-1] + "x")
    assert access_control.rules().admission.admits(f"Bearer {TOKEN}")
    now[0] += 1.1
    assert not access_control.rules().admission.admits(f"Bearer {TOKEN}")
