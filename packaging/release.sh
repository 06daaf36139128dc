#!/bin/bash
# What make release checks and signs. docs/release.md describes a release.
#
#	release.sh may-begin VERSION ORIGIN   ORIGIN is "command line" if the caller says which commit this is
#	release.sh sign FILE KEY              KEY is the file of an ssh key, or empty
set -euo pipefail
fail() { echo "make release: $*" >&2; exit 1; }

case $1 in
may-begin)
	version=$2 origin=$3
	[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || fail "VERSION=$version: want a version such as 1.0.0, as in make release VERSION=1.0.0"
	[ "$origin" = "command line" ] && exit
	git rev-parse -q --verify HEAD > /dev/null || fail "this is not a clone: the provenance needs the commit; clone the repository, or say COMMIT=HASH"
	grep -q "^## ${version%%-*}\$" CHANGELOG.md || fail "CHANGELOG.md has no section ${version%%-*}: see A release in CONTRIBUTING.md"
	[ -z "$(git status --porcelain)" ] || fail "the clone has changes that are not in a commit; commit or remove them:
$(git status --short)"
	;;
sign)
	file=$2 key=$3
	if [ -z "$key" ]; then
		echo "make release: NOT SIGNED: nobody can check who made $file. Say SIGNING_KEY=FILE, an ssh key, or its public half if an agent has it"
		exit
	fi
	rm -f "$file.sig" # ssh-keygen would ask
	ssh-keygen -q -Y sign -f "$key" -n criproxy "$file"
	;;
*) fail "release.sh may-begin|sign" ;;
esac
