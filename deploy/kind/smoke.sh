#!/bin/sh
# Whether policy is enforced in the cluster that kubectl talks to: two pods, a policy, four questions.
# Used by kind/run.sh and vagrant/test.sh; good for any cluster. Leaves nothing behind.
set -eu

namespace=netpold-smoke
image=${SMOKE_IMAGE:-registry.k8s.io/e2e-test-images/agnhost:2.53}

clean() { kubectl delete namespace "$namespace" --ignore-not-found --wait > /dev/null; }
trap clean EXIT
clean
kubectl create namespace "$namespace" > /dev/null

run() {
    kubectl -n "$namespace" run "$1" --image "$image" --labels "app=$1" -- netexec --http-port 8080 > /dev/null
}
run server
run friend
run stranger
kubectl -n "$namespace" wait pod --all --for condition=Ready --timeout 180s > /dev/null
server=$(kubectl -n "$namespace" get pod server -o 'jsonpath={.status.podIP}')
case $server in *:*) server="[$server]" ;; esac

connects() {
    kubectl -n "$namespace" exec "$1" -- /agnhost connect "$server:8080" --timeout 2s > /dev/null 2>&1
}

# Asks again for a while: a policy takes some milliseconds from the API server to every node.
expect() {
    wanted=$1 from=$2 tries=0
    while :; do
        if connects "$from"; then got=passes; else got=dropped; fi
        [ "$got" = "$wanted" ] && { echo "$from to server: $got"; return; }
        tries=$((tries + 1))
        [ "$tries" -lt 10 ] || { echo "$from to server: $got, not $wanted" >&2; exit 1; }
        sleep 1
    done
}

expect passes friend
expect passes stranger
kubectl -n "$namespace" apply -f - > /dev/null <<POLICY
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friend}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
POLICY
expect dropped stranger
expect passes friend
