package criadapter

import (
	"github.com/distribution/reference"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
)

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

// mergeImageFsInfo joins the filesystems of all runtimes, the primary's first, which
// are those that kubelet looks at. Of the others it takes what there is: kubelet
// does not start if this call fails.
func mergeImageFsInfo(parts []director.Part) (*codec.Frame, error) {
	if err := parts[0].Err; err != nil {
		return nil, err
	}
	var replies []*codec.Frame
	for _, p := range parts {
		if p.Err == nil {
			replies = append(replies, p.Reply)
		}
	}
	return codec.Concat(replies), nil
}
