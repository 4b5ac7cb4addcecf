#!/bin/sh
# Whether policy is enforced in the cluster that kubectl talks to: two clients, a server and its Service in
# each address family, a policy.
# Used by kind/run.sh and vagrant/test.sh; good for any cluster. Leaves nothing behind.
#   smoke.sh [network]    network: only whether pods reach the server and its Service, as before an installation
set -eu

namespace=netpold-smoke
image=${SMOKE_IMAGE:-registry.k8s.io/e2e-test-images/agnhost:2.53}

clean() { kubectl delete namespace "$namespace" --ignore-not-found --wait > /dev/null; }
trap clean EXIT
clean
kubectl create namespace "$namespace" > /dev/null

for pod in server friend stranger; do
    kubectl -n "$namespace" run "$pod" --image "$image" --labels "app=$pod" -- netexec --http-port 8080 > /dev/null
done
kubectl -n "$namespace" wait pod --all --for condition=Ready --timeout 180s > /dev/null
kubectl -n "$namespace" expose pod server --port 8080 \
    --overrides '{"apiVersion": "v1", "spec": {"ipFamilyPolicy": "PreferDualStack"}}' > /dev/null

# Addresses of the pod and of its Service, in each family that they have.
addresses=''
pods=$(kubectl -n "$namespace" get pod server -o 'jsonpath={.status.podIPs[*].ip}')
services=$(kubectl -n "$namespace" get service server -o 'jsonpath={.spec.clusterIPs[*]}')
for address in $pods $services; do
    case $address in *:*) address="[$address]" ;; esac
    addresses="$addresses $address:8080"
done

# CLIENT ADDRESS passes|dropped. A failure other than silence (a pod is gone, the port is closed) is neither of the two.
connects() {
    if answer=$(kubectl -n "$namespace" exec "$1" -- /agnhost connect "$2" --timeout 2s 2>&1); then
        got=passes
    else
        case $answer in TIMEOUT*) got=dropped ;; *) got=$answer ;; esac
    fi
    [ "$got" = "$3" ]
}

enforcing() {
    got=$(kubectl -n "$namespace" get networkpolicystatus friend \
        -o 'jsonpath={.status.conditions[?(@.type=="Enforcing")].status}' 2>&1) && [ "$got" = True ]
}

# Asks again for a while: a policy takes some milliseconds from the API server to every node.
expect() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 20 ] || { echo "smoke.sh: not $*: $got" >&2; exit 1; }
        sleep 1
    done
    echo "$*"
}

# CLIENT passes|dropped, at all addresses.
everywhere() {
    for address in $addresses; do expect connects "$1" "$address" "$2"; done
}

everywhere friend passes
everywhere stranger passes
[ "${1:-}" != network ] || exit 0
kubectl -n "$namespace" apply -f - > /dev/null <<POLICY
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friend}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
POLICY
everywhere stranger dropped
everywhere friend passes
# By the controller, where there is one.
if kubectl get crd networkpolicystatuses.netpold.io > /dev/null 2>&1; then expect enforcing; fi
