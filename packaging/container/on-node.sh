#!/bin/sh
# Installs criproxy on the node that this container runs on, as a service of the node's systemd, and keeps the program
# and the configuration the same as in this container. It needs the node's pid namespace and privileges. The service
# goes on when this container ends: kubelet needs it to start this container again.
set -eu

node=${NODE_PID:-1}                          # a process of the node's namespaces
from=${FROM:-}                               # the root folder of this image
program=${PROGRAM:-/usr/local/bin/criproxy}  # where it is to be on the node
config=${CONFIG:-/etc/criproxy/config.yaml}  # in here: where the ConfigMap is mounted
root=/proc/$node/root

on_node() { nsenter -t "$node" -m -p -n -u -i "$@"; }

# criproxy on the node: for kubectl exec, which reaches the node's admin socket with criproxy-on-node dial-stdio.
[ $# = 0 ] || exec nsenter -t "$node" -m -p -n -u -i "$program" "$@"

# put FILE PATH MODE: makes the file on the node the same, all at once. It fails if it is so already.
put() {
	cmp -s "$1" "$root$2" && return 1
	mkdir -p "$root$(dirname "$2")"
	cp "$1" "$root$2.new"
	chmod "$3" "$root$2.new"
	mv "$root$2.new" "$root$2"
	echo "criproxy: $2 is new"
}

# Do not install a configuration with mistakes. A running criproxy would go on with the old one, but a criproxy that
# starts with it, as after a boot, would not serve, and kubelet could not start this pod to bring a better one.
configure() {
	cmp -s "$config" "$root/etc/criproxy/config.yaml" && return
	put "$config" /etc/criproxy/config.yaml.new 644 || true
	# What can be used makes a report, also while its runtimes are not there.
	if ! on_node "$program" check -o json -config /etc/criproxy/config.yaml.new > /tmp/report && [ ! -s /tmp/report ]; then
		rm -f "$root/etc/criproxy/config.yaml.new"
		echo "criproxy: the node keeps the configuration that it has: this one has mistakes" >&2
		exit 1
	fi
	mv "$root/etc/criproxy/config.yaml.new" "$root/etc/criproxy/config.yaml"
}

new=
sed "s|^ExecStart=/usr/bin/criproxy|ExecStart=$program|" "$from/usr/lib/systemd/system/criproxy.service" > /tmp/criproxy.service
put "$from/usr/bin/criproxy" "$program" 755 && new=yes
put /tmp/criproxy.service /etc/systemd/system/criproxy.service 644 && on_node systemctl daemon-reload

active=
on_node systemctl is-active --quiet criproxy.service && active=yes
# Upgraded: no call is lost.
[ "$active$new" != yesyes ] || on_node systemctl kill --kill-who=main -s USR2 criproxy.service
configure
[ "$active" ] || on_node systemctl enable --now criproxy.service
on_node "$program" status || true

[ "${ONCE:-}" ] || while sleep 10; do
	configure # the service reads it again by itself
done
