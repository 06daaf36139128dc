package fakecri

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/distribution/reference"
)

const sha256Prefix = "sha256:"

// fullName returns an image's name as a registry would have it: with its domain,
// and with a tag or a digest.
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

// digests returns those of the manifest and of the config that a registry has
// for the full name. They depend on nothing else, as in real life: what was
// pulled by tag is the same image as what is pulled by the tag's digest, and the
// same image has one id in all runtimes.
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
