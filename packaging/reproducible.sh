#!/bin/bash
# Builds the release from two copies of the tree, in folders with different names, the second time with an empty build
# cache. It fails unless all files have the same bytes. ARCHS limits the architectures, as in the Makefile.
set -euo pipefail
version=$1
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT

mkdir "$tmp/one" "$tmp/another-name"
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$tmp/one"
cp -a "$tmp/one/." "$tmp/another-name"
nfpm=$tmp/nfpm
go build -modfile=.ci/nfpm/go.mod -o "$nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm # once: it is not in what is released
for copy in one another-name; do
	[ $copy = one ] || export GOCACHE="$tmp/cache"
	make -s -C "$tmp/$copy" VERSION="$version" NFPM="$nfpm" dist deb rpm
	(cd "$tmp/$copy/dist" && find . -type f | LC_ALL=C sort | xargs sha256sum) > "$tmp/$copy.sums"
done
diff "$tmp/one.sums" "$tmp/another-name.sums"
echo "the same twice:"
cat "$tmp/one.sums"
