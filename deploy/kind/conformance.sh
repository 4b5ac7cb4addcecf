#!/bin/sh
# The NetworkPolicy tests of Kubernetes itself, of the cluster's own version, against the cluster that
# kubectl talks to. Needs e2e.test on the PATH, or git and go to build it.
#   conformance.sh [FOCUS]    of these tests those whose names match a regular expression
set -eu

version=$(kubectl version -o json | sed -n '/serverVersion/,$s/.*"gitVersion": "\([^"+]*\).*/\1/p' | head -n 1)
[ -n "$version" ] || { echo "conformance.sh: no cluster" >&2; exit 2; }
e2e=$(command -v e2e.test || true)
if [ -z "$e2e" ]; then
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/netpold/e2e-$version
    e2e=$cache/e2e.test
    if [ ! -x "$e2e" ]; then
        command -v go > /dev/null || { echo "conformance.sh: neither e2e.test nor go" >&2; exit 2; }
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        git clone --quiet --depth 1 --branch "$version" https://github.com/kubernetes/kubernetes "$work"
        mkdir -p "$cache"
        (cd "$work" && go test -c -o "$e2e" ./test/e2e)
    fi
fi

# Left out: serial specs, features that are not in NetworkPolicy v1, and the specs that send SCTP, which
# need the kernel's module on every node. Two more specs have SCTP in their names and send TCP only.
exec "$e2e" --kubeconfig "${KUBECONFIG:-$HOME/.kube/config}" --provider skeleton \
    --ginkgo.focus "\[sig-network\].*(NetworkPolicy|Netpol).*${1:-}" \
    --ginkgo.skip 'Feature:SCTPConnectivity|\[Serial\]|AdminNetworkPolicy|\[Feature:.*Migration' \
    --ginkgo.no-color --ginkgo.silence-skips --ginkgo.timeout 3h
