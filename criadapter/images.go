package criadapter

import "github.com/distribution/reference"

// ImageNames returns the names by which an image may be listed that a client calls
// name: "busybox" is "docker.io/library/busybox:latest" for those who list it. It
// is for [known.Config].
func ImageNames(name string) []string {
	names := []string{name}
	ref, err := reference.ParseDockerRef(name)
	if err == nil && ref.String() != name {
		names = append(names, ref.String())
	}
	return names
}
