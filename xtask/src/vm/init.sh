#!/busybox sh
# The guest's first process: mounts the file systems, loads the modules, runs the steps, and reports their results on
# the serial console. xtask/src/vm/console.rs parses the lines that begin with @@.
/busybox mkdir -p /proc /sys /dev /tmp /run /applets
/busybox --install -s /applets
# The real tools first: busybox has an ip of its own.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/applets
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
# No pivot_root: the initramfs holds the binaries at the paths where they were built.
ip link set lo up
while read -r module; do
    insmod "/modules/$module" || echo "@@ note no module $module"
done </modules/order
export CI=true RUST_BACKTRACE=0 HOME=/tmp NETPOLD_LOG_COLOR=never
echo "@@ kernel $(uname -r)"
while read -r limit name command; do
    echo "@@ begin $name"
    start=$(date +%s)
    timeout -s KILL "$limit" sh -c "$command" </dev/null >/tmp/output 2>&1
    status=$?
    # A verifier log has a hundred thousand lines, which take minutes on this console.
    grep -vE '^ *(;|[0-9]+: |from [0-9]+ to )' /tmp/output | tail -n 300
    echo
    echo "@@ end $name $status $(($(date +%s) - start))"
    # If the programs do not load, all later steps would fail for the same reason.
    [ "$name" = load ] && [ "$status" != 0 ] && break
done </steps
echo "@@ done"
reboot -f
