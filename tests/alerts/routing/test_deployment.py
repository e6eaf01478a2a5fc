"""The deployment file: what it becomes in Alertmanager's configuration, and what is refused."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lockstep_alerts.command import alerts
from lockstep_alerts.output import ROUTES_FILE
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing import alertmanager_config, read_deployment

WHOLE = """\
alertmanager: "0.26"
page:
  - pagerduty: {routing_key_file: pagerduty}
  - opsgenie: {api_key_file: opsgenie}
ticket:
  - slack: {api_url_file: slack, channel: "#training"}
  - email:
      to: a@example.org, b@example.org
      from: lockstep@example.org
      smarthost: mail.example.org:587
      auth_username: lockstep
      auth_password_file: mail
  - webhook: {url_file: hook}
watchdog:
  - webhook: {url: "https://deadman.example.org/x", token_file: token}
cooldown: {page: 2h, ticket: 1d, group_interval: 3m}
office_hours: {time_zone: Europe/Berlin, days: "monday:friday", hours: "09:00-17:00"}
maintenance:
  - {name: cooling, from: 2026-12-03T22:30, to: 2026-12-05T06:00, time_zone: Europe/Berlin}
  - {name: patches, days: sunday, hours: "02:00-06:00", mutes: ticket, cluster: c1}
"""
SECRETS = ("pagerduty", "opsgenie", "slack", "mail", "hook", "token")


def generate(folder: Path, text: str) -> tuple[int, str]:
    path = folder / "deployment.yaml"
    path.write_text(text, encoding="utf-8")
    command = ["generate", "--out", str(folder / "out"), "--deployment", str(path)]
    outcome = CliRunner().invoke(alerts, command)
    return outcome.exit_code, " ".join(outcome.output.split())


def config(folder: Path, text: str = WHOLE) -> dict[str, Any]:
    for name in SECRETS:
        (folder / name).write_text("s3cret\n", encoding="utf-8")
    status, output = generate(folder, text)
    assert status == 0, output
    document = yaml.safe_load((folder / "out" / ROUTES_FILE).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_thresholds_are_in_the_deployment_file_too(tmp_path: Path) -> None:
    rules = tmp_path / "out" / "lockstep-jobs.rules.yaml"
    config(tmp_path, WHOLE + "limits: {page_gpus: 16}\n")
    assert "} < 16" in rules.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ("timeout_steps: 1", "timeout_steps 1: JobNotProgressing: a step may take"),
        ("timeout_most: 60s", "timeout_most '60s': JobNotProgressing: agents judge no job"),
    ],
)
def test_a_time_out_below_a_step_is_refused(tmp_path: Path, limits: str, sentence: str) -> None:
    own = f"alerts:\n  - {{alert: JobNotProgressing, {limits}}}\n"
    status, output = generate(
        tmp_path,
        "page: [{webhook: {url: 'http://a'}}]\nticket: [{webhook: {url: 'http://a'}}]\n" + own,
    )
    assert status == 2
    assert "deployment.yaml:4: " in output
    assert sentence in output


def test_every_kind_of_receiver_reads_its_secret_from_a_file(tmp_path: Path) -> None:
    document = config(tmp_path)
    receivers = {each["name"]: each for each in document["receivers"]}
    [pagerduty] = receivers["pager"]["pagerduty_configs"]
    assert pagerduty["routing_key_file"] == str(tmp_path / "pagerduty")
    assert pagerduty["severity"] == "critical"
    assert receivers["pager"]["opsgenie_configs"][0]["priority"] == "P1"
    tickets = receivers["tickets"]
    assert tickets["slack_configs"][0]["channel"] == "#training"
    assert tickets["email_configs"][0]["auth_password_file"] == str(tmp_path / "mail")
    assert tickets["webhook_configs"][0]["url_file"] == str(tmp_path / "hook")
    [watchdog] = receivers["watchdog"]["webhook_configs"]
    assert watchdog["http_config"]["authorization"]["credentials_file"] == str(tmp_path / "token")
    assert "s3cret" not in (tmp_path / "out" / ROUTES_FILE).read_text(encoding="utf-8")


def test_a_window_over_midnight_is_an_interval_a_day(tmp_path: Path) -> None:
    windows = {each["name"]: each for each in config(tmp_path)["time_intervals"]}
    cooling = windows["maintenance-cooling"]["time_intervals"]
    assert [each["days_of_month"] for each in cooling] == [["3"], ["4"], ["5"]]
    assert [each["times"][0] for each in cooling] == [
        {"start_time": "22:30", "end_time": "24:00"},
        {"start_time": "00:00", "end_time": "24:00"},
        {"start_time": "00:00", "end_time": "06:00"},
    ]
    assert {each["location"] for each in cooling} == {"Europe/Berlin"}
    assert windows["office-hours"]["time_intervals"][0]["weekdays"] == ["monday:friday"]


def test_a_window_of_a_cluster_mutes_what_it_says_and_no_other_cluster(tmp_path: Path) -> None:
    *_, page, ticket = config(tmp_path)["route"]["routes"]
    assert "routes" not in page
    assert page["mute_time_intervals"] == ["maintenance-cooling"]
    assert ticket["mute_time_intervals"] == ["maintenance-cooling"]
    assert ticket["active_time_intervals"] == ["office-hours"]
    [of_cluster] = ticket["routes"]
    assert of_cluster["matchers"] == ['cluster="c1"']
    assert of_cluster["mute_time_intervals"] == ["maintenance-cooling", "maintenance-patches"]
    assert of_cluster["active_time_intervals"] == ["office-hours"]


def test_cooldowns_are_those_of_the_file(tmp_path: Path) -> None:
    route = config(tmp_path)["route"]
    assert (route["group_interval"], route["repeat_interval"]) == ("3m", "1d")
    assert route["routes"][-2]["repeat_interval"] == "2h"


@pytest.mark.promtool
def test_amtool_accepts_what_its_version_can_read(tmp_path: Path) -> None:
    text = WHOLE.replace('"0.26"', '"0.25"').replace("url_file: hook", "url: https://h.example/")
    config(tmp_path, text)
    command = ["amtool", "check-config", str(tmp_path / "out" / ROUTES_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 time intervals" in done.stdout or "SUCCESS" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pagerduty: {", "pagerdutty: {", ":3: unknown key; did you mean pagerduty? known are pag"),
        ("routing_key_file: pagerduty", "routing_key_file: gone", ":3: routing_key_file 'gone': c"),
        ("routing_key_file: pagerduty", "", ":3: page[0].pagerduty: routing_key_file is missing"),
        (
            "routing_key_file: pagerduty",
            "routing_key: R0UTE",
            ":3: routing_key: secrets are read from files; write routing_key_file",
        ),
        ('"0.26"', '"0.25"', ":13: url_file 'hook': needs alertmanager: \"0.26\""),
        ('"0.26"', "0.2", ":1: alertmanager 0.2: write the oldest version in use"),
        ("Europe/Berlin, days", "Europe/Bonn, days", ":17: time_zone 'Europe/Bonn': is not a time"),
        ("monday:friday", "friday:monday", ":17: days 'friday:monday': a week begins on sunday"),
        ("monday:friday", "mon:fri", ":17: days 'mon:fri': write days such as monday:friday"),
        ("09:00-17:00", "17:00-09:00", ":17: hours '17:00-09:00': must end after they begin"),
        ("09:00-17:00", "9-17", ":17: hours '9-17': write hours such as 09:00-17:00"),
        ("2026-12-05T06:00", "2026-12-03T06:00", ":19: to '2026-12-03T06:00': must be after from"),
        ("2026-12-05T06:00", "2026-12-35T06:00", ":19: to '2026-12-35T06:00': write a time such"),
        ("days: sunday, ", "", ":20: name 'patches': write either from and to"),
        ("name: patches", "name: cooling", ":20: name 'cooling': two have this name"),
        ("mutes: ticket", "mutes: tickets", ":20: mutes 'tickets': must be one of page, ticket"),
        ("page: 2h", "page: 2", ":16: cooldown: page 2: write a duration"),
        ("page: 2h", "page: often", ":16: cooldown: page: 'often' is not a duration"),
        ("#training", "", ":6: channel '': write text"),
        ("mail.example.org:587", "mail.example.org", ":10: smarthost 'mail.example.org':"),
        ("b@example.org", "b", ":8: to 'a@example.org, b': write an address such as team@"),
        ("https://deadman.example.org/x", "deadman", ":15: url 'deadman': write an address such"),
        ("deadman.example.org/x", "u:p@d.example/x", ":15: url: holds a secret; put it into a"),
        ("ticket:\n", "tickets:\n", ":5: unknown key; did you mean ticket? known are page, tic"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_line_and_nothing_is_written(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    for name in SECRETS:
        (tmp_path / name).write_text("s3cret", encoding="utf-8")
    assert old in WHOLE
    status, output = generate(tmp_path, WHOLE.replace(old, new))
    assert status == 2
    line, _, sentence = message.partition(" ")
    assert f"deployment.yaml{line} " in output
    assert sentence in output
    assert not (tmp_path / "out").exists()
    assert "R0UTE" not in output


def test_a_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    for text, message in (("page: [", "is not YAML"), ("", "is empty")):
        status, output = generate(tmp_path, text)
        assert (status, message in output) == (2, True)
    command = ["generate", "--out", str(tmp_path / "out"), "--deployment", str(tmp_path / "no")]
    outcome = CliRunner().invoke(alerts, command)
    assert outcome.exit_code == 2
    assert "it cannot be read: No such file or directory" in outcome.output


def test_a_secret_elsewhere_needs_its_whole_path(tmp_path: Path) -> None:
    text = "secrets: elsewhere\n" + WHOLE
    status, output = generate(tmp_path, text)
    assert status == 2
    assert "'pagerduty': is elsewhere: write the whole path" in output
    for name in SECRETS:
        text = text.replace(f"_file: {name}", f"_file: /run/{name}")
    assert generate(tmp_path, text)[0] == 0


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    for name in SECRETS:
        (tmp_path / name).write_text("s3cret", encoding="utf-8")
    (tmp_path / "mail").write_text(" \n", encoding="utf-8")
    status, output = generate(tmp_path, WHOLE)
    assert (status, "auth_password_file 'mail': is empty" in output) == (2, True)


def test_the_shipped_example_generates(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "deploy" / "alertmanager" / "deployment.yaml"
    status, output = generate(tmp_path, example.read_text(encoding="utf-8"))
    assert status == 0, output


def test_owners_of_jobs_have_a_route_where_the_deployment_names_them(tmp_path: Path) -> None:
    of_all = '  - webhook: {url: "https://owners.example.org/x"}\n'
    of_vision = '  - webhook: {url: "https://vision.example.org/x"}\n    project: vision\n'
    old = WHOLE.replace(
        "{url_file: hook}", "{url: https://hook.example.org}"
    )  # as amtool 0.25 reads
    found = config(tmp_path, old + "owners:\n" + of_all + of_vision)
    path = tmp_path / "found.yaml"
    path.write_text(yaml.safe_dump(found), encoding="utf-8")

    def reached(*labels: str) -> str:
        command = ["amtool", "config", "routes", "test", f"--config.file={path}", *labels]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    alert = ("alertname=TrainLossDiverging", "severity=warning", "route=owners")
    assert reached(*alert, "project=vision") == "owners of vision"
    assert reached(*alert, "project=speech") == reached(*alert) == "owners"
    assert reached("alertname=JobLosing", "severity=critical", "project=vision") == "pager"
    urls = {r["name"]: r.get("webhook_configs", [{}])[0].get("url") for r in found["receivers"]}
    assert urls["owners of vision"] == "https://vision.example.org/x"
    assert "owners" not in {each["receiver"] for each in config(tmp_path)["route"]["routes"]}
    status, output = generate(tmp_path, WHOLE + "owners:\n" + of_vision)
    assert (status, "name one without a project" in output) == (2, True)


DEPLOYMENT = """\
secrets: elsewhere
page:
  - pagerduty: {routing_key_file: /run/secrets/pagerduty}
ticket:
  - slack: {api_url_file: /run/secrets/slack, channel: "#training"}
watchdog:
  - webhook: {url: "https://deadman.example.org/lockstep", token_file: /run/secrets/deadman}
"""


def route(config: Path, labels: tuple[str, ...]) -> str:
    command = ["amtool", "config", "routes", "test", f"--config.file={config}", *labels]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.promtool
@pytest.mark.parametrize("has_deployment", [False, True])
def test_alertmanager_notifies_the_right_people(tmp_path: Path, has_deployment: bool) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT, encoding="utf-8")
    deployment = read_deployment(path) if has_deployment else None
    config = tmp_path / "alertmanager.yaml"
    config.write_text(yaml.safe_dump(alertmanager_config(Delivery(), deployment)), encoding="utf-8")
    assert route(config, ("severity=critical", "job_id=j1", "cluster=c1")) == "pager"
    assert route(config, ("severity=critical", "cluster=c1")) == "pager"
    assert route(config, ("severity=warning", "job_id=j1")) == "tickets"
    assert route(config, ("severity=info", "job_id=j1")) == "nobody"
    expected = "watchdog" if has_deployment else "nobody"
    assert route(config, ("alertname=TrainWatchdog", "severity=none")) == expected
    # An alert of somebody else's rules without a severity is not lost.
    assert route(config, ("alertname=Other",)) == "tickets"


def test_bases_and_intervals_are_those_of_the_delivery() -> None:
    delivery = Delivery(pager_base="http://127.0.0.1:1", group_interval=Duration("3s"))
    text = yaml.safe_dump(alertmanager_config(delivery))
    assert "http://127.0.0.1:1/tickets" in text
    assert "group_interval: 3s" in text
