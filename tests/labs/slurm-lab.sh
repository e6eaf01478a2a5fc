#!/usr/bin/env bash
# A real Slurm for tests on one Debian or Ubuntu machine, as root: slurmctld, slurmdbd with MariaDB, munge and nodes of 8 GPUs
# (devices without a driver). Everything lies in FOLDER and listens on free ports of loopback, so several labs run side by side.
#
#   slurm-lab.sh up FOLDER                 installs the packages where they are missing (else says so and exits 2), starts all
#   slurm-lab.sh down FOLDER               stops all and waits for the end of every process
#   slurm-lab.sh on FOLDER NODE COMMAND... runs a command on a node; its exit status is the command's
#   slurm-lab.sh stop|start FOLDER DAEMON  DAEMON: slurmctld, slurmdbd, mariadbd, munged, or slurmd@NODE (its jobs run on)
#   slurm-lab.sh crash FOLDER NODE         ends all processes of a node at once; `start FOLDER slurmd@NODE` boots it again
#   slurm-lab.sh pid FOLDER DAEMON         prints the process id of a daemon, or of a node's first process (DAEMON: NODE)
#
# Clients then need SLURM_CONF=FOLDER/slurm.conf. A node has its own host name, processes, /run and /dev/shm; the disk is shared.
# SLURM_LAB_CONF: lines that go to the end of slurm.conf. SLURM_LAB_NODES: names of the nodes (default "n1 n2").
# SLURM_LAB_CGROUP=1: jobs are tracked and their memory is limited by cgroup v1; the names of the nodes then have to be the lab's own.
# Partitions: main (default, tier 1), batch (tier 1), grace (tier 1, 10 s grace), urgent (tier 10; requeues jobs of the others).
set -u
PACKAGES=(slurm-wlm slurmdbd mariadb-server munge)
NODES=(${SLURM_LAB_NODES:-n1 n2})

die() { echo "slurm-lab: $*" >&2; exit 1; }

wait_until() { # SECONDS COMMAND...: 0 as soon as the command succeeds
  local tries=$(( $1 * 5 )); shift
  for (( ; tries > 0; tries-- )); do "$@" >/dev/null 2>&1 && return 0; sleep 0.2; done
  return 1
}

install_packages() {
  local program missing=0
  for program in slurmctld slurmd slurmdbd mariadbd munged; do command -v "$program" >/dev/null || missing=1; done
  (( missing )) || return 0
  # The packages would start daemons of their own; a lab starts its own ones only.
  local policy=/usr/sbin/policy-rc.d made=0
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made=1; }
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${PACKAGES[@]}"; } \
    >/dev/null 2>&1; local status=$?
  (( made )) && rm -f $policy
  (( status == 0 )) || { echo "slurm-lab: the packages ${PACKAGES[*]} cannot be installed here by apt-get" >&2; exit 2; }
}

free_ports() { # COUNT: so many TCP ports that nothing listens on and that the kernel does not hand out to clients
  local lowest port found=0; lowest=$(cut -f1 /proc/sys/net/ipv4/ip_local_port_range)
  local taken; taken=" $(awk 'FNR > 1 { split($2, a, ":"); print a[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null \
    | while read -r hex; do echo $((16#$hex)); done | tr '\n' ' ') "
  for port in $(shuf -i "10000-$((lowest - 1))"); do
    case $taken in *" $port "*) continue ;; esac
    echo "$port"; (( ++found == $1 )) && return 0
  done
  return 1
}

write_configuration() {
  local host ports node gpu index=0; host=$(hostname -s)
  mapfile -t ports < <(free_ports $(( 3 + ${#NODES[@]} )))
  (( ${#ports[@]} == 3 + ${#NODES[@]} )) || die "no free ports below the range of clients"
  echo "${ports[2]}" >"$lab/mariadbd.port"
  printf '%s\n' "${NODES[@]}" >"$lab/nodes"
  echo "127.0.0.1 localhost $host ${NODES[*]}" >"$lab/hosts"
  # Slurm numbers GPUs (CUDA_VISIBLE_DEVICES, SLURM_JOB_GPUS) only where they are devices; nobody opens these.
  for gpu in {0..7}; do
    [ -e "$lab/gpu$gpu" ] || mknod "$lab/gpu$gpu" c 195 "$gpu" 2>/dev/null || touch "$lab/gpu$gpu"
  done
  local names; names=$(IFS=,; echo "${NODES[*]}")
  echo "NodeName=$names Name=gpu File=$lab/gpu[0-7]" >"$lab/gres.conf"
  # Slurm refuses a base below /tmp and /dev/shm, where a lab of tests often lies.
  printf 'AutoBasePath=true\nBasePath=%s\n' "$containers" >"$lab/job_container.conf"
  printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\nAllowedSwapSpace=0\n' >"$lab/cgroup.conf"
  cat >"$lab/slurmdbd.conf" <<X
AuthType=auth/munge
AuthInfo=socket=$lab/munge/socket
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=${ports[1]}
SlurmUser=root
LogFile=$lab/log/slurmdbd.log
PidFile=$lab/slurmdbd.own-pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=${ports[2]}
StorageUser=lab
StoragePass=lab
StorageLoc=lab_acct
X
  chmod 600 "$lab/slurmdbd.conf"
  local tracking=proctrack/linuxproc tasks=task/none memory=CR_CPU
  [ "${SLURM_LAB_CGROUP:-0}" = 1 ] && tracking=proctrack/cgroup tasks=task/cgroup memory=CR_CPU_Memory
  cat >"$lab/slurm.conf" <<X
ClusterName=lab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$lab/munge/socket,cred_expire=10
MpiDefault=none
ProctrackType=$tracking
TaskPlugin=$tasks
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
SelectType=select/cons_tres
SelectTypeParameters=$memory
DefMemPerCPU=200
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=${ports[1]}
AccountingStoragePass=$lab/munge/socket
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
FirstJobId=4240
# Short times: a test waits for each of them.
KillWait=10
SlurmdTimeout=15
SlurmctldTimeout=15
MinJobAge=30
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PriorityType=priority/basic
SlurmctldPidFile=$lab/slurmctld.own-pid
SlurmdPidFile=$lab/slurmd.own-pid-%n
SlurmdSpoolDir=$lab/spool-%n
StateSaveLocation=$lab/state
SlurmctldLogFile=$lab/log/slurmctld.log
SlurmdLogFile=$lab/log/slurmd-%n.log
SlurmdParameters=config_overrides
$(for node in "${NODES[@]}"; do
  echo "NodeName=$node NodeAddr=127.0.0.1 Port=${ports[$((3 + index++))]} CPUs=64 RealMemory=64000 Gres=gpu:8 State=UNKNOWN"; done)
PartitionName=DEFAULT Nodes=$names MaxTime=60 DefaultTime=30 State=UP
PartitionName=main Default=YES PriorityTier=1
PartitionName=batch PriorityTier=1
PartitionName=grace PriorityTier=1 GraceTime=10
PartitionName=urgent PriorityTier=10 PreemptMode=OFF
${SLURM_LAB_CONF:-}
X
}

detach() { # NAME COMMAND...: a process of its own session; FOLDER/NAME.pid holds its id
  local name=$1; shift
  setsid nohup "$@" >>"$lab/log/$name.out" 2>&1 </dev/null &
  echo $! >"$lab/$name.pid"
}

# The first process of a node: it reaps what the node's processes leave behind, and its end is the end of them all.
boot_node() {
  alive "$1" && return 0
  detach "$1" unshare --uts --mount --pid --fork --kill-child --propagation private --mount-proc bash -c "
    hostname $1; mount -t tmpfs -o size=1g,mode=1777 shm /dev/shm; mount -t tmpfs -o mode=755 run /run
    mount --bind '$lab/hosts' /etc/hosts; touch /run/booted; while :; do sleep 3600 & wait; done"
  wait_until 10 enter "$1" test -e /run/booted || die "node $1 does not boot; see $lab/log/$1.out"
}

first_process() { # NODE: seen from the machine; unshare is its parent
  local holder; holder=$(cat "$lab/$1.pid" 2>/dev/null) || return 1
  cat "/proc/$holder/task/$holder/children" 2>/dev/null | awk '{ print $1 }' | grep .
}

enter() { # NODE COMMAND...
  local node=$1 first; shift
  first=$(first_process "$node") || { echo "slurm-lab: node $node is down" >&2; return 255; }
  nsenter -t "$first" --uts --mount --pid -- "$@"
}

start_daemon() {
  case $1 in
    munged)
      # munge trusts a folder only where nobody else may write into it.
      install -d -m 755 -o munge -g munge "$lab/munge"
      [ -f "$lab/munge/key" ] || { mungekey -c -k "$lab/munge/key"; chown munge:munge "$lab/munge/key"; }
      detach munged setpriv --reuid munge --regid munge --clear-groups munged --foreground --force --num-threads=10 \
        --socket="$lab/munge/socket" --key-file="$lab/munge/key" --pid-file="$lab/munge/pid" --seed-file="$lab/munge/seed" \
        --log-file="$lab/munge/log"
      wait_until 10 munge -S "$lab/munge/socket" -n ;;
    mariadbd)
      detach mariadbd mariadbd --no-defaults --user=mysql --datadir="$lab/data" --tmpdir="$lab/tmp" --socket="$lab/data/socket" \
        --bind-address=127.0.0.1 --port="$(cat "$lab/mariadbd.port")" --pid-file="$lab/data/pid"
      wait_until 30 sql 'select 1' ;;
    slurmdbd)
      detach slurmdbd env SLURM_CONF="$lab/slurm.conf" slurmdbd -D
      wait_until 20 timeout 5 sacctmgr -n show cluster ;;
    slurmctld)
      detach slurmctld slurmctld -D -f "$lab/slurm.conf"
      wait_until 20 sh -c 'timeout 5 scontrol ping | grep -q "is UP"' ;;
    slurmd@*)
      boot_node "${1#*@}"; first=$(first_process "${1#*@}")
      detach "$1" nsenter -t "$first" --uts --mount --pid -- slurmd -D -N "${1#*@}" -f "$lab/slurm.conf"
      wait_until 30 node_answers "${1#*@}" ;;
    *) die "no daemon $1" ;;
  esac || die "$1 does not start; see $lab/log"
}

sql() { mariadb -S "$lab/data/socket" -e "$1"; }
node_answers() { timeout 5 sinfo -h -n "$1" -o %t | grep -qE '^(idle|mix|alloc|comp|drain|drng)$'; }
alive() { local pid; pid=$(cat "$lab/$1.pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null; }
gone() { ! alive "$1"; }

signal_process() { # NAME SIGNAL: nsenter forks into a node's processes, so its child is the daemon
  local pid children; pid=$(cat "$lab/$1.pid" 2>/dev/null) || return 0
  [[ $1 == slurmd@* ]] && children=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null) && [ -n "$children" ] && pid=$children
  kill "-$2" $pid 2>/dev/null
}

stop_process() { # NAME: asks, waits, and insists
  alive "$1" && { signal_process "$1" TERM; wait_until 15 gone "$1" || { signal_process "$1" KILL; wait_until 5 gone "$1"; }; }
  rm -f "$lab/$1.pid"
}

crash_node() {
  local first; first=$(first_process "$1") || return 0
  kill -KILL "$first"; wait_until 10 gone "$1"; rm -f "$lab/$1.pid" "$lab/slurmd@$1.pid"
}

bring_up() {
  (( EUID == 0 )) || die "starting a Slurm needs root"
  [ -e "$lab/slurm.conf" ] && alive slurmctld && die "a lab runs in $lab; take it down first"
  case "$lab/ ${SLURM_LAB_CONF:-}" in /tmp/*job_container/tmpfs*)
    die "job_container/tmpfs hides /tmp from jobs, and the scripts of jobs with it: take a folder elsewhere, as /var/tmp" ;; esac
  install_packages
  mkdir -p "$lab"/{state,log,data,tmp} "$containers"; chmod 755 "$lab"
  local node; for node in "${NODES[@]}"; do mkdir -p "$lab/spool-$node"; done
  write_configuration
  start_daemon munged
  chown mysql "$lab/data" "$lab/tmp"
  # A starting server removes the temporary tables of another one in the same folder.
  [ -d "$lab/data/mysql" ] || TMPDIR="$lab/tmp" mariadb-install-db --no-defaults --user=mysql --datadir="$lab/data" --skip-test-db \
    --auth-root-authentication-method=socket >"$lab/log/install-db.out" 2>&1 || die "MariaDB's tables cannot be created"
  start_daemon mariadbd
  sql "create user if not exists lab@'127.0.0.1' identified by 'lab'; create user if not exists lab@localhost identified by 'lab';
    grant all on lab_acct.* to lab@'127.0.0.1'; grant all on lab_acct.* to lab@localhost"
  start_daemon slurmdbd
  { sacctmgr -i add cluster lab; sacctmgr -i add account vision,speech
    sacctmgr -i add qos pretraining,debug; sacctmgr -i add user root account=vision,speech
    sacctmgr -i modify user root set qos=normal,pretraining,debug; } >"$lab/log/sacctmgr.out" 2>&1
  start_daemon slurmctld
  for node in "${NODES[@]}"; do start_daemon "slurmd@$node"; done
  echo "export SLURM_CONF=$lab/slurm.conf"
}

take_down() {
  local node daemon
  timeout 5 squeue -h -o %A 2>/dev/null | xargs -r timeout 5 scancel 2>/dev/null
  mapfile -t NODES < <(cat "$lab/nodes" 2>/dev/null)
  for node in "${NODES[@]}"; do stop_process "slurmd@$node"; crash_node "$node"; done
  for daemon in slurmctld slurmdbd mariadbd munged; do stop_process "$daemon"; done
  rm -rf "$containers"
  find /sys/fs/cgroup -depth -type d \( $(printf -- '-path */slurm_%s* -o ' "${NODES[@]}") -false \) -exec rmdir {} + 2>/dev/null
  return 0
}

action=${1:-}; lab=$(realpath -m "${2:?usage: slurm-lab.sh up|down|on|stop|start|crash|pid FOLDER ...}")
export SLURM_CONF=$lab/slurm.conf
containers=/var/tmp/slurm-lab-$(echo "$lab" | cksum | cut -d' ' -f1)
case $action in
  up) bring_up ;;
  down) take_down ;;
  on) node=${3:?node}; shift 3; enter "$node" "$@" ;;
  stop) stop_process "${3:?daemon}" ;;
  start) start_daemon "${3:?daemon}" ;;
  crash) crash_node "${3:?node}" ;;
  pid) case ${3:?daemon} in *@* | slurm* | maria* | munged) cat "$lab/$3.pid" ;; *) first_process "$3" ;; esac ;;
  *) die "no action '$action'; there are up, down, on, stop, start, crash and pid" ;;
esac
