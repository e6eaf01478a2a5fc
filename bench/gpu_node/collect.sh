#!/usr/bin/env bash
# Packs what run.sh needs on a machine of GPUs without a network into OUT.tgz, under 60 MiB: the project's
# wheel with the built recorder for Python 3.12, the wheels that such a machine lacks, and the GPU's tests.
# PYTHON is a Python 3.12 with its headers; torch, numpy and the like are there already.
set -e; cd "$(dirname "$0")/../.."
OUT=$(realpath -m "${1:?collect.sh OUT}"); PYTHON=${PYTHON:-python3.12}; D=$(mktemp -d)
T=$D/lockstep-gpu; N=$T/bench/gpu_node; mkdir -p "$N/wheels" "$T/tests/fixtures"
"$PYTHON" -m venv "$D/build"; "$D/build/bin/pip" install -q hatchling
LOCKSTEP_WHEEL_MACHINE=x86_64 "$D/build/bin/python" -m hatchling build -t wheel -d "$N/wheels"
"$D/build/bin/pip" download -q --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 \
  --platform manylinux_2_28_x86_64 --platform any -d "$N/wheels" bcrypt msgspec plotly zstandard ahocorasick-rs defusedxml \
  typing-extensions pytest-timeout traceml-ai==0.5.0
cp bench/gpu_node/*.sh bench/gpu_node/*.py "$N"
cp -r bench/overhead "$T/bench"; cp -r tests/instrumentation tests/conftest.py "$T/tests"
cp -r tests/fixtures/cuda-stub "$T/tests/fixtures"; cp pyproject.toml "$T"
tar czf "$OUT.tgz" -C "$D" lockstep-gpu; rm -rf "$D"
size=$(stat -c %s "$OUT.tgz"); echo "$OUT.tgz: $((size >> 20)) MiB"; [ "$size" -lt $((60 << 20)) ]
