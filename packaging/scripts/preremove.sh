#!/bin/sh
# Before the files go. dpkg says "remove" or "upgrade"; rpm says how many versions will be left.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ] || exit 0
systemctl disable --now criproxy.socket criproxy.service || true
