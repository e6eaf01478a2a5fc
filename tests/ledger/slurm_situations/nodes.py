"""On the nodes: where pages live, and the scripts that Slurm runs there."""

from .scenario import (
    TRAINING,
    ExpectedJob,
    ExpectedNode,
    ExpectedText,
    Situation,
    on_node,
    pause,
    slurm,
    srun,
    submit,
    wait,
)

LONG = "srun {train} --seconds 14"
HEALTH = "HealthCheckProgram={deploy}/healthcheck\nHealthCheckInterval=2\nHealthCheckNodeState=ANY"
PROLOG = "Prolog={deploy}/prolog\nEpilog={deploy}/epilog\nTaskProlog={deploy}/taskprolog"
TMPFS = "JobContainerType=job_container/tmpfs\nPrologFlags=Contain"
PLANT = "mkdir -p /run/lockstep && mount -t tmpfs -o ro none /run/lockstep"
WATCHED = (ExpectedJob("succeeded", attempts=1, watched_on=("{n1}",)),)
JOBS = ExpectedText("{lockstep} jobs", contains=("{a}",), node="{n1}")

SITUATIONS = (
    Situation(
        "pages in /run/lockstep",
        "The tmpfiles entry is installed; the page is there, and nothing lies in /dev/shm.",
        (
            on_node("{n1}", "systemd-tmpfiles --create {deploy}/tmpfiles.conf"),
            submit("a", LONG, "--gpus=1", "-w", "{n1}"),
            *TRAINING,
        ),
        (ExpectedText("find /run/lockstep -path '*{a}*'", contains=("{a}",), node="{n1}"),),
    ),
    Situation(
        "pages in /dev/shm, with the sentence",
        "No /run/lockstep: /dev/shm serves, and a sentence says what harms there.",
        (
            on_node("{n1}", "rm -rf /run/lockstep"),
            srun("a", "{train} --seconds 4", "--gpus=1", "-w", "{n1}"),
            wait("a"),
        ),
        (*WATCHED, ExpectedText("find /dev/shm -path '*{a}*'", contains=("{a}",), node="{n1}")),
    ),
    Situation(
        "a private /dev/shm",
        "job_container/tmpfs: the agent outside the job's mounts sees the job all the same.",
        (
            on_node("{n1}", "systemd-tmpfiles --create {deploy}/tmpfiles.conf"),
            slurm(
                "until timeout 20 srun -w {n1} true; do scontrol update nodename={n1} "
                "state=resume; sleep 1; done"
            ),
            submit("a", LONG, "--gpus=1", "-w", "{n1}"),
            *TRAINING,
            wait("a"),
        ),
        (*WATCHED, JOBS),
        conf=TMPFS,
    ),
    Situation(
        "the owner's last session on the node closes",
        "logind's clean_ipc_by_uid removes what the user has in /dev/shm; the pages of the "
        "running job stay.",
        (
            on_node("{n1}", "systemd-tmpfiles --create {deploy}/tmpfiles.conf"),
            submit("a", LONG, "--gpus=1", "-w", "{n1}", "--uid=nobody"),
            *TRAINING,
            on_node("{n1}", "{logind_clean_ipc} nobody"),
            pause(3),
            wait("a"),
        ),
        (*WATCHED, JOBS),
    ),
    Situation(
        "the task prolog's environment",
        "Job id, folder, cluster, queue and project reach the ranks without a line of the user.",
        (srun("a", "env", "--gpus=1", "-p", "batch", "-A", "vision", "-o", "{out}"), wait("a")),
        (ExpectedText("cat {out}", contains=("LOCKSTEP_JOB_ID={a}", "batch", "vision")),),
        conf=PROLOG,
    ),
    Situation(
        "the GPU map while the job runs, and after",
        "A file a GPU with the job's id, as dcgm-exporter reads it; the epilog takes it away.",
        (submit("a", LONG, "--gpus=2", "-w", "{n1}"), *TRAINING, wait("a"), pause(2)),
        (
            ExpectedText("grep -rl '^{a}$' {gpu_map} | wc -l", contains=("0",), node="{n1}"),
            *WATCHED,
        ),
        conf=PROLOG,
    ),
    Situation(
        "the prolog finds a fault",
        "It is certain: the node is drained with the reason, and the job runs on the other node.",
        (
            on_node("{n1}", PLANT),
            submit("a", "srun {train} --seconds 2", "--requeue", "--gpus=1", "-w", "{n1}"),
            pause(8),
            slurm("scontrol update jobid={a} reqnodelist="),
            pause(2),
        ),
        (ExpectedNode("{n1}", True, "lockstep"), ExpectedNode("{n2}", False)),
        conf=PROLOG,
    ),
    Situation(
        "the health check finds a fault",
        "The program itself asks scontrol to drain; nothing of its output is read by Slurm.",
        (on_node("{n2}", PLANT), pause(6)),
        (ExpectedNode("{n2}", True, "lockstep"), ExpectedNode("{n1}", False)),
        conf=HEALTH,
    ),
    Situation(
        "the health check on a busy node",
        "All GPUs are at work for several rounds; no drain, no load, and the job is as fast as "
        "before.",
        (submit("a", LONG, "-N2", "--gpus-per-node=8"), wait("a")),
        (
            ExpectedNode("{n1}", False),
            ExpectedNode("{n2}", False),
            ExpectedJob("succeeded", attempts=1),
        ),
        conf=HEALTH,
    ),
)
