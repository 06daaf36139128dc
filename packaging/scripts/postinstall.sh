#!/bin/sh
# Runs after the files are installed. dpkg passes "configure" and the previous version, if there was one; rpm passes how
# many versions are installed now.
set -e

case "$1" in
configure) before=$2 ;;
1) before= ;;
[2-9]*) before=one ;;
*) exit 0 ;; # dpkg goes back to what was there before
esac

# An installation starts nothing: the administrator must first configure the runtimes.
if [ -z "$before" ]; then
	cat <<'TEXT'
criproxy is installed, and changes nothing yet:
  1. say in /etc/criproxy/config.yaml which runtimes there are, and try it: criproxy check -config /etc/criproxy/config.yaml
  2. systemctl enable --now criproxy.service
  3. start kubelet with --container-runtime-endpoint=unix:///run/criproxy.sock, or let criproxy stand at containerd's path:
     /usr/share/doc/criproxy/docs/migration.md has both, and the ways back
TEXT
fi

# Do nothing if the root folder is not the running system's, or without systemd.
[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true

# A running criproxy hands over to the new one, and no call is lost. Leave alone a criproxy that the administrator's own
# unit starts from another path.
pid=$(systemctl show -p MainPID --value criproxy.service 2>/dev/null || echo 0)
if [ -n "$before" ] && [ "${pid:-0}" -gt 0 ]; then
	case "$(readlink "/proc/$pid/exe")" in
	/usr/bin/criproxy | "/usr/bin/criproxy (deleted)") kill -USR2 "$pid" || true ;;
	esac
fi
