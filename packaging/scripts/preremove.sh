#!/bin/sh
# Before the files go. dpkg says "remove" or "upgrade"; rpm says how many versions will be left.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ] || exit 0
# Where criproxy stands at containerd's own socket, containerd goes back to it.
if [ -f /etc/containerd/criproxy.toml ]; then
	criproxy uninstall
	systemctl stop criproxy.socket criproxy.service || true
	systemctl restart containerd.service || true
fi
systemctl disable --now criproxy.socket criproxy.service || true
