#!/bin/bash
# Makes a virtual machine a node: container runtime, kubeadm, and on the control plane the CNI.
#   node.sh ROLE ADDRESS KUBERNETES CNI PROXY
set -euo pipefail
role=$1 address=$2 kubernetes=$3 cni=$4 proxy=$5
network=192.168.56
# Known to every machine beforehand, and to whoever is in their private network.
token=netpol.0123456789abcdef

install_packages() {
    local repository=https://pkgs.k8s.io/core:/stable:/v$kubernetes
    if command -v apt-get > /dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        apt-get install -q -y containerd curl gpg conntrack netcat-openbsd
        mkdir -p /etc/apt/keyrings
        curl -fsSL "$repository/deb/Release.key" | gpg --batch --yes --dearmor -o /etc/apt/keyrings/kubernetes.gpg
        echo "deb [signed-by=/etc/apt/keyrings/kubernetes.gpg] $repository/deb/ /" \
            > /etc/apt/sources.list.d/kubernetes.list
        apt-get update -q
        apt-get install -q -y kubelet kubeadm kubectl
    else
        printf '[kubernetes]\nname=kubernetes\nbaseurl=%s/rpm/\ngpgkey=%s/rpm/repodata/repomd.xml.key\n' \
            "$repository" "$repository" > /etc/yum.repos.d/kubernetes.repo
        dnf install -q -y containerd kubelet kubeadm kubectl conntrack-tools nmap-ncat
    fi
}

prepare() {
    swapoff -a
    modprobe -a overlay br_netfilter
    printf 'net.ipv4.ip_forward = 1\nnet.ipv6.conf.all.forwarding = 1\nnet.bridge.bridge-nf-call-iptables = 1\n' \
        > /etc/sysctl.d/99-kubernetes.conf
    sysctl --quiet --system
    mkdir -p /etc/containerd
    # Distributions patch the default folder of the plugins; Kubernetes' packages and flannel use this one.
    containerd config default | sed -E -e 's/SystemdCgroup = false/SystemdCgroup = true/' \
        -e '/^ *bin_dirs? = /s|/[a-z/]*cni[a-z/]*|/opt/cni/bin|' > /etc/containerd/config.toml
    systemctl enable --now containerd
    systemctl restart containerd
    echo "KUBELET_EXTRA_ARGS=--node-ip=$address" > /etc/default/kubelet
    cp /etc/default/kubelet /etc/sysconfig/kubelet 2> /dev/null || true
    systemctl enable --now kubelet
}

control_plane() {
    cat > /root/kubeadm.yaml <<CONFIG
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: $address}
bootstrapTokens: [{token: $token, ttl: 0s}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
networking: {podSubnet: 10.244.0.0/16}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $proxy
CONFIG
    [ -f /etc/kubernetes/admin.conf ] || kubeadm init --config /root/kubeadm.yaml
    export KUBECONFIG=/etc/kubernetes/admin.conf
    [ "$cni" = flannel ] || return 0
    # The interface of the default route has the same address on every machine of VirtualBox.
    curl -fsSL https://github.com/flannel-io/flannel/releases/latest/download/kube-flannel.yml \
        | sed "s/^\( *- \)--kube-subnet-mgr/&\n\1--iface-regex=^${network}[.]/" > /root/flannel.yaml
    grep -q -e --iface-regex /root/flannel.yaml
    kubectl apply -f /root/flannel.yaml
}

# Without a CNI that gives out networks each node has a bridge of its own, and routes to the others.
bridge() {
    local last=${address##*.} other
    mkdir -p /etc/cni/net.d
    cat > /etc/cni/net.d/10-bridge.conflist <<CONFIG
{"cniVersion": "1.0.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.$last.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
    for other in 10 11 12 13; do
        [ "$other" = "$last" ] || ip route replace "10.244.$other.0/24" via "$network.$other"
    done
}

install_packages
prepare
if [ "$cni" = bridge ]; then bridge; fi
if [ "$role" = control-plane ]; then
    control_plane
elif [ ! -f /etc/kubernetes/kubelet.conf ]; then
    kubeadm join "$network.10:6443" --token "$token" --discovery-token-unsafe-skip-ca-verification
fi
