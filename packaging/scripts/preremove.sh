#!/bin/sh
# Runs before the files are removed. dpkg passes "remove" or "upgrade"; rpm passes how many versions will be left.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ] || exit 0
# Where criproxy stands at a runtime's own socket, the runtime goes back to it.
runtime=
[ ! -f /etc/containerd/criproxy.toml ] || runtime=containerd.service
[ ! -f /etc/crio/crio.conf.d/zz-criproxy.conf ] || runtime=crio.service
if [ "$runtime" ]; then
	criproxy uninstall
	systemctl stop criproxy.socket criproxy.service || true
	systemctl restart "$runtime" || true
fi
systemctl disable --now criproxy.socket criproxy.service || true
