#!/bin/bash
# Puts netpold on the machines of the Vagrantfile and runs the same tests as on kind. Needs vagrant
# with a provider, kubectl, skopeo and what `cargo xtask setup` installs. Not run where it was written.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"

mapfile -t nodes < <(vagrant status --machine-readable | awk -F, '$3 == "state" && $4 == "running" {print $2}')
[ "${#nodes[@]}" -ge 2 ] || { echo "test.sh: vagrant up first" >&2; exit 2; }
vagrant ssh debian13 -c 'sudo cat /etc/kubernetes/admin.conf' 2> /dev/null | tr -d '\r' > "$work/kubeconfig"
export KUBECONFIG=$work/kubeconfig

(cd "$root" && cargo xtask image --tag dev --output "$work/image")
skopeo copy "oci:$work/image:dev" "docker-archive:$work/image.tar:localhost/netpold:dev"
for node in "${nodes[@]}"; do
    vagrant ssh "$node" -c 'sudo ctr -n k8s.io images import -' < "$work/image.tar"
done
# bpffs is mounted by systemd here, so the base will do, with the image that was loaded.
kubectl kustomize "$root/deploy/base" | sed 's|image: .*netpold:.*|image: localhost/netpold:dev|' | kubectl apply -f -
kubectl -n netpold-system rollout status ds/netpold --timeout 300s
kubectl -n netpold-system get pods -o wide

"$root/deploy/kind/smoke.sh"
"$root/deploy/kind/conformance.sh"

# Our own tests, on each kernel: built here, run there. Static, since the machines' libraries differ.
target=x86_64-unknown-linux-gnu
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=-Ctarget-feature=+crt-static
(cd "$root" && cargo test --package netpold --test node --target $target --no-run --message-format json) \
    | sed -n 's/.*"executable":"\([^"]*\/node-[^"]*\)".*/\1/p' > "$work/tests"
binary=$root/target/$target/debug/netpold
for node in "${nodes[@]}"; do
    uname=$(vagrant ssh "$node" -c 'uname -r' 2> /dev/null | tr -d '\r')
    echo "==> $node, Linux $uname"
    vagrant upload "$(cat "$work/tests")" /tmp/tests "$node"
    vagrant upload "$binary" /tmp/netpold "$node"
    # The tests look for netpold where it was built.
    vagrant ssh "$node" -c "sudo install -D /tmp/netpold '$binary' && chmod +x /tmp/tests && sudo /tmp/tests traffic::"
done
