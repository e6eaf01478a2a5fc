"""Time zones: sacct prints local time without an offset, unless it is asked under TZ=UTC."""

from .accounting import AccountingRow, utc
from .scenario import Action, ExpectedJob, Situation, account, feed, poll, submit, wait

LIVE = (submit("a", "sleep 3", "--gpus=1"), wait("a"), poll())
EXPECTED_LIVE = (
    ExpectedJob("{a}", "succeeded", "", "success", 1, (1,), "first_start", closed=True),
)


def _history(zone: str, *rows: AccountingRow) -> tuple[Action, ...]:
    return (account(*rows), feed(f"TZ={zone}", "--since", "2026-03-01"), poll())


def _live(zone: str, why: str) -> Situation:
    return Situation(
        f"a feed in {zone}",
        why,
        (feed(f"TZ={zone}"), *LIVE),
        EXPECTED_LIVE,
        ("why.zone", "5.utc"),
        exclusive=True,
    )


AUTUMN = utc("2026-10-25T00:00:00")  # Berlin: 03:00 CEST becomes 02:00 CET at 01:00 UTC
SPRING = utc("2026-03-29T00:00:00")  # Berlin: 02:00 CET becomes 03:00 CEST at 01:00 UTC
NEW_YORK = utc("2026-11-01T05:00:00")  # 02:00 EDT becomes 01:00 EST at 06:00 UTC

SITUATIONS = (
    _live(
        "America/New_York",
        "The unit of the feed inherits the head node's zone; records are not five hours off.",
    ),
    _live("Asia/Kolkata", "Half an hour counts too."),
    _live(
        "Pacific/Kiritimati", "Fourteen hours ahead: no end lies in the future, so none is refused."
    ),
    Situation(
        "the hour that is twice",
        "A run from 02:30 CEST to 02:30 CET took an hour, though sacct in Berlin prints the "
        "same time twice.",
        _history("Europe/Berlin", AccountingRow(930_001, AUTUMN, AUTUMN + 1800, AUTUMN + 5400)),
        (ExpectedJob("930001", "succeeded", "", "success", 1, 8 * 3600.0, 1800.0, closed=True),),
        ("show.dst", "5.utc"),
        exclusive=True,
    ),
    Situation(
        "an end before its start by the clock on the wall",
        "From 02:50 CEST to 02:10 CET are twenty minutes, and not minus forty.",
        _history("Europe/Berlin", AccountingRow(930_002, AUTUMN, AUTUMN + 3000, AUTUMN + 4200)),
        (ExpectedJob("930002", "succeeded", "", "success", 1, 8 * 1200.0, 3000.0, closed=True),),
        ("show.dst", "5.utc"),
        exclusive=True,
    ),
    Situation(
        "the hour that is not there",
        "From 01:30 CET to 03:30 CEST is one hour.",
        _history("Europe/Berlin", AccountingRow(930_003, SPRING, SPRING + 1800, SPRING + 5400)),
        (ExpectedJob("930003", "succeeded", "", "success", 1, 8 * 3600.0, 1800.0, closed=True),),
        ("show.dst", "5.utc"),
        exclusive=True,
    ),
    Situation(
        "a wait over the change of New York",
        "Submitted at 01:30 EDT, started at 01:30 EST: the wait is an hour.",
        _history(
            "America/New_York",
            AccountingRow(930_004, NEW_YORK + 1800, NEW_YORK + 5400, NEW_YORK + 5460),
        ),
        (ExpectedJob("930004", "succeeded", "", "success", 1, 480.0, 3600.0, closed=True),),
        ("show.dst",),
        exclusive=True,
    ),
    Situation(
        "a requeue over the change",
        "The second run begins, by the wall, before the first one: the order is accounting's, "
        "the attempts are two.",
        _history(
            "Europe/Berlin",
            AccountingRow(930_005, AUTUMN, AUTUMN + 3000, AUTUMN + 3540, "REQUEUED"),
            AccountingRow(930_005, AUTUMN + 3540, AUTUMN + 3660, AUTUMN + 3960, "COMPLETED"),
        ),
        (
            ExpectedJob(
                "930005", "succeeded", "", "success", 2, 8 * (540.0 + 300.0), 3000.0, closed=True
            ),
        ),
        ("show.dst", "1.attempt"),
        exclusive=True,
    ),
    Situation(
        "a zone nobody knows",
        "TZ names no zone of the machine; libc takes UTC silently, and so the record is right.",
        (feed("TZ=Mars/Olympus"), *LIVE),
        EXPECTED_LIVE,
        ("why.zone",),
        exclusive=True,
    ),
)
