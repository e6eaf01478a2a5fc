#!/usr/bin/env bash
# Build the programs of the Kubernetes lab from their Go modules: a control plane without containers, for tests.
#
#   build.sh [control-plane|packagers|operator|kinds]...     (default: control-plane)
#
# control-plane: kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kine (etcd over SQLite), kwok (nodes)
# packagers:     helm, kustomize
# operator:      the Prometheus operator and its CRDs
# kinds:         the CRDs of cert-manager and of OpenShift's SecurityContextConstraints
#
# The binaries lie in $LOCKSTEP_KUBERNETES_LAB/bin (default ~/.cache/lockstep-kubernetes-lab/bin). A binary whose
# version stands beside it is kept. The first build takes about a quarter of an hour on 2 cores.
set -euo pipefail

KUBERNETES=36.3 # k8s.io/kubernetes v1.36.3; its libraries have the tag v0.36.3
OPERATOR=v0.85.0
CERT_MANAGER=v1.18.2
OPENSHIFT=v0.0.0-20241216151652-de9de05a8e43
CACHE=${LOCKSTEP_KUBERNETES_LAB:-$HOME/.cache/lockstep-kubernetes-lab}
BIN=$CACHE/bin
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -mod=mod"

is_built() { # is_built NAME VERSION
  [ -x "$BIN/$1" ] && [ "$(cat "$BIN/.$1.version" 2>/dev/null)" = "$2" ]
}

record_version() { # record_version NAME VERSION
  echo "$2" >"$BIN/.$1.version"
}

install_module() { # install_module NAME PACKAGE VERSION: for modules that build on their own
  is_built "$1" "$3" && return
  echo "kubernetes-lab: building $1 $3" >&2
  GOFLAGS=-buildvcs=false GOBIN=$BIN nice go install "$2@$3"
  record_version "$1" "$3"
}

write_kubernetes_module() { # in the current folder: a module that requires Kubernetes with its libraries
  local root=k8s.io/kubernetes go_mod library
  go mod init lab >/dev/null 2>&1
  go mod edit -require "$root@v1.$KUBERNETES"
  go_mod=$(cd / && go mod download -json "$root@v1.$KUBERNETES" | python3 -c 'import json, sys; print(json.load(sys.stdin)["GoMod"])')
  # Kubernetes requires its own libraries as v0.0.0 and replaces them by folders, which a module proxy does not have.
  awk '$1 ~ /^k8s\.io\// && $2 == "v0.0.0" { print $1 }' "$go_mod" | sort -u | while read -r library; do
    go mod edit -replace "$library=$library@v0.$KUBERNETES"
  done
}

build_kubernetes() {
  local version=v1.$KUBERNETES name packages=() names=() flags=()
  for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
    is_built "$name" "$version" || { names+=("$name"); packages+=("k8s.io/kubernetes/cmd/$name"); }
  done
  [ ${#names[@]} -gt 0 ] || return 0
  # A control plane that does not know its version refuses to start.
  for name in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=("-X $name.gitVersion=$version -X $name.gitMajor=1 -X $name.gitMinor=${KUBERNETES%%.*}")
  done
  echo "kubernetes-lab: building ${names[*]} $version" >&2
  (in_scratch && write_kubernetes_module && nice go build -ldflags "-s -w ${flags[*]}" -o "$BIN/" "${packages[@]}")
  for name in "${names[@]}"; do record_version "$name" "$version"; done
}

build_operator() {
  local module=github.com/prometheus-operator/prometheus-operator
  is_built prometheus-operator "$OPERATOR" && return
  echo "kubernetes-lab: building prometheus-operator $OPERATOR" >&2
  (
    in_scratch
    go mod init lab >/dev/null 2>&1
    go mod edit -require "$module@$OPERATOR" \
      -replace "$module/pkg/apis/monitoring=$module/pkg/apis/monitoring@$OPERATOR" \
      -replace "$module/pkg/client=$module/pkg/client@$OPERATOR"
    nice go build -o "$BIN/prometheus-operator" "$module/cmd/operator"
    rm -rf "$CACHE/operator-crds"
    cp -r "$(go list -m -f '{{.Dir}}' "$module")/example/prometheus-operator-crd" "$CACHE/operator-crds"
    chmod -R u+w "$CACHE/operator-crds"
  )
  record_version prometheus-operator "$OPERATOR"
}

copy_kinds() { # the definitions lie in the modules, which nothing is built from
  local version="$CERT_MANAGER $OPENSHIFT" folder
  [ "$(cat "$CACHE/kinds/.version" 2>/dev/null)" != "$version" ] || return 0
  rm -rf "$CACHE/kinds" && mkdir -p "$CACHE/kinds"
  folder=$(module_folder "github.com/cert-manager/cert-manager@$CERT_MANAGER")/deploy/crds
  # They are templates of a chart: without its labels and conditions they are objects.
  sed -e '/{{/d' -e '/# END annotations/d' "$folder/crd-issuers.yaml" >"$CACHE/kinds/issuers.yaml"
  sed -e '/{{/d' -e '/# END annotations/d' "$folder/crd-certificates.yaml" >"$CACHE/kinds/certificates.yaml"
  folder=$(module_folder "github.com/openshift/api@$OPENSHIFT")/security/v1/zz_generated.crd-manifests
  cp "$folder/0000_03_config-operator_01_securitycontextconstraints-Default.crd.yaml" "$CACHE/kinds/securitycontextconstraints.yaml"
  chmod u+w "$CACHE"/kinds/*
  echo "$version" >"$CACHE/kinds/.version"
}

module_folder() { # module_folder MODULE@VERSION
  (cd / && go mod download -json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
}

in_scratch() { # for a subshell: enter a folder that goes with it
  local folder; folder=$(mktemp -d)
  trap 'rm -rf "'"$folder"'"' EXIT
  cd "$folder"
}

mkdir -p "$BIN"
exec 9>"$CACHE/.lock"
flock 9 # of two builds the second waits and finds everything built
for part in "${@:-control-plane}"; do
  case $part in
    control-plane)
      install_module kine github.com/k3s-io/kine v0.17.5
      install_module kwok sigs.k8s.io/kwok/cmd/kwok v0.8.0
      build_kubernetes
      ;;
    packagers)
      install_module helm helm.sh/helm/v4/cmd/helm v4.3.1
      install_module kustomize sigs.k8s.io/kustomize/kustomize/v5 v5.8.1
      ;;
    operator) build_operator ;;
    kinds) copy_kinds ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
  esac
done
