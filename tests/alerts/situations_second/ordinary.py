"""Ordinary days: work goes on, or stops as somebody wanted, and nobody is woken.

What the published records of large runs have daily is here beside the list of requirements: restarts that
heal themselves (Llama 3: 419 in 54 days on 16,384 GPUs), failures of users (Acme: 40 % of jobs),
evaluations, preemption (Bamboo), fail-slows of minutes (Greyhound), repairs of nodes (OPT, Imbue).
"""

from .judge import Case, Expectation, ticket
from .world import World, job

TEN = {f"J{number}": job(1) for number in range(1, 11)}


def two() -> World:
    """Jobs A and B of two nodes each, n1 to n4."""
    return World()


def ordinary(name: str, world: World, hours: float = 2, *expectations: Expectation) -> Case:
    """No page; tickets are free."""
    return Case(name, world, hours, expectations)


def silent(name: str, world: World, hours: float = 2) -> Case:
    """No page, no ticket."""
    return Case(name, world, hours, is_quiet=True)


def again(
    world: World,
    block: str,
    minutes: range,
    lasts: float,
    *values: object,
    **named: object,
) -> World:
    """A block at each of several minutes."""
    for minute in minutes:
        getattr(world, block)(*values, at=minute, until=minute + lasts, **named)
    return world


PARTS = [
    ordinary("a port flaps for 25 s under a job", two().port("n1", "flapping", 30, 31, verdict="degraded")),
    ordinary("a port flaps every eight minutes", again(two(), "port", range(20, 201, 8), 1, "n1", "flapping", verdict="degraded"), 4, ticket("n1", 20, 120)),
    ordinary("an idle node's port flaps all day", again(World(idle=2), "port", range(20, 201, 8), 1, "n5", "flapping", verdict="degraded"), 4),
    ordinary("a site below default power for life", two().throttled("n1|n2|n3|n4", "sw_power_cap", reason="power_capped"), 8),
    ordinary("a power brake of two minutes", two().throttled("n1", "hw_power_brake", 30, 32, reason="slowdown")),
    ordinary("one hot node whose job is as quick as ever", two().throttled("n1", "sw_thermal", 30), 3),
    ordinary("three optics dead on idle nodes", World(idle=4).port("n5", "down").port("n6", "down").port("n7", "down"), 6),
    ordinary("a dead optic that the job routes around", two().port("n2", "down", 30), 4, ticket("n2", 30, 60)),
    ordinary("two dead optics under two jobs that route around", two().port("n2", "down", 30).port("n3", "down", 90), 4),
    ordinary("a port at half its rate under a job that does not need it", two().port("n1", "rate", 20, verdict="degraded"), 3),
    ordinary("a GPU's slow link under a job that does not need it", two().gpu("n1", "nvlink_slow", 20), 3),
    ordinary("a PCIe link below its width on an idle node", World(idle=1).gpu("n5", "pcie_below_max", 20), 3),
    ordinary("corrected memory errors wait for a reset", two().gpu("n3", "remap_pending", 20), 4, ticket("n3", 20, 60)),
    ordinary("a GPU dies on an idle node", World(idle=1).gpu("n5", "lost", 30, verdict="failed"), 3, ticket("n5", 30, 60)),
    ordinary("an idle node loses power", World(idle=1).lost("n5", 30), 3),
    ordinary("an idle node reboots", World(idle=1).lost("n5", 30, 42)),
    ordinary("an application's Xid, and the job goes on", two().xid("n1", 31, "error", 30, kind="application")),
    ordinary("the filer is slow for three minutes", two().filer(0.5, 30, 33)),
    silent("the fabric is slow for four minutes", two().slow("A", 1.5, 30, 34)),
    silent("segments are sent again, nothing is slower", two().bend('lockstep_host_job_tcp_retransmits_total{job_id="A"}', "+20 every 1s", 30, 60)),
]  # fmt: skip

WORK = [
    ordinary("a spot node is given back under an elastic job", World({"A": job(4), "B": job(2)}).event("node leaves", 30, node="n4").requeue("A", 30, 32).bend('lockstep_train_world_ranks{job_id="A"}', "24", 32), 3),
    ordinary("five spot nodes in turn", World({"A": job(6)}).event("node leaves", 30, 90, node="n4").event("node leaves", 60, 150, node="n5").event("node leaves", 120, 180, node="n6"), 4),
    silent("a spare node waits by design", World({"A": job(3)}).event("ranks are in state", job="A", state="init", local_ranks="8").event("ranks are in state", 0, job="A", state="init", local_ranks="8").bend('{__name__=~"lockstep_train_(steps|phase_seconds|goodput_seconds|tokens|samples).*",node="n3"}', "+0 every 60s").bend('lockstep_train_ranks{node=~"n1|n2",state="training"}', "8").bend('lockstep_train_ranks{node=~"n1|n2",state="init"}', "0"), 4),
    silent("overflows of loss scaling by design", two().counts("nonfinite_steps_total", "A", "+1 every 200s", 0), 4),
    ordinary("one NaN, and the optimizer skips it", two().counts("nonfinite_steps_total", "A", "+8 every 60s", 30, 31)),
    ordinary("a spike of the loss that heals", two().counts('loss_anomalies_total{anomaly="spike"', "A", "+8 every 60s", 30, 31).counts('loss_anomalous_ranks{anomaly="spike"', "A", "8", 30, 35)),
    silent("an evaluation of forty minutes", two().pause("A", "eval", 30, 70)),
    silent("an evaluation of twenty-five minutes each hour", two().pause("A", "eval", 30, 55).pause("A", "eval", 90, 115).pause("A", "eval", 150, 175), 4),
    silent("two hours of evaluation between checkpoints of half an hour", two().pause("A", "eval", 45, 165), 5),
    ordinary("preempted and queued for five hours", two().requeue("A", 60, 360), 9),
    ordinary("three preemptions in a night", two().requeue("A", 60, 68).requeue("A", 150, 158, 2).requeue("A", 240, 248, 3), 6),
    silent("checkpoints every eight hours", World({"A": job(2, checkpoint=28800)}), 10),
    ordinary("an interval four times as long after a resume", World({"A": job(2, checkpoint=900)}).requeue("A", 120, 124).bend('lockstep_train_last_durable_checkpoint_timestamp_seconds{job_id="A"}', "now floor 60m", 124).bend('lockstep_train_checkpoints_total{job_id="A",outcome="ok"}', "+1 every 60m", 124), 7),
    ordinary("a checkpoint fails, the next is durable", two().no_checkpoints("A", 55, 85, "failed"), 4),
    silent("a short job without checkpoints", World({"A": job(1), "B": job(2)}).never_checkpoints("A").away("A", 0, 10).away("A", 100, ended=True), 3),
    silent("a checkpoint stops the steps for four minutes", two().pause("A", "checkpoint", 60, 64), 3),
    silent("a planned power-down of all", two().away("A", 60, 200, ended=True).away("B", 60, 200, ended=True).event("node leaves", 62, 195, node="n[1-4]"), 6),
    ordinary("a power-down at which jobs are stopped mid-interval", World({"A": job(2, checkpoint=7200)}).away("A", 100, 300).event("node is cordoned", 90, 300, node="n[12]").event("node leaves", 102, 298, node="n[12]"), 9),
    silent("notebooks at night", World(idle=2).notebook("n5", 2).notebook("n6", 1), 6),
    silent("somebody's interactive session stands over lunch", World({"A": job(1, klass="interactive"), "B": job(2)}).stands("A", 60), 5),
    silent("an interactive session of eight GPUs hangs", World({"A": job(1, klass="interactive"), "B": job(2)}).hang("A", 60), 3),
    silent("an interactive session with a straggler", World({"A": job(1, klass="interactive"), "B": job(2)}).straggler("A", 60), 3),
    silent("a job that only evaluates", World({"A": job(2), "B": job(2)}).pause("A", "eval", 0, 600).bend('{__name__=~"lockstep_train_(checkpoint|last_durable).*",job_id="A"}', "absent"), 3),
    silent("work without GPUs", World({"A": job(2), "B": job(1)}).bend('{__name__=~"lockstep_gpu.*",node="n3"}', "absent").bend('{__name__=~"lockstep_train.*",job_id="B"}', "absent"), 3),
    silent("a sweep of short jobs", again(World(TEN), "event", range(10, 101, 12), 5, "job is away", job="J[1-9]"), 3),
    ordinary("somebody seeks the largest batch", two().pause("A", "init", 20, 31).counts("out_of_memory_total", "A", "+1 every 60s", 20, 30), 2),
    silent("the last node pulls its image for twelve minutes", World({"A": job(4)}).away("A", 0, 20).pause("A", "init", 20, 32), 2),
    silent("start-up of fifteen minutes at a thousand ranks' pace", World({"A": job(8, step=12)}).away("A", 0, 20).pause("A", "init", 20, 35), 3),
    ordinary("mixed models that the owner asked for", two().model("n1", "NVIDIA A100-SXM4-80GB"), 3),
    silent("steps of five minutes", World({"A": job(2, step=300)}), 5),
    silent("steps of two minutes, one of them twice as long", World({"A": job(2, step=120)}).stands("A", 60, 62), 4),
    silent("a compilation holds the steps for six minutes", two().pause("A", "init", 30, 36)),
    silent("a job ends well", two().away("A", 60, ended=True), 3),
    silent("somebody cancels a job", two().away("A", 60), 3),
    ordinary("a user's failure", two().away("A", 60).bend('lockstep_ledger_jobs_finished_total{failure_class="user"}', "+1 every 60s", 60, 61), 3),
    ordinary("twenty failures of users in a day", again(two(), "bend", range(30, 331, 15), 1, 'lockstep_ledger_jobs_finished_total{failure_class="user"}', "+1 every 60s"), 6),
    ordinary("a GPU fails, the job resumes in five minutes", two().xid("n1", 79, "fatal", 60).requeue("A", 60, 65, back=49800), 4),
    ordinary("HBM fails, a spare node takes over in eight minutes", World({"A": job(2), "B": job(2)}, idle=1).gpu("n1", "uncorrected_ecc", 60, verdict="failed").requeue("A", 60, 68), 4),
    ordinary("a node is drained after its job has ended", two().away("A", 60, ended=True).event("node is cordoned", 65, node="n1").lost("n1", 75, 110), 3),
    silent("a straggler of four minutes", two().straggler("A", 60, 64), 3),
    silent("a curriculum makes steps longer by a third", two().slow("A", 1.15, 60, 120, phase="forward").slow("A", 1.3, 120, phase="forward"), 4),
    silent("a loader warms for three minutes after each evaluation", two().pause("A", "eval", 30, 40).slow("A", 1.5, 40, 43, phase="data").pause("A", "eval", 90, 100).slow("A", 1.5, 100, 103, phase="data"), 3),
    silent("a pipeline stands for two minutes in each quarter", again(two(), "stands", range(30, 151, 15), 1, "A"), 4),
]  # fmt: skip

SCRAPING = [
    silent("up has no label cluster", two().up_without_cluster(), 3),
    silent("each agent is scraped by two jobs", two().scraped_twice(), 3),
    silent("both at once, and one scrape fails", two().up_without_cluster().scraped_twice().event("scrape fails", 60, 61, node="n2"), 3),
    silent("a slow group of somebody else", two().add('prometheus_rule_group_last_duration_seconds{rule_group="kube-apiserver",job="prometheus",instance="prometheus-0:9090"}', "95").add('prometheus_rule_group_interval_seconds{rule_group="kube-apiserver",job="prometheus",instance="prometheus-0:9090"}', "60"), 3),
    silent("failing rules of somebody else", two().add('prometheus_rule_evaluation_failures_total{rule_group="node-exporter",job="prometheus",instance="prometheus-0:9090"}', "0 +1 every 60s"), 3),
    silent("a restored backup of the ledger", two().restored(60), 4),
    silent("counters of a job begin again", two().event("counters begin again", 60, job="A"), 4),
    silent("two clusters in one store with equal names", two().twins(), 3),
    silent("the same, and one of them evaluates", two().twins().event("job stands", 30, 60, job="A", cluster="south").event("ranks are in state", 30, 60, job="A", cluster="south", state="eval", local_ranks="8"), 3),
    silent("the first hours of a Prometheus, with an evaluation", two().event("Prometheus is away", 0, 15).pause("A", "eval", 40, 65), 3),
    ordinary("the first hours of a Prometheus, with a requeue", two().event("Prometheus is away", 0, 15).requeue("A", 40, 52), 3),
    silent("Prometheus is away for ten minutes", two().event("Prometheus is away", 60, 70), 3),
    silent("a rollout of agents", two().event("agents restart", 60, 61, node="n1").event("agents restart", 62, 63, node="n2").event("agents restart", 64, 65, node="n3").event("agents restart", 66, 67, node="n4"), 3),
    silent("an empty Prometheus sees what was counted before it", two().bend("lockstep_train_nonfinite_steps_total", "41").bend('lockstep_train_restores_total{restore="fallback"}', "3").bend('lockstep_train_checkpoints_total{outcome=~"invalid|failed"}', "2").bend("lockstep_train_out_of_memory_total", "4").event("Prometheus is away", 0, 5), 1),
    silent("one scrape fails everywhere", two().event("scrape fails", 60, 61), 3),
    ordinary("one agent is away for twenty minutes", two().event("scrape fails", 60, 80, node="n2"), 3),
    silent("kube-state-metrics is away", two().event("kube-state-metrics is away", 60, 75), 3),
    silent("the ledger restarts", two().event("ledger is away", 60, 63), 3),
    silent("an autoscaler takes idle nodes", World(idle=6).event("node leaves", 30, node="n[789]"), 3),
    silent("a cluster without Kubernetes, a target removed with its node", World(idle=2, kube=False).event("node leaves", 30, node="n6"), 3),
    silent("a cluster without a ledger", two().event("ledger is away", 0).bend('{job="lockstep-ledger"}', "absent"), 3),
    silent("one requeue in a quiet month", two().requeue("A", 60, 64).bend('lockstep_ledger_requeues_total{requeued_after="infra"}', "+1 every 60s", 64, 65), 6),
    silent("a replay of yesterday's events", two().bend('lockstep_ledger_events_total{ingest="duplicate"}', "+50 every 1s", 60, 70), 3),
    silent("the queue waits behind large jobs", two().bend('lockstep_ledger_jobs{job_status="pending"}', "40", 30), 6),
]  # fmt: skip

ORDINARY = [*PARTS, *WORK, *SCRAPING]
