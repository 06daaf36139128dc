#!/bin/sh
# After the files have gone. Only dpkg's purge asks for what was written since to go as well.
set -e

if [ "$1" = purge ]; then
	rm -rf "$DPKG_ROOT/var/lib/criproxy" "$DPKG_ROOT/var/log/criproxy"
fi
[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
