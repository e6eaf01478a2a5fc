"""On the nodes: where pages live, and the scripts that Slurm runs there."""

from .scenario import (
    ExpectedJob,
    ExpectedNode,
    ExpectedText,
    Situation,
    on_node,
    pause,
    poll,
    slurm,
    srun,
    submit,
    wait,
    watch,
)

LONG = "srun {train} --seconds 14"
HEALTH = "HealthCheckProgram={deploy}/healthcheck\nHealthCheckInterval=2\nHealthCheckNodeState=ANY"
PROLOG = "Prolog={deploy}/prolog\nEpilog={deploy}/epilog\nTaskProlog={deploy}/taskprolog"
TMPFS = "JobContainerType=job_container/tmpfs\nPrologFlags=Contain"
# A fault that a check can be certain of: a file system of the node that has become read-only.
PLANT = "mkdir -p /run/lockstep && mount -t tmpfs -o ro none /run/lockstep"
WATCHED = (ExpectedJob("{a}", "succeeded", "", attempts=1, watched_on=("{n1}",)),)
JOBS = ExpectedText("{lockstep} jobs", contains=("{a}",), node="{n1}")

SITUATIONS = (
    Situation(
        "pages in /run/lockstep",
        "The tmpfiles entry is installed; the page is there, and nothing lies in /dev/shm.",
        (
            on_node("{n1}", "systemd-tmpfiles --create {deploy}/tmpfiles.conf"),
            submit("a", LONG, "--gpus=1", "-w", "{n1}"),
            wait("a", "RUNNING"),
            watch("a"),
        ),
        (ExpectedText("find /run/lockstep -path '*{a}*'", contains=("{a}",), node="{n1}"),),
        ("2.run",),
        exclusive=True,
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
        ("2.fallback",),
        exclusive=True,
    ),
    Situation(
        "a private /dev/shm",
        "job_container/tmpfs: the agent outside the job's mounts sees the job all the same.",
        (
            on_node("{n1}", "systemd-tmpfiles --create {deploy}/tmpfiles.conf"),
            # Slurm 22.05 does not make a container at each first try on a busy machine.
            slurm(
                "until timeout 20 srun -w {n1} true; do scontrol update nodename={n1} "
                "state=resume; sleep 1; done"
            ),
            submit("a", LONG, "--gpus=1", "-w", "{n1}"),
            wait("a", "RUNNING"),
            watch("a"),
            wait("a"),
        ),
        (*WATCHED, JOBS),
        ("show.tmpfs", "why.shm"),
        exclusive=True,
        conf=TMPFS,
    ),
    Situation(
        "the owner's last session on the node closes",
        "logind's clean_ipc_by_uid removes what the user has in /dev/shm; the pages of the "
        "running job stay.",
        (
            on_node("{n1}", "systemd-tmpfiles --create {deploy}/tmpfiles.conf"),
            submit("a", LONG, "--gpus=1", "-w", "{n1}", "--uid=nobody"),
            wait("a", "RUNNING"),
            watch("a"),
            on_node("{n1}", "{logind_clean_ipc} nobody"),
            pause(3),
            wait("a"),
        ),
        (*WATCHED, JOBS),
        ("show.logind", "why.ipc"),
        exclusive=True,
    ),
    Situation(
        "the task prolog's environment",
        "Job id, folder, cluster, queue and project reach the ranks without a line of the user.",
        (srun("a", "env", "--gpus=1", "-p", "batch", "-A", "vision", "-o", "{out}"), wait("a")),
        (ExpectedText("cat {out}", contains=("LOCKSTEP_JOB_ID={a}", "batch", "vision")),),
        ("3.task",),
        exclusive=True,
        conf=PROLOG,
    ),
    Situation(
        "the task prolog of an array's task",
        "Its id is the array's with the task.",
        (submit("a", "srun env", "--gpus=1", "--array=7", "-o", "{out}"), wait("a")),
        (ExpectedText("cat {out}", contains=("LOCKSTEP_JOB_ID={a}_7",)),),
        ("3.task", "1.array"),
        exclusive=True,
        conf=PROLOG,
    ),
    Situation(
        "the GPU map while the job runs, and after",
        "A file a GPU with the job's id, as dcgm-exporter reads it; the epilog takes it away.",
        (
            submit("a", LONG, "--gpus=2", "-w", "{n1}"),
            wait("a", "RUNNING"),
            watch("a"),
            wait("a"),
            pause(2),
        ),
        (
            ExpectedText("grep -rl '^{a}$' {gpu_map} | wc -l", contains=("0",), node="{n1}"),
            *WATCHED,
        ),
        ("3.map",),
        exclusive=True,
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
        ("show.drain", "3.map"),
        exclusive=True,
        conf=PROLOG,
    ),
    Situation(
        "the health check finds a fault",
        "The program itself asks scontrol to drain; nothing of its output is read by Slurm.",
        (on_node("{n2}", PLANT), pause(6)),
        (ExpectedNode("{n2}", True, "lockstep"), ExpectedNode("{n1}", False)),
        ("show.drain", "3.health"),
        exclusive=True,
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
            ExpectedJob("{a}", "succeeded", "", attempts=1),
        ),
        ("show.busy", "3.health"),
        exclusive=True,
        conf=HEALTH,
    ),
    Situation(
        "a doubt is no requeue",
        "A check that cannot read a counter lets the job run: no drain, no held job.",
        (
            on_node(
                "{n1}", "mount -t tmpfs -o mode=000 none /sys/class/infiniband 2>/dev/null; true"
            ),
            submit("a", "srun {train} --seconds 2", "--requeue", "--gpus=1", "-w", "{n1}"),
            wait("a"),
        ),
        (ExpectedNode("{n1}", False), ExpectedJob("{a}", "succeeded", "", attempts=1)),
        ("show.busy",),
        exclusive=True,
        conf=PROLOG,
    ),
    Situation(
        "targets from sinfo",
        "file_sd has the two nodes, and a drained one still: it is measured on.",
        (slurm("scontrol update nodename={n2} state=drain reason=test"), poll()),
        (
            ExpectedText("{deploy}/file-sd {out} && cat {out}", contains=("{n1}", "{n2}")),
            ExpectedNode("{n2}", True, "test"),
        ),
        ("3.sd",),
        exclusive=True,
    ),
    Situation(
        "environ refused",
        "An agent without CAP_SYS_PTRACE may not read /proc/PID/environ: the cgroup's job id "
        "stays.",
        (
            submit("a", LONG, "--gpus=1", "-w", "{n1}", "--uid=nobody"),
            wait("a", "RUNNING"),
            watch("a"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, watched_on=("{n1}",)),),
        ("why.environ",),
        exclusive=True,
        cgroup=True,
    ),
)
