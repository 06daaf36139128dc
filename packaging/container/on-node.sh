# Installs criproxy on this node, as a service of its systemd: the program and the configuration of the image below $from.
# criproxy-on-node runs it with the node's own shell, as root, in the namespaces of the node. The service goes on when
# this ends: kubelet needs it to start the container again.
set -eu

from=$FROM                                         # the root folder of the image
config=$from${CONFIG:-/etc/criproxy/config.yaml}   # in the image: where the ConfigMap is mounted
program=${PROGRAM:-/usr/local/bin/criproxy}        # where it is to be on the node
tmp=/run/criproxy-on-node                          # only root can write to /run
before=$tmp/before.json                            # criproxy's status before the last update

fail() {
	echo "criproxy: $*" >&2
	exit 1
}

# serves reports whether the program that serves is the installed one.
serves() {
	cmp -s "/proc/$(systemctl show -p MainPID --value criproxy.service)/exe" "$program"
}

# criproxy-on-node ready: it succeeds when the node runs what this pod has brought, and nothing is worse than before.
if [ "$*" = ready ]; then
	serves || fail "the program that was installed does not serve"
	id=$(sha256sum /etc/criproxy/config.yaml | cut -c 1-8)
	"$program" status -o json | grep -q "\"id\":\"$id\"" || fail "the configuration $id is not in use"
	exec "$program" status -line -exit-code -before "$before"
fi
# criproxy on the node: for kubectl exec, which reaches the node's admin socket with criproxy-on-node dial-stdio.
[ $# = 0 ] || exec "$program" "$@"

# put FILE PATH MODE: makes the file on the node the same, all at once.
put() {
	cmp -s "$1" "$2" && return
	mkdir -p "$(dirname "$2")"
	cp "$1" "$2.new"
	chmod "$3" "$2.new"
	mv "$2.new" "$2"
	echo "criproxy: $2 is new"
}

mkdir -p -m 700 "$tmp"
unit=/etc/systemd/system/criproxy.service
sed "s|^ExecStart=/usr/bin/criproxy|ExecStart=$program|" "$from/usr/lib/systemd/system/criproxy.service" > "$tmp/criproxy.service"
if ! cmp -s "$from/usr/bin/criproxy" "$program" || ! cmp -s "$tmp/criproxy.service" "$unit" || ! cmp -s "$config" /etc/criproxy/config.yaml; then
	# Install nothing if the configuration has mistakes. A running criproxy would go on with the old one, but one that
	# starts with it, as after a boot, would not serve, and kubelet could not start this pod to bring a better one. What
	# can be used makes a report, also while its runtimes are not there.
	if ! "$from/usr/bin/criproxy" check -o json -config "$config" > "$tmp/report" && [ ! -s "$tmp/report" ]; then
		fail "the node keeps what it has: this configuration has mistakes"
	fi
	"$program" status -o json > "$before" 2> "$tmp/error" || echo '{}' > "$before" # not there yet
	put "$from/usr/bin/criproxy" "$program" 755
	put "$tmp/criproxy.service" "$unit" 644
	put "$config" /etc/criproxy/config.yaml 644 # the service reads it again by itself
	systemctl daemon-reload
fi
[ -e "$before" ] || echo '{}' > "$before" # the node has booted

if ! systemctl is-active --quiet criproxy.service; then
	systemctl enable --now criproxy.service
elif ! serves; then
	systemctl kill --kill-who=main -s USR2 criproxy.service # it hands over, and no call is lost
	for _ in $(seq 70); do # the new process has a minute
		serves && break
		sleep 1
	done
	# If this fails, kubelet starts it again, after longer and longer pauses.
	serves || fail "the handover to the new program failed, and the old one goes on: journalctl -u criproxy says why"
fi
"$program" status || true

[ "${ONCE:-}" ] || exec sleep infinity
