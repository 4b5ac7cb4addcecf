#!/bin/sh
# A network for a kind cluster without a CNI: the plugins that kind's node image has (ptp, host-local,
# portmap), the pod networks that the nodes were given, routes between them. Enforces nothing.
#   cni.sh CLUSTER
set -eu
cluster=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{" "}{.spec.podCIDRs}{" "}{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}' \
    | tr -d '[]"' | tr ',' ' ' > "$work/nodes"

# NAME POD4 POD6 NODE4 NODE6
while read -r node pod4 pod6 node4 node6; do
    cat > "$work/conflist" <<CONFIG
{"cniVersion": "0.4.0", "name": "ptp", "plugins": [
  {"type": "ptp", "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
            "ranges": [[{"subnet": "$pod4"}], [{"subnet": "$pod6"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
    docker exec -i "$node" sh -c 'cat > /etc/cni/net.d/10-ptp.conflist' < "$work/conflist"
    # To the world outside, pods speak with their node's address.
    docker exec "$node" iptables -t nat -A POSTROUTING -s "$pod4" ! -d 10.0.0.0/8 -j MASQUERADE
    for other in $(kind get nodes --name "$cluster"); do
        [ "$other" = "$node" ] && continue
        docker exec "$other" ip route replace "$pod4" via "$node4"
        docker exec "$other" ip -6 route replace "$pod6" via "$node6"
    done < /dev/null
done < "$work/nodes"
