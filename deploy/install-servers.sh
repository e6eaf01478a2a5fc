#!/bin/sh
# Installs from Debian or Ubuntu what the demo starts, where it is missing; with `tests` what they start too,
# with `ci` also a Slurm and the control plane of Kubernetes, which is compiled (12 minutes on two cores), and with
# `release` a Prometheus 3 too (five minutes; its program is prometheus3).
# Without apt, root or Go it says what is missing and how to get it, and lets the rest go on.
set -u

PROMETHEUS_3=v0.305.0 # the module's number of Prometheus 3.5.0

build_prometheus_3() {
    command -v prometheus3 >/dev/null && return
    if ! command -v go >/dev/null; then
        echo "missing: go, to compile prometheus3; the test that needs it will be skipped" >&2
        return
    fi
    echo "compiling Prometheus 3 ($PROMETHEUS_3 of its module): five minutes on two cores" >&2
    build=$(mktemp -d)
    # The module replaces others, so that `go install MODULE@VERSION` refuses it: it is built from its own folder.
    source=$(cd "$build" && go mod download -json "github.com/prometheus/prometheus@$PROMETHEUS_3" \
        | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
    cp -r "$source" "$build/source" && chmod -R u+w "$build/source" \
        && (cd "$build/source" && go build -ldflags '-s -w' -o "$build/prometheus3" ./cmd/prometheus 2>"$build/log") \
        && install -m 755 "$build/prometheus3" "${PROGRAMS:-/usr/local/bin}/prometheus3" \
        || { tail -n 5 "$build/log"; echo "could not compile prometheus3; the test that needs it will be skipped"; } >&2
    rm -rf "$build"
}

# The control plane that tests of the feed start: a quarter of an hour once, then in ~/.cache.
build_kubernetes_lab() {
    if ! command -v go >/dev/null; then
        echo "missing: go, to compile Kubernetes' control plane; the tests that need it will be skipped" >&2
        return
    fi
    "$(dirname "$0")/../tests/labs/kubernetes-lab/build.sh" control-plane packagers kinds >&2 \
        || echo "could not build Kubernetes' control plane; the tests that need it will be skipped" >&2
}

missing=""
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$missing prometheus"
command -v alertmanager >/dev/null || command -v prometheus-alertmanager >/dev/null \
    || missing="$missing prometheus-alertmanager"
case "${1:-}" in
tests | ci | release)
    # Its programs are on no PATH, so that several versions can be installed; the tests start their own.
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
    command -v chromium >/dev/null || missing="$missing chromium"
    command -v chromedriver >/dev/null || missing="$missing chromium-driver"
    command -v vmalert >/dev/null || missing="$missing victoria-metrics"
    command -v systemd-analyze >/dev/null || missing="$missing systemd"
    # A real Slurm (tests/labs/slurm-lab.sh) for the situations on it.
    [ "$1" = tests ] || { command -v slurmctld && command -v slurmdbd && command -v mariadbd && command -v munged; } >/dev/null \
        || missing="$missing slurm-wlm slurmdbd mariadb-server munge"
    command -v mkfs.ext4 >/dev/null || [ -x /sbin/mkfs.ext4 ] || missing="$missing e2fsprogs"
    command -v patch >/dev/null || missing="$missing patch"
    command -v tc >/dev/null || [ -x /sbin/tc ] || missing="$missing iproute2"
    ;;
esac
command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
case "${1:-}" in ci | release) build_kubernetes_lab ;; esac
[ "${1:-}" != release ] || build_prometheus_3
[ -z "$missing" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        echo "missing:$missing; as root: apt-get install$missing (going on without)" >&2
        exit 0
    fi
fi
if ! command -v apt-get >/dev/null; then
    echo "missing:$missing; put their programs on PATH (going on without)" >&2
    exit 0
fi

# The packages would start system services; a policy that forbids it stands only while we install.
policy=/usr/sbin/policy-rc.d
made_policy=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null && $as_root chmod 755 "$policy"
    made_policy=yes
fi
echo "installing$missing from the distribution" >&2
$as_root apt-get update -qq
# shellcheck disable=SC2086  # the list is meant to be split
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null \
    || echo "could not install$missing; the tests that need them will be skipped" >&2
[ -n "$made_policy" ] && $as_root rm -f "$policy"
exit 0
