#!/bin/sh
# Whether policy is enforced in the cluster that kubectl talks to: two clients, a policy, four questions.
# Used by kind/run.sh and vagrant/test.sh; good for any cluster. Leaves nothing behind.
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
server=$(kubectl -n "$namespace" get pod server -o 'jsonpath={.status.podIP}')
case $server in *:*) server="[$server]" ;; esac

# What fails for another reason than silence (a pod is gone, the port is closed) is neither of the two.
connects() {
    if said=$(kubectl -n "$namespace" exec "$1" -- /agnhost connect "$server:8080" --timeout 2s 2>&1); then
        got=passes
    else
        case $said in TIMEOUT*) got=dropped ;; *) got=$said ;; esac
    fi
    [ "$got" = "$2" ]
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

expect connects friend passes
expect connects stranger passes
kubectl -n "$namespace" apply -f - > /dev/null <<POLICY
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friend}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
POLICY
expect connects stranger dropped
expect connects friend passes
# By the controller, where there is one.
if kubectl get crd networkpolicystatuses.netpold.io > /dev/null 2>&1; then expect enforcing; fi
