#!/bin/sh
# Runs after the files are removed. Only dpkg's purge also removes files that criproxy has written.
set -e

if [ "$1" = purge ]; then
	rm -rf "$DPKG_ROOT/var/lib/criproxy" "$DPKG_ROOT/var/log/criproxy"
fi
[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
