#!/usr/bin/env bash
# One pass over a GPU in eight minutes: run.sh OUT [PART...]. Each part has a limit of time, the rest goes
# on where one fails, and OUT/table.md and OUT/parts.tgz are written after each. Without a GPU a dry run:
# what needs one is "not run"; SLOWER=4 stretches the limits, TOTAL_SECONDS is that of all. Unpacked from collect.sh's archive it installs that first.
cd "$(dirname "$0")" || exit 2
OUT=$(realpath -m "${1:?run.sh OUT [PART...]}"); shift; W=$OUT/parts; mkdir -p "$W"
export PYTHONUNBUFFERED=1 LOCKSTEP_DIR=${LOCKSTEP_DIR:-/dev/shm/lockstep-gpu-node} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
mkdir -p "$LOCKSTEP_DIR"; PY=${PYTHON:-python3}
[ -d wheels ] && $PY -m pip install -q --no-index --no-deps wheels/*.whl >"$W/install.log" 2>&1
if nvidia-smi -L >"$W/gpus.txt" 2>&1; then GPU=1; else GPU=; fi
STEPS=${STEPS:-$([ $GPU ] && echo 120 || echo 45)}; LIMIT=$((SECONDS + ${TOTAL_SECONDS:-480}))
printf '| part | seconds | result | |\n| --- | --- | --- | --- |\n' >"$OUT/table.md"

row() { printf '| %s | %s | %s | %s |\n' "$1" "$2" "$(tr '|\n' '/ ' <<<"$3" | cut -c1-220)" "$4" | tee -a "$OUT/table.md"
  tar czf "$OUT/parts.tgz" -C "$OUT" parts table.md 2>/dev/null; }

# part NAME SECONDS NEEDS COMMAND...: NEEDS is gpu or any; the last line that the command prints is the result.
part() { local name=$1 seconds=$2 needs=$3 began=$SECONDS left=$((LIMIT - SECONDS)) status
  seconds=$((seconds * ${SLOWER:-1})); shift 3
  [ -n "$WANTED" ] && [[ " $WANTED " != *" $name "* ]] && return
  if [ "$needs" = gpu ] && [ ! $GPU ]; then row "$name" 0 "needs a GPU" "not run"; return; fi
  if [ $left -lt 5 ]; then row "$name" 0 "no time is left" "not run"; return; fi
  timeout -k 5 $((seconds < left ? seconds : left)) "$@" >"$W/$name.txt" 2>&1; status=$?
  row "$name" $((SECONDS - began)) "$(grep -av '^$' "$W/$name.txt" | tail -1)" \
    "$([ $status = 0 ] && echo ok || { [ $status -ge 124 ] && echo "failed: limit of time" || echo "failed: status $status"; })"; }

job() { # job NAME RANKS FAULT [KIND]: a job, then what its report says of it
  lockstep run --nproc-per-node "$2" --job-id "$1-$$" --hang-timeout 8s job.py "$3" "$STEPS" ${4:+"$4"} 2>/dev/null &
  local run=$! hang=; [[ $3 = stop-* || $3 = spin || $3 = few ]] && hang=1
  if [ $hang ]; then (sleep "${HANG_SECONDS:-28}"; kill -INT $run 2>/dev/null) & fi
  wait $run; lockstep report "$1-$$" --json "$W/$1.json" --html "$W/$1.html" >"$W/$1-report.txt" || { cat "$W/$1-report.txt"; return 1; }
  $PY -c 'import json, sys; d = json.load(open(sys.argv[1])); print(d["headline"], "Verdict:", d["verdict"]["kind"], *d["verdict"]["ranks"])' "$W/$1.json"; }
agent() { # the agent at rest and under load, beside nvidia-smi
  lockstep agent --listen 127.0.0.1:9440 --state "$W/state" --detail >"$W/agent.log" 2>&1 & local agent=$!
  sleep 6; curl -s 127.0.0.1:9440/metrics >"$W/rest.prom"
  job load 1 none & sleep 8; curl -s 127.0.0.1:9440/metrics >"$W/load.prom"; [ $GPU ] && nvidia-smi -q >"$W/smi-load.txt"
  awk '{print $14 + $15}' /proc/$agent/stat >"$W/agent-ticks.txt"; wait %job 2>/dev/null; kill $agent
  echo "$(grep -c ^lockstep_gpu "$W/load.prom") series of GPUs under load, $(grep -c ^lockstep_gpu "$W/rest.prom") at rest"; }
ras() { exec 3<>/dev/tcp/127.0.0.1/28028 && printf 'SET FORMAT json\nVERBOSE STATUS\n' >&3 && timeout 4 cat <&3 | tail -1; }
export -f job agent ras; export W STEPS GPU PY

WANTED=$*

part doctor 60 any lockstep doctor --gpu --json "$W/doctor.json"
part stub-pairs 60 any $PY gpu_pairs.py stub
for width in 512 1024 2048; do for mode in plain autocast compile; do
  part "pairs-$width-$mode" 30 gpu $PY gpu_pairs.py $width $mode; done; done
part traceml 60 gpu $PY -m traceml_ai.launcher.cli run ../overhead/competitor_traceml.py
part tests 120 gpu $PY -m pytest -q -m gpu -n 0 -p no:cacheprovider "../../tests/instrumentation/test_on_a_gpu.py"
part agent 40 any bash -c agent
for fault in none loader host backward; do part "ddp-$fault" 40 any bash -c "job ddp-$fault 2 $fault"; done
part fsdp2 40 any bash -c "job fsdp2 2 none fsdp2"
for place in loop loader forward host; do part "hang-$place" 45 any bash -c "job hang-$place 2 stop-$place"; done
part hang-collective 45 any bash -c "job hang-collective 2 few"
part ras 20 gpu bash -c "job ras 2 none & sleep 10; ras; wait"
for fault in memory assert; do part "end-$fault" 40 gpu bash -c "job end-$fault 1 $fault"; done
part spin 40 gpu bash -c "job spin 1 spin"
for kind in compile graphs; do part "$kind" 60 gpu bash -c "job $kind 1 none $kind"; done
echo "table in $OUT/table.md"
