#!/usr/bin/env bash
# Builds dist/lockstep-agent_VERSION_ARCH.deb and .rpm: build.sh PYTHON. nfpm is compiled from its Go module where it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:?build.sh PYTHON}
nfpm=$(command -v nfpm || true)
if [ -z "$nfpm" ]; then
    command -v go >/dev/null || { echo "package: neither nfpm nor go is installed; install one of them" >&2; exit 2; }
    GOBIN=$PWD/dist/bin go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.41.3
    nfpm=$PWD/dist/bin/nfpm
fi
BUILD=$(mktemp -d); export BUILD
trap 'rm -rf "$BUILD"' EXIT
"$python" -m pip install --quiet --no-compile --target "$BUILD/lib" '.[agent]'
VERSION=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])'); export VERSION
ARCH=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/'); export ARCH
# Of a version that has no credentials too: the agent's unit holds none.
PYTHONPATH=$BUILD/lib "$python" -m lockstep_cli.main deploy systemd --to "$BUILD/systemd" --systemd 239 >/dev/null
mkdir -p dist
for kind in deb rpm; do "$nfpm" package --config deploy/package/nfpm.yaml --packager "$kind" --target dist/; done
