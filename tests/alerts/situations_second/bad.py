"""Bad days: work is being lost, and the right people hear of it once, in time, whatever else stands."""

from .judge import (
    AT_RISK,
    BLIND,
    CLUSTER,
    LOSING,
    NOT_PROGRESSING,
    NOTICE,
    Case,
    Expectation,
    page,
    ticket,
)
from .ordinary import again, two
from .world import World, job

STOPS = (NOT_PROGRESSING,)
# A loss of all jobs on a part is the cluster's page, or one page a job where nothing is in common.
SIX = {name: job(2) for name in "ABCDEF"}


def bad(name: str, world: World, hours: float, *expectations: Expectation) -> Case:
    """Exactly these pages, each once; tickets are free."""
    return Case(name, world, hours, expectations, is_ordinary=False)


def six() -> World:
    """Six jobs of two nodes each, n1 to n12."""
    return World(SIX)


def hangs(name: str, world: World, job_id: str = "A", at: float = 90) -> Case:
    """The world, and then a hang of a job, which is paged within 15 minutes."""
    return bad(name, world.hang(job_id, at), at / 60 + 1.5, page(STOPS, job_id, at, 15))


def lags(name: str, world: World, job_id: str = "A", at: float = 90) -> Case:
    """The world, and then a straggler that costs 6 of 16 GPUs, which is paged within 45 minutes."""
    return bad(name, world.straggler(job_id, at), at / 60 + 2, page(LOSING, job_id, at, 45))


# What stands, for hours or days, when the worse thing comes.
STANDING = [
    hangs("a GPU's slow link is a ticket, then its job hangs", two().gpu("n1", "nvlink_slow", 10)),
    hangs("a hot GPU is a ticket, then its job hangs", two().throttled("n1", "sw_thermal", 10)),
    hangs("power is capped everywhere, then a job hangs", two().throttled("n1|n2|n3|n4", "sw_power_cap", reason="power_capped")),
    hangs("three optics are known to be dead, then a job hangs", World({"A": job(2), "B": job(2)}, idle=4).port("n5", "down").port("n6", "down").port("n7", "down")),
    hangs("a dead optic under the very job, then it hangs", two().port("n1", "down", 10)),
    hangs("a port at half its rate, then its job hangs", two().port("n2", "rate", 10, verdict="degraded")),
    hangs("an Xid was noticed, then the job hangs", two().xid("n1", 63, "notice", 10, kind="memory")),
    hangs("a row waits to be remapped, then the job hangs", two().gpu("n2", "remap_pending", 10)),
    hangs("checkpoints have failed for an hour, then the job hangs", two().no_checkpoints("A", 30, 88, "failed")),
    hangs("the owner has a ticket for uneven loss, then the job hangs", two().counts('loss_anomalous_ranks{anomaly="spike"', "A", "8", 10)),
    hangs("the loader is slow, then the job hangs", two().slow("A", 1.5, 20, 90, phase="data")),
    hangs("the filer is slow, then a job hangs", two().filer(0.4, 20, 150)),
    hangs("another job hangs since the morning under a silence", two().hang("B", 20).silence(60)),
    hangs("another node is gone since the morning under a silence", World({"A": job(2), "B": job(1)}).lost("n3", 20).silence(60)),
    hangs("a straggler is silenced for the week, then its job hangs", two().straggler("A", 10, 90).silence(80), at=90),
    hangs("an agent of an idle node is down, then a job hangs", World({"A": job(2), "B": job(2)}, idle=1).event("scrape fails", 10, node="n5")),
    hangs("the queue has a ticket, then a job hangs", two().bend('lockstep_ledger_jobs{job_status="pending"}', "60", 10)),
    hangs("the ledger is away, then a job hangs", two().event("ledger is away", 85)),
    lags("a hot GPU and the straggler that it makes", two().throttled("n1", "sw_thermal", 10)),
    lags("power is capped, then a straggler", two().throttled("n1|n2|n3|n4", "sw_power_cap", reason="power_capped")),
    lags("a GPU's slow link, then a straggler", two().gpu("n1", "nvlink_slow", 10)),
    lags("another job hangs under a silence, then a straggler", two().hang("B", 20).silence(60)),
    bad("a checkpoint is overdue under a ticket of its filer", two().filer(0.4, 20).no_checkpoints("A", 55, 400, "failed"), 6, page(AT_RISK, "A", 60, 240)),
    bad("two pages are silenced, then a node is lost under a third job", World({"A": job(2), "B": job(2), "C": job(1)}).hang("A", 20).straggler("B", 20).silence(100).lost("n5", 120), 3.5, page(STOPS, "C", 120, 20)),
]  # fmt: skip
SEEN_BEFORE = {
    "the ledger is away, then a job hangs": (page(BLIND, "", 85, 60),),  # pages that come before somebody silences them
    "another job hangs since the morning under a silence": (page(STOPS, "B", 20, 15),),
    "another node is gone since the morning under a silence": (page(STOPS, "B", 20, 20),),
    "a straggler is silenced for the week, then its job hangs": (page(LOSING, "A", 10, 45),),
    "another job hangs under a silence, then a straggler": (page(STOPS, "B", 20, 15),),
    "two pages are silenced, then a node is lost under a third job": (page(STOPS, "A", 20, 15), page(LOSING, "B", 20, 45)),
}  # fmt: skip

STOPPED = [
    hangs("a hang", two()),
    hangs("a hang of eight nodes", World({"A": job(8), "B": job(1)})),
    hangs("a hang of one node", World({"A": job(1), "B": job(3)})),
    hangs("a hang with steps of a minute", World({"A": job(2, step=30), "B": job(2)})),
    bad("a hang with steps of five minutes", World({"A": job(2, step=300), "B": job(2)}).hang("A", 120), 7, page(STOPS, "A", 120, 150)),
    bad("two jobs hang, half an hour apart", two().hang("A", 60).hang("B", 90), 3, page(STOPS, "A", 60, 15), page(STOPS, "B", 90, 15)),
    bad("a hang that is mended, and comes again", two().hang("A", 60, 100).requeue("A", 100, 105).hang("A", 160, 200), 4.5, page(STOPS, "A", 60, 15), page(STOPS, "A", 160, 15)),
    bad("an evaluation that does not end", two().pause("A", "eval", 60), 4, page(STOPS, "A", 60, 100)),
    bad("a checkpoint that is never written", two().pause("A", "checkpoint", 60), 4, page(STOPS, "A", 60, 100)),
    bad("a job that never takes its first step", World({"A": job(2), "B": job(2)}).away("A", 0, 60).pause("A", "init", 60), 4, page(STOPS, "A", 60, 100)),
    bad("the last node never pulls its image", World({"A": job(4)}).away("A", 0, 30).pause("A", "init", 30).bend('{__name__=~"lockstep_train.*",node="n4"}', "absent"), 3.5, page(STOPS, "A", 30, 100)),
    bad("a node is lost under a job of two", two().lost("n1", 60).stands("A", 60), 2.5, page(STOPS, "A", 60, 20)),
    bad("a node is lost under a job of one", World({"A": job(1), "B": job(2)}).lost("n1", 60), 2.5, page(STOPS, "A", 60, 20)),
    bad("the same without Kubernetes", World({"A": job(1), "B": job(2)}, kube=False).lost("n1", 60), 2.5, page(STOPS, "A", 60, 20)),
    bad("both nodes of a job are lost, without Kubernetes", World(kube=False).lost("n[12]", 60), 2.5, page((NOT_PROGRESSING, CLUSTER), "", 60, 20)),
    bad("a node is lost under steps of five minutes, without Kubernetes", World({"A": job(2, step=300), "B": job(2)}, kube=False).lost("n2", 120).stands("A", 120), 5, page(STOPS, "A", 120, 60)),
    bad("a node is lost under a job whose other node waits", World({"A": job(2, step=60), "B": job(2)}, kube=False).lost("n1", 60).stands("A", 60), 3, page(STOPS, "A", 60, 40)),
    bad("a node's target is removed with the node, under a job", World({"A": job(2), "B": job(1)}, kube=False).event("node leaves", 60, node="n1").stands("A", 60), 3, page(STOPS, "A", 60, 30)),
    bad("a GPU falls off the bus and the job hangs", two().gpu("n1", "lost", 60, verdict="failed").xid("n1", 79, "fatal", 60).hang("A", 60), 2.5, page(STOPS, "A", 60, 15)),
    bad("a port goes down and the job hangs", two().port("n2", "down", 60).hang("A", 60), 2.5, page(STOPS, "A", 60, 15)),
    bad("torchelastic restarts a job each half hour, all night", two().restarts("A", 60, 600, 30), 10, page(STOPS, "A", 60, 180)),
    bad("a job that dies every six minutes", two().restarts("A", 60, 240, 6, pause=2), 4.5, page(STOPS, "A", 60, 90)),
    bad("requeued each hour to the same checkpoint", two().restarts("A", 60, 600, 60, pause=6), 10, page((*STOPS, LOSING), "A", 60, 300)),
    bad("an evaluation ends, and then the job hangs", two().pause("A", "eval", 30, 60).hang("A", 60), 2.5, page(STOPS, "A", 60, 20)),
    hangs("a hang where up has no cluster", two().up_without_cluster()),
    hangs("a hang where two jobs scrape", two().scraped_twice()),
    hangs("a hang after a restored backup", two().restored(60)),
    hangs("a hang beside agents that restart", again(two(), "event", range(85, 101, 4), 1, "agents restart", node="n4")),
    hangs("a hang in the first hour of a Prometheus", two().event("Prometheus is away", 0, 10), at=30),
    bad("the southern of two jobs with one name hangs", two().twins().hang("A", 60, cluster="south"), 2.5, page(STOPS, "A", 60, 15, cluster="south")),
    bad("a production job of four GPUs hangs", World({"A": job(1, klass="production"), "B": job(2)}, gpus=4).hang("A", 60), 2.5, page(STOPS, "A", 60, 15)),
]  # fmt: skip

LOST_SHARES = [
    lags("a straggler", two()),
    lags("a straggler of another job and node", two(), "B"),
    lags("a straggler where two jobs scrape", two().scraped_twice()),
    lags("a straggler where up has no cluster", two().up_without_cluster()),
    lags("a straggler after a restored backup", two().restored(60)),
    bad("a whole node is slow", two().straggler("A", 60, rank="[0-7]"), 3, page(LOSING, "A", 60, 45)),
    bad("a straggler that comes and goes every eight minutes", again(two(), "straggler", range(60, 291, 16), 8, "A", factor=2), 5.5, page(LOSING, "A", 60, 120)),
    bad("a straggler of eight nodes at a fifth", World({"A": job(8)}).straggler("A", 60, factor=1.25), 3.5, page(LOSING, "A", 60, 60)),
    bad("a straggler, and then the job hangs", two().straggler("A", 40, 120).hang("A", 120), 3, page(LOSING, "A", 40, 45), page(STOPS, "A", 120, 15)),
    bad("one throttled node takes a job to two thirds", two().throttled("n2", "hw_thermal", 60).straggler("A", 60, rank="8|9|1[0-5]", factor=1.5), 3, page(LOSING, "A", 60, 45)),
    bad("the loader takes four tenths", two().slow("A", 1.7, 60, phase="data"), 5, ticket("A", 60, 200)),
    bad("the loss is not a number any more", two().counts("nonfinite_steps_total", "A", "+8 every 1s", 60), 3, ticket("A", 60, 60)),
    bad("the loss diverges", two().counts('loss_anomalous_ranks{anomaly="divergence"', "A", "8", 60), 3, ticket("A", 60, 90)),
    bad("replicas differ", two().counts("replicas_odd", "A", "1", 60), 3, Expectation((NOTICE,), {"job_id": "A"}, 60, 60)),
    bad("out of memory at each start", two().restarts("A", 60, 160, 10, pause=8).counts("out_of_memory_total", "A", "+1 every 10m", 60), 3.5, Expectation((NOTICE,), {"job_id": "A"}, 60, 120)),
    bad("a contained memory error waits for a reset", two().gpu("n1", "uncorrected_ecc", 60).xid("n1", 94, "error", 60, kind="memory"), 4, ticket("n1", 60, 60)),
    bad("a GPU wants a reset while its job goes on", two().gpu("n3", "reset_required", 60), 4, ticket("n3", 60, 60)),
]  # fmt: skip

AT_RISK_OR_ALL = [
    bad("checkpoints fail", two().no_checkpoints("A", 85, 600, "failed"), 7, page(AT_RISK, "A", 60, 240)),
    bad("checkpoints are invalid", two().no_checkpoints("B", 85, 600, "invalid"), 7, page(AT_RISK, "B", 60, 240)),
    bad("checkpoints silently stop", World({"A": job(4, checkpoint=900), "B": job(1)}).no_checkpoints("A", 85), 6, page(AT_RISK, "A", 60, 200)),
    bad("checkpoints stop after a resume", two().requeue("A", 60, 66).no_checkpoints("A", 66), 7, page(AT_RISK, "A", 60, 300)),
    bad("a job has never written a checkpoint in two days", World({"A": job(4), "B": job(1)}).never_checkpoints("A"), 50, page(AT_RISK, "A", 60, 2900)),
    bad("checkpoints stop, with an evaluation between", two().no_checkpoints("A", 85).pause("A", "eval", 120, 150), 8, page(AT_RISK, "A", 60, 330)),
    bad("a file server answers in 0.4 s to six jobs", six().filer(0.4, 60).slow_all(1.6, 60, phase="data"), 3.5, page(CLUSTER, "", 60, 60)),
    bad("the filer stops and six jobs stand", six().filer(9, 60).stands("[A-F]", 60), 2.5, page(CLUSTER, "", 60, 20)),
    bad("a chiller: four nodes throttled, two jobs at two thirds", two().throttled("n1|n2|n3|n4", "hw_thermal", 60, reason="thermal").slow_all(1.5, 60, phase="backward"), 3.5, page(CLUSTER, "", 60, 60)),
    bad("a power cap that takes a quarter of six jobs", six().throttled("|".join(f"n{n}" for n in range(1, 13)), "sw_power_cap", 60, reason="power_capped").slow_all(1.4, 60, phase="backward"), 3.5, page(CLUSTER, "", 60, 60)),
    bad("the fabric slows six jobs", six().port("n1", "errors", 60, verdict="degraded").port("n5", "errors", 60, verdict="degraded").port("n9", "errors", 60, verdict="degraded").slow_all(1.8, 60, phase="sync"), 3.5, page(CLUSTER, "", 60, 60)),
    bad("a switch dies under four jobs", six().port("n1", "down", 60).port("n3", "down", 60).port("n5", "down", 60).port("n7", "down", 60).stands("[A-D]", 60), 2.5, page(CLUSTER, "", 60, 20)),
    bad("a row of four nodes loses power under two jobs", World(SIX, kube=False).lost("n[1-4]", 60), 2.5, page((CLUSTER, NOT_PROGRESSING), "", 60, 20)),
    bad("the scheduler has started nothing for seven hours", two().away("B", 30, ended=True).bend('lockstep_ledger_jobs{job_status="pending"}', "25", 30).bend('{__name__=~"lockstep_ledger_(jobs|attempts)_started_total"}', "held", 30).bend('lockstep_ledger_jobs{job_status="running"}', "1", 30), 8, page(CLUSTER, "", 30, 420)),
    bad("eight of ten jobs fail by the cluster", two().bend('lockstep_ledger_jobs_finished_total{failure_class="infra"}', "+1 every 20m", 60).bend('lockstep_ledger_slo_events{slo=~"job_success.*",window=~"1h|2h|6h|24h",slo_event="total"}', "20", 60).bend('lockstep_ledger_slo_events{slo=~"job_success.*",window=~"1h|2h|6h|24h",slo_event="good"}', "4", 60).bend('lockstep_ledger_slo_events{slo=~"job_success.*",window=~"5m|30m",slo_event="good"}', "0", 60), 9, page(CLUSTER, "", 60, 420)),
    bad("all agents are down", two().event("scrape fails", 60), 3, page(BLIND, "", 60, 40)),
    bad("all agents are down where up has no cluster", two().up_without_cluster().event("scrape fails", 60), 3, page(BLIND, "", 60, 40)),
    bad("the ledger is away for hours", two().event("ledger is away", 60), 4, Expectation((BLIND, NOTICE), {}, 60, 90)),
    bad("an agent in a crash loop", again(two(), "event", range(60, 301, 3), 2, "agents restart", node="n1"), 5.5, Expectation((NOTICE,), {"node": "n1"}, 60, 120)),
    bad("our rules fail", two().bend('prometheus_rule_evaluation_failures_total{rule_group="lockstep-jobs"}', "+5 every 60s", 60), 3, page(BLIND, "", 60, 60)),
    bad("the whole filer silenced, then a job of its own hangs", six().filer(9, 20).stands("[A-D]", 20).silence(60).hang("F", 90), 3, page(CLUSTER, "", 20, 20), page(STOPS, "F", 90, 15)),
]  # fmt: skip

BAD = [
    Case(
        each.name,
        each.world,
        each.hours,
        (*SEEN_BEFORE.get(each.name, ()), *each.expectations),
        each.is_quiet,
        each.is_ordinary,
    )
    for each in (*STANDING, *STOPPED, *LOST_SHARES, *AT_RISK_OR_ALL)
]
