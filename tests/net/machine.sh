# The machine that the documents speak of, in namespaces of its own (documents.rs). This shell is on the gateway:
#
#   client eth0 203.0.113.2 -- eth1 203.0.113.1 (gateway) eth2 10.0.0.1 -- eth0 10.0.0.2 and .3 (backend)
#
# $PIECES is the directory that holds what is run, $UNIT the packaged unit.
cp -a "$PIECES" /run/pieces
PIECES=/run/pieces
# The clone may lie under /tmp, which is hidden next.
cp "$UNIT" /run/ringway.service
UNIT=/run/ringway.service
mkdir /run/bin
touch /run/bin/ringway
mount --bind "$(command -v ringway)" /run/bin/ringway
PATH=/run/bin:$PATH
mount -t tmpfs none /tmp
cd /tmp
cp -a /etc /run/etc
mount --bind /run/etc /etc
mount -t tmpfs none /var/lib
mkdir -p /etc/ringway
ip link set lo up
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY

cable() { # INTERFACE ADDRESS, NAMESPACE ITS_ADDRESSES
    ip netns add "$3"
    ip -n "$3" link set lo up
    ip link add "$1" type veth peer name eth0 netns "$3"
    ip address add "$2" dev "$1"
    ethtool -K "$1" tx off tso off gso off gro on >/dev/null
    nsenter --net="/run/netns/$3" ethtool -K eth0 tx off tso off gso off gro on >/dev/null
    for address in $4; do ip -n "$3" address add "$address" dev eth0; done
    ip link set "$1" up
    ip -n "$3" link set eth0 up
}
cable eth1 203.0.113.1/24 client 203.0.113.2/24
# For those who look from elsewhere into this namespace.
touch /run/netns/gateway
mount --bind /proc/self/ns/net /run/netns/gateway
cable eth2 10.0.0.1/24 backend '10.0.0.2/24 10.0.0.3/24'
ip -n backend route add default via 10.0.0.1

# Web servers, one at each address; they say which.
serve() {
    for address in 10.0.0.2 10.0.0.3; do
        mkdir -p "/run/www/$address"
        echo "$address" >"/run/www/$address/index.html"
        nsenter --net=/run/netns/backend python3 -m http.server --bind $address --directory /run/www/$address 80 \
            >/dev/null 2>&1 &
    done
    for address in 10.0.0.2 10.0.0.3; do
        curl -fs -o /dev/null --noproxy '*' --retry 20 --retry-delay 1 --retry-connrefused "http://$address/"
    done
}

stop_serving() { ip netns pids backend | xargs kill; }

# A capture of one packet, of a client's to the service.
capture() {
    python3 - "$1" <<'END'
import struct, sys
ip = bytes.fromhex("45000028000040004006") + bytes(2) + bytes([203, 0, 113, 2, 203, 0, 113, 10])
tcp = struct.pack(">HHIIBBHHH", 4711, 80, 1, 0, 0x50, 2, 1024, 0, 0)
frame = bytes.fromhex("020000000002" "020000000001" "0800") + ip + tcp
header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
packet = struct.pack("<IIII", 0, 0, len(frame), len(frame))
open(sys.argv[1], "wb").write(header + packet + frame)
END
}

# What systemd would do with the unit, as far as the documents ask for it.
cat >/run/bin/systemctl <<'END'
#!/bin/sh
unit() { sed -n "s|^$1=/usr/bin/||p" "$UNIT"; }
stop() {
    [ -e /run/ringway.pid ] || return 0
    kill "$(cat /run/ringway.pid)"
    while kill -0 "$(cat /run/ringway.pid)" 2>/dev/null; do sleep 0.1; done
    rm /run/ringway.pid
}
start() {
    if [ -e /run/ringway.pid ] && kill -0 "$(cat /run/ringway.pid)" 2>/dev/null; then return; fi
    $(unit ExecStartPre) || return
    mkdir -p /run/ringway
    $(unit ExecStart) >>/run/ringway.log 2>&1 &
    echo $! >/run/ringway.pid
    for _ in $(seq 300); do
        curl -fs -o /dev/null --noproxy '*' http://127.0.0.1:9810/readyz && return
        kill -0 $! || break
        sleep 0.1
    done
    cat /run/ringway.log >&2
    return 1
}
case "$*" in
'status ringway') kill -0 "$(cat /run/ringway.pid)" ;;
'start ringway' | 'enable --now ringway') start ;;
'stop ringway') stop ;;
'restart ringway') stop && start ;;
'reload ringway') $(unit ExecReload) ;;
*) echo "systemctl $*: documents.rs does not know this" >&2 && exit 1 ;;
esac
END
cat >/run/bin/journalctl <<'END'
#!/bin/sh
[ "$*" = '-u ringway -n 50' ] || exit 1
tail -n 50 /run/ringway.log
END
chmod +x /run/bin/systemctl /run/bin/journalctl

# For those pieces that want the file.
export BINARY="$(command -v ringway)"
# Findings are no failure.
ringway() { command ringway "$@" || [ $? = 3 ]; }

# Every backend has been asked and is up.
settled() {
    ringway status >/run/status && grep -q ' 2/2 up ' /run/status && ! grep -q 'not been checked yet' /run/status
}

# follow PLACE WHERE: runs what $PIECES/PLACE holds.
follow() {
    echo "== $1"
    case $2 in
    gateway) . "$PIECES/$1" ;;
    *) nsenter --net="/run/netns/$2" sh -eu "$PIECES/$1" ;;
    esac
}

serve
cp "$PIECES/ringway.toml" /etc/ringway/ringway.toml
systemctl start ringway
until settled; do sleep 0.2; done
