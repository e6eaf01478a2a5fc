"""What accounting prints: names that look like columns and rows, and jobs without GPUs."""

from .accounting import utc
from .scenario import ExpectedAbsence, ExpectedJob, ExpectedText, Situation, feed, submit, wait

DAY = utc("2026-11-02T00:00:00")
FORGED = (
    "x|y\n900001|900001|evil|COMPLETED|0:0"
    "|2026-11-01T00:00:00|2026-11-01T00:00:01|2026-11-01T09:00:00"
)
FROM = ("--since", "2026-11-01")

SITUATIONS = (
    Situation(
        "a name with pipes",
        "sacct does not quote: `a|b|c` stays a name and no column moves.",
        (submit("a", "sleep 1", "--job-name=a|b|c", "--gpus=1", "-A", "speech"), wait("a")),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                attempts=1,
                gpu_seconds=(1,),
                queue="main",
                project="speech",
                user="root",
            ),
        ),
        ("why.pipe", "5.text"),
    ),
    Situation(
        "a name with a line break",
        "Half a name on a line of its own is no row.",
        (submit("a", "sleep 1", "--job-name=first\nsecond", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(1,)),),
        ("5.text",),
    ),
    Situation(
        "a forged row in a name",
        "Any user can print a row of any other job into sacct's output; no record comes of it.",
        (submit("a", "sleep 1", f"--job-name={FORGED}", "--gpus=1"), wait("a")),
        (
            ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(1,)),
            ExpectedAbsence("900001"),
        ),
        ("why.forge", "5.text"),
    ),
    Situation(
        "a forged row of a job that exists",
        "The name repeats the row of the neighbour with another end; the neighbour's record is "
        "accounting's.",
        (
            submit("victim", "sleep 2", "--gpus=1"),
            wait("victim"),
            submit(
                "a", "sleep 1", "--job-name=n\n{victim}|{victim}|FAILED|1:0|{victim}", "--gpus=1"
            ),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{victim}", "succeeded", "", attempts=1, gpu_seconds=(1,), disagreement=False
            ),
            ExpectedJob("{a}", "succeeded", ""),
        ),
        ("why.forge", "5.text"),
    ),
    Situation(
        "a comment over several lines",
        "Comments are the users' too, and hold pipes and line breaks.",
        (submit("a", "sleep 1", "--comment=fine|1\n900002|root|FAILED", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "succeeded", ""), ExpectedAbsence("900002")),
        ("5.text",),
    ),
    Situation(
        "control characters and other alphabets in a name",
        "Slurm stores them as they are; the event's rules on texts do not cost the record.",
        (submit("a", "sleep 1", "--job-name=größe 学習\t\x1b[31m`,;", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(1,)),),
        ("5.text",),
    ),
    Situation(
        "a step with a forged name",
        "Names of steps are the users' as well: srun's own job name, with a made-up row.",
        (submit("a", "srun --job-name='s|t\n900003|900003|FAILED' sleep 1", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "succeeded", "", attempts=1), ExpectedAbsence("900003")),
        ("why.forge", "5.text"),
    ),
    Situation(
        "an unused GPU request of none",
        "Two tasks of a CPU array are none of the training jobs.",
        (
            submit("a", "sleep 1", "--array=1-2"),
            submit("b", "sleep 1", "--gpus=1"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedAbsence("{a}_1"),
            ExpectedAbsence("{a}_2"),
            ExpectedAbsence("{a}"),
            ExpectedJob("{b}", "succeeded", ""),
        ),
        ("why.cpu", "5.filter"),
    ),
    Situation(
        "only some partitions",
        "The feed is told the partition of the training jobs; those of the others are not fed.",
        (
            feed("--partition", "batch"),
            submit("a", "sleep 1", "--gpus=1", "-p", "batch"),
            submit("b", "sleep 1", "--gpus=1", "-p", "main"),
            wait("a"),
            wait("b"),
        ),
        (ExpectedJob("{a}", "succeeded", "", queue="batch"), ExpectedAbsence("{b}")),
        ("5.filter",),
        exclusive=True,
    ),
    Situation(
        "CPU jobs that import Lockstep",
        "A job without a GPU that has a page is watched all the same; the feed leaves it to "
        "its page and counts no GPU.",
        # The agent reads the environment of ranks that it sees run: every five seconds.
        (submit("a", "{train} --seconds 15"), wait("a")),
        (ExpectedJob("{a}", gpu_seconds=0.0, attempts=1),),
        ("5.filter",),
    ),
    Situation(
        "the feed's own words of a strange row",
        "A row whose id is none is left out with one sentence, and the rows after it are read.",
        (
            submit("a", "sleep 1", "--job-name=\n|||\n", "--gpus=1"),
            wait("a"),
            submit("b", "sleep 1", "--gpus=1"),
            wait("b"),
        ),
        (
            ExpectedJob("{a}", "succeeded", ""),
            ExpectedJob("{b}", "succeeded", ""),
            ExpectedText("", lacks=("Traceback",), status=None),
        ),
        ("5.text",),
    ),
)
