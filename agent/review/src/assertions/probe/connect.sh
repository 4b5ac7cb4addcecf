# Opens a TCP connection with what the image has, and says how that went.
# Arguments: address, port, seconds, a script for python3.
LC_ALL=C
export LC_ALL
a=$1 p=$2 s=$3 last=

has() { command -v "$1" >/dev/null 2>&1; }

say() {
    echo "netpold: $*"
    exit 0
}

# Of a tool's exit status and words; it returns if they do not say.
judge() {
    [ "$1" = 0 ] && say connected
    case $2 in
    *[Rr]efused*) say refused ;;
    *unreachable* | *"o route to host"*) say unreachable ;;
    *[Tt]"imed out"* | *TIMEOUT*) say timed out ;;
    esac
    # timeout(1) ended it.
    case $1 in 124 | 143) say timed out ;; esac
    last="status $1: $2"
}

if has python3; then
    o=$(python3 -c "$4" "$a" "$p" "$s" 2>&1)
    case $o in "netpold: "*) echo "$o" && exit 0 ;; esac
    last=$o
fi
if has bash && has timeout; then
    o=$(timeout "$s" bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$a" "$p" 2>&1)
    judge $? "$o"
fi
if has nc; then
    o=$(nc -v -z -w "$s" "$a" "$p" </dev/null 2>&1)
    c=$?
    # BusyBox without CONFIG_NC_110_COMPAT: connected, it runs a program.
    case $o in *"invalid option"*) o=$(nc -w "$s" "$a" "$p" -e true </dev/null 2>&1) && c=0 ;; esac
    judge $c "$o"
fi
if has curl; then
    case $a in *:*) a="[$a]" ;; esac
    get() { curl -q -g --noproxy '*' -o /dev/null --connect-timeout "$s" --max-time "$((s + 1))" "$@" "http://$a:$p/"; }
    o=$(get -s -w '%{time_connect}' 2>/dev/null)
    c=$?
    # Whatever the other side says over HTTP.
    case $o in *[1-9]*) say connected ;; esac
    [ "$c" = 28 ] && say timed out
    o=$(get -v 2>&1)
    judge $? "$o"
fi
if has wget; then
    case $1 in *:*) u="http://[$1]:$p/" ;; *) u="http://$1:$p/" ;; esac
    unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
    # BusyBox has no -t and tries once.
    case $(wget --version 2>&1) in *GNU*) t="-t 1" ;; *) t= ;; esac
    # shellcheck disable=SC2086 # $t is two words or none.
    o=$(wget $t -T "$s" --spider "$u" 2>&1)
    c=$?
    case $o in
    # Whatever the other side says over HTTP.
    *"... connected."* | *"server returned error"* | *"error getting response"* | *"bad header"*) say connected ;;
    # BusyBox's words for an answer that does not come, too.
    *"download timed out"*) last="wget does not say whether nobody answered or only not over HTTP" ;;
    *) judge $c "$o" ;;
    esac
fi
[ -n "$last" ] && say "failed $last"
say none
