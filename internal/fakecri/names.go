package fakecri

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/distribution/reference"
)

const sha256Prefix = "sha256:"

// fullName returns the full name of an image: with the registry's domain, and with a tag or a digest.
//
//	busybox  →  docker.io/library/busybox:latest
func fullName(name string) string {
	if ref, err := reference.ParseDockerRef(name); err == nil {
		return ref.String()
	}
	return name
}

// isDigest reports whether name ends in a digest.
func isDigest(name string) bool { return strings.Contains(name, "@") }

// repository returns name without tag and digest.
func repository(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// digests returns the digests of the manifest and of the config that a registry has for a full name.
// They depend only on the name, so that an image has the same digests if it is pulled by tag or by
// the tag's digest, and the same id in all runtimes, as with real registries.
func digests(name string) (manifest, config string) {
	if _, digest, ok := strings.Cut(name, "@"); ok {
		manifest = digest
	} else {
		manifest = digest256("manifest of " + name)
	}
	return manifest, digest256("config of " + manifest)
}

func digest256(s string) string {
	sum := sha256.Sum256([]byte(s))
	return sha256Prefix + hex.EncodeToString(sum[:])
}

// spread returns a number below n that looks random and depends on s.
func spread(s string, n uint64) uint64 {
	sum := sha256.Sum256([]byte(s))
	return binary.LittleEndian.Uint64(sum[:]) % n
}
