#!/bin/sh
# A kind cluster with netpold in it: image, install, upstream conformance, our own tests, clean up.
#
#   deploy/kind/run.sh            all of it; the cluster goes at the end
#   KEEP=1 deploy/kind/run.sh     leave the cluster for a look
#   PROXY=nftables …              kube-proxy's mode: iptables (default), nftables
#   FAMILY=ipv6 …                 addresses: dual (default), ipv4, ipv6
#   KINDNET=1 …                   beside kindnet, which enforces too, not on cni.sh's network
#   FOCUS=deny …                  the upstream tests whose names match
#   SKIP='conformance traffic' …  without the upstream tests (they need the internet or e2e.test), without our own
#   BINARY=netpold …              this static binary in the image, not a release build
#
# Needs docker, kind, kubectl, helm, skopeo, git and go (or e2e.test, for the conformance tests) and what
# `cargo xtask setup` installs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cluster=${CLUSTER:-netpold}
proxy=${PROXY:-iptables}
family=${FAMILY:-dual}
kubernetes=${KUBERNETES_VERSION:-}

say() { printf '==> %s\n' "$*"; }

# Whether SKIP names the step.
skipped() {
    case " ${SKIP:-} " in *" $1 "*) ;; *) false ;; esac
}

need() {
    for tool in "$@"; do
        command -v "$tool" > /dev/null || { echo "run.sh: $tool is not installed" >&2; exit 2; }
    done
}

clean() {
    status=$?
    trap - EXIT INT TERM
    if [ "$status" -ne 0 ] && [ -f "$KUBECONFIG" ]; then
        kubectl get pods -A -o wide || true
        for pod in $(kubectl -n netpold-system get pods -o name); do
            kubectl -n netpold-system logs "$pod" --all-containers --prefix --tail 50 || true
        done
        for pod in $(kubectl -n kube-system get pods -o name -l 'k8s-app in (kube-proxy, kindnet)'); do
            kubectl -n kube-system logs "$pod" --prefix --tail 20 || true
        done
    fi
    if [ -z "${KEEP:-}" ]; then
        kind delete cluster --name "$cluster" || true
        rm -rf "$work"
    else
        say "the cluster stays: export KUBECONFIG=$KUBECONFIG"
    fi
    exit "$status"
}

installed() {
    kubectl -n netpold-system rollout status daemonset/netpold --timeout 180s
    kubectl -n netpold-system rollout status deployment/netpold-controller --timeout 180s
}

for step in ${SKIP:-}; do
    case $step in conformance | traffic) ;; *) echo "run.sh: SKIP can name conformance and traffic, not $step" >&2; exit 2 ;; esac
done
need docker kind kubectl helm skopeo cargo
skipped traffic || need cargo-nextest
skipped conformance || command -v e2e.test > /dev/null || need git go
docker info > /dev/null
if kind get clusters | grep -qx "$cluster"; then
    echo "run.sh: there is a cluster $cluster, which this script did not create: CLUSTER=NAME, or kind delete cluster" >&2
    exit 2
fi
work=$(mktemp -d)
export KUBECONFIG="$work/kubeconfig"
trap clean EXIT INT TERM

say "image"
(cd "$root" && cargo xtask image --tag dev --output "$work/image" ${BINARY:+--binary "$BINARY"})
skopeo copy "oci:$work/image:dev" "docker-archive:$work/image.tar:localhost/netpold:dev"

say "cluster, $family, kube-proxy in $proxy mode"
sed "s/kubeProxyMode: .*/kubeProxyMode: $proxy/; s/ipFamily: .*/ipFamily: $family/
    ${KINDNET:+s/disableDefaultCNI: .*/disableDefaultCNI: false/}" "$here/cluster.yaml" > "$work/cluster.yaml"
kind create cluster --name "$cluster" --config "$work/cluster.yaml" \
    ${kubernetes:+--image "kindest/node:$kubernetes"}
kind load image-archive "$work/image.tar" --name "$cluster"

say "network"
[ -n "${KINDNET:-}" ] || "$here/cni.sh" "$cluster"
kubectl wait nodes --all --for condition=Ready --timeout 180s
kubectl -n kube-system rollout status daemonset --timeout 180s
# Before netpold: a fault of the CNI plugin or of kube-proxy is none of netpold's.
"$here/smoke.sh" network

say "install"
helm install netpold "$root/deploy/chart" --namespace netpold-system --create-namespace \
    --values "$root/deploy/overlays/kind/values.yaml" --set quotas.enabled=true --set apiProtection.enabled=true
installed

say "smoke test"
"$here/smoke.sh"
helm test netpold --namespace netpold-system

if skipped conformance; then
    say "upstream conformance: SKIPPED"
else
    say "upstream conformance"
    "$here/conformance.sh" "${FOCUS:-}"
fi

if skipped traffic; then
    say "our own tests of traffic: SKIPPED"
else
    say "our own tests of traffic, on this kernel"
    (cd "$root" && cargo xtask test --filter traffic)
fi

say "an update under way leaves every policy in force"
kubectl -n netpold-system rollout restart daemonset/netpold deployment/netpold-controller
"$here/smoke.sh"
installed
"$here/smoke.sh"
say "done"
