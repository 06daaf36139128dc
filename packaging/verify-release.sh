#!/bin/bash
# Checks the files of a release as their users can, with tools that machines have: ssh-keygen, sha256sum, tar, gzip, and
# dpkg-deb or rpm if they are there.
#
#	verify-release.sh FOLDER VERSION [SIGNERS]
#
# SIGNERS lists the keys that may sign a release (see ssh-keygen(1), ALLOWED SIGNERS). Take it from another place than the
# files: it is what you trust. Files that are not in FOLDER are left out, and said to be.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: verify-release.sh FOLDER VERSION [SIGNERS]" >&2; exit 2; }
folder=$1 version=$2
signers=$(realpath "${3:-$(dirname "$0")/allowed_signers}")
cd "$folder"
name=criproxy-$version packed=${version/-/\~} # as nfpm writes the version of a release candidate
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "verify-release: $*" >&2; exit 1; }
ok() { echo "ok: $*"; }

[ -e "$name.sha256" ] || fail "$folder has no $name.sha256"
[ -e "$name.sha256.sig" ] || fail "$name.sha256.sig: there is none, so nobody says that these files are a release of criproxy"
[ -e "$signers" ] || fail "$signers: there is no such file; say which keys may sign a release: make verify-release VERSION=$version SIGNERS=FILE (docs/release.md)"
ssh-keygen -Y verify -f "$signers" -I release -n criproxy -s "$name.sha256.sig" < "$name.sha256" > "$tmp/said" 2>&1 ||
	fail "$name.sha256.sig: $(tail -n 1 "$tmp/said"); no key that $signers lists under the name release has signed $name.sha256"
ok "the signature of $name.sha256, by a key of $signers"

# Each file is what the signed list says, and no other file passes as part of the release.
sha256sum --quiet --check --ignore-missing "$name.sha256" || fail "the files above are not what was signed"
while read -r _ file; do
	[ -e "$file" ] || echo "left out: $file is not here"
done < "$name.sha256"
for file in criproxy[-_]*"$version"* kubectl-criproxy-*; do
	[ -e "$file" ] || continue
	case $file in "$name.sha256" | "$name.sha256.sig") continue ;; esac
	grep -q " $file\$" "$name.sha256" || fail "$file: the signed list does not have it"
done
ok "all files are what was signed"

sum() { sha256sum | cut -d ' ' -f 1; }
if [ -e "$name.provenance.json" ]; then
	grep -q '"predicateType": "https://slsa.dev/provenance/v1"' "$name.provenance.json" || fail "$name.provenance.json is not SLSA's provenance"
	while read -r digest file; do
		[ "$file" = "$name.provenance.json" ] || grep -q "\"sha256\": \"$digest\"" "$name.provenance.json" || fail "$file: the provenance does not have it"
	done < "$name.sha256"
	commit=$(sed -n 's/.*"commit": "\([0-9a-f]*\)".*/\1/p' "$name.provenance.json")
	ok "the provenance has all files; they were made of commit $commit with $(sed -n 's/.*"goVersion": "\(.*\)".*/\1/p' "$name.provenance.json")"
fi

for bom in "$name"-*.cdx.json; do
	[ -e "$bom" ] || continue
	grep -q '"bomFormat": "CycloneDX"' "$bom" || fail "$bom is not a bill of materials of CycloneDX"
done

# The packages and the image hold the same program.
for binary in "$name"-linux-amd64 "$name"-linux-arm64; do
	[ -e "$binary" ] || continue
	arch=${binary##*-} want=$(sum < "$binary") checked=
	deb=$(ls "criproxy_$packed"-*"_$arch.deb" 2> /dev/null || true)
	if [ -e "$deb" ] && command -v dpkg-deb > /dev/null; then
		[ "$(dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/bin/criproxy | sum)" = "$want" ] || fail "$deb holds another program than $binary"
		checked+=" $deb"
	fi
	rpm=$(ls criproxy-"$packed"-*."$(case $arch in amd64) echo x86_64 ;; arm64) echo aarch64 ;; esac)".rpm 2> /dev/null || true)
	if [ -e "$rpm" ] && command -v rpm > /dev/null; then
		rpm -qp --nosignature --qf '[%{FILENAMES} %{FILEDIGESTS}\n]' "$rpm" | grep -x "/usr/bin/criproxy $want" > /dev/null || fail "$rpm holds another program than $binary"
		checked+=" $rpm"
	fi
	ok "$binary is the program in:${checked:- (no package that this machine can open)}"
done

if [ -e "$name-oci.tar" ]; then
	mkdir "$tmp/image" && tar -xf "$name-oci.tar" -C "$tmp/image"
	for blob in "$tmp"/image/blobs/sha256/*; do
		[ "$(sum < "$blob")" = "${blob##*/}" ] || fail "$name-oci.tar: the blob ${blob##*/} is another"
	done
	for binary in "$name"-linux-*[!n]; do
		[ -e "$binary" ] || continue
		found=
		for blob in "$tmp"/image/blobs/sha256/*; do
			gzip -t "$blob" 2> /dev/null || continue
			[ "$(gzip -dc "$blob" | tar -xO usr/bin/criproxy | sum)" = "$(sum < "$binary")" ] && found=yes
		done
		[ "$found" ] || fail "$name-oci.tar: no layer has the program $binary"
	done
	ok "$name-oci.tar holds what its index names, with the same programs"
fi

here=$name-linux-$(case $(uname -m) in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac)
if [ -e "$here" ]; then
	install -m 755 "$here" "$tmp/criproxy"
	said=$("$tmp/criproxy" version) said=${said%%$'\n'*}
	[[ $said == "criproxy $version"* ]] || fail "$here says that it is $said"
	ok "it says: $said"
fi
