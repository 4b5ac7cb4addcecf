#!/bin/sh
# A network for a kind cluster without a CNI, of IPv4, IPv6 or both: the plugins that kind's node image has (ptp,
# host-local, portmap), routes between the nodes' pod networks, the node's address for pods in the world. Enforces
# nothing. A service on each node sets it again after a restart, and follows nodes whose address changes.
#   cni.sh CLUSTER
set -eu
cluster=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# NODE POD_NETWORK [POD_NETWORK]. A node that has just joined has none yet.
expected=$(kind get nodes --name "$cluster" | grep -vc external-load-balancer)
tries=0
until kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.podCIDRs[*]}{"\n"}{end}' \
    > "$work/pod-networks" && [ "$(grep -c / "$work/pod-networks")" -eq "$expected" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "cni.sh: $expected nodes, not all with a pod network:"; cat "$work/pod-networks"; exit 1; } >&2
    sleep 1
done

cat > "$work/pod-network" <<'SCRIPT'
#!/bin/sh
# By cni.sh: routes to the other nodes' pods, own pods' masquerading, the CNI configuration.
set -eu
ranges='' routes='' inside='' outside=''
while read -r node networks; do
    for network in $networks; do
        case $network in *:*) ip=ip6 family=6 all=::/0 ;; *) ip=ip family=4 all=0.0.0.0/0 ;; esac
        inside="$inside $ip daddr $network return;"
        if [ "$node" = "$(hostname)" ]; then
            outside="$outside $ip saddr $network masquerade;"
            ranges="$ranges${ranges:+, }[{\"subnet\": \"$network\"}]" routes="$routes${routes:+, }{\"dst\": \"$all\"}"
            continue
        fi
        # By its name: an address may be another one after a restart. A node that is down keeps its route.
        via=$(getent "ahostsv$family" "$node" | head -n 1 | cut -d ' ' -f 1)
        [ -z "$via" ] || ip route replace "$network" via "$via"
    done
done < /etc/pod-networks
nft -f - <<RULES
table inet pod-network
delete table inet pod-network
table inet pod-network { chain out { type nat hook postrouting priority srcnat; $inside $outside }; }
RULES
conflist=/etc/cni/net.d/10-ptp.conflist
[ -e $conflist ] || cat > $conflist.new <<CONFIG
{"cniVersion": "0.4.0", "name": "ptp", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam":
    {"type": "host-local", "dataDir": "/run/cni-ipam-state", "ranges": [$ranges], "routes": [$routes]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
[ -e $conflist ] || mv $conflist.new $conflist
SCRIPT
chmod +x "$work/pod-network"

cat > "$work/pod-network.service" <<'UNIT'
[Service]
ExecStart=/bin/sh -c 'while /usr/local/bin/pod-network; do sleep 10; done; exit 1'
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
UNIT

cut -d ' ' -f 1 "$work/pod-networks" | while read -r node; do
    docker cp -q "$work/pod-networks" "$node:/etc/pod-networks"
    docker cp -q "$work/pod-network" "$node:/usr/local/bin/pod-network"
    docker cp -q "$work/pod-network.service" "$node:/etc/systemd/system/pod-network.service"
    docker exec "$node" sh -c 'systemctl --quiet enable pod-network && systemctl restart pod-network'
done
kubectl wait nodes --all --for condition=Ready --timeout 180s
