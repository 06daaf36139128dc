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
# The tools are built once: they are not in what is released.
tool() { go build -modfile=".ci/$1/go.mod" -o "$tmp/$1" "$2"; }
tool nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
tool sbom github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
go build -C .ci/release -o "$tmp/release" .
commit=$(git rev-parse HEAD 2> /dev/null || printf '%040d' 0)
ssh-keygen -q -t ed25519 -N '' -C 'for this test' -f "$tmp/key" # its signatures depend on nothing else
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || version=0.0.0
for copy in one another-name; do
	[ $copy = one ] || export GOCACHE="$tmp/cache"
	make -s -C "$tmp/$copy" VERSION="$version" COMMIT="$commit" SIGNING_KEY="$tmp/key" NFPM="$tmp/nfpm" CYCLONEDX="$tmp/sbom" RELEASE="$tmp/release" release
	(cd "$tmp/$copy/dist" && find . -type f ! -name sbom.log | LC_ALL=C sort | xargs sha256sum) > "$tmp/$copy.sums"
done
diff "$tmp/one.sums" "$tmp/another-name.sums"
echo "the same twice:"
cat "$tmp/one.sums"
