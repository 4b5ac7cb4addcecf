#!/bin/sh
# A kind cluster with netpold in it: image, install, upstream conformance, our own tests, clean up.
#
#   deploy/kind/run.sh            all of it; the cluster goes at the end
#   KEEP=1 deploy/kind/run.sh     leave the cluster for a look
#   PROXY=nftables …              kube-proxy's mode: iptables (default), ipvs, nftables
#
# Needs docker, kind, kubectl, skopeo, go (for the conformance tests) and what `cargo xtask setup`
# installs. This script has not been run where it was written, where there is no docker.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cluster=${CLUSTER:-netpold}
proxy=${PROXY:-iptables}
kubernetes=${KUBERNETES_VERSION:-}
work=$(mktemp -d)

say() { printf '==> %s\n' "$*"; }

need() {
    for tool in "$@"; do
        command -v "$tool" > /dev/null || { echo "run.sh: $tool is not installed" >&2; exit 2; }
    done
}

clean() {
    status=$?
    trap - EXIT INT TERM
    if [ "$status" -ne 0 ] && [ -f "$work/kubeconfig" ]; then
        kubectl -n netpold-system get pods -o wide || true
        kubectl -n netpold-system logs ds/netpold --tail 50 || true
    fi
    if [ -z "${KEEP:-}" ]; then
        kind delete cluster --name "$cluster" || true
        rm -rf "$work"
    else
        say "the cluster stays: export KUBECONFIG=$work/kubeconfig"
    fi
    exit "$status"
}

need docker kind kubectl skopeo cargo
trap clean EXIT INT TERM
export KUBECONFIG="$work/kubeconfig"

say "image"
(cd "$root" && cargo xtask image --tag dev --output "$work/image")
skopeo copy "oci:$work/image:dev" "docker-archive:$work/image.tar:localhost/netpold:dev"

say "cluster, kube-proxy in $proxy mode"
sed "s/kubeProxyMode: .*/kubeProxyMode: $proxy/" "$here/cluster.yaml" > "$work/cluster.yaml"
kind create cluster --name "$cluster" --config "$work/cluster.yaml" \
    ${kubernetes:+--image "kindest/node:$kubernetes"}
kind load image-archive "$work/image.tar" --name "$cluster"

say "network"
"$here/cni.sh" "$cluster"
kubectl wait nodes --all --for condition=Ready --timeout 180s

say "install"
kubectl apply -k "$root/deploy/overlays/kind"
kubectl apply -k "$root/deploy/overlays/quotas"
kubectl apply -k "$root/deploy/overlays/api-protection"
kubectl -n netpold-system rollout status ds/netpold --timeout 180s

say "smoke test"
"$here/smoke.sh"

say "upstream conformance"
"$here/conformance.sh"

say "our own tests, on this kernel"
(cd "$root" && cargo xtask test --filter traffic)

say "an update under way leaves every policy in force"
kubectl -n netpold-system rollout restart ds/netpold
"$here/smoke.sh"
kubectl -n netpold-system rollout status ds/netpold --timeout 180s
"$here/smoke.sh"
say "done"
