package criadapter

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/rewrite"
)

// mergeImageFsInfo returns the filesystems of all runtimes in such a way that kubelet concludes the
// same as from the primary's answer alone. kubelet uses only the first entry of each list. If the
// first entries have different mount points, kubelet believes that containers and images are on
// different filesystems (pkg/kubelet/stats, KEP-4191). So both entries must be the primary's. The
// entries of the others follow those of the primary. A list that the primary does not have stays
// empty: containerd, unlike CRI-O, has no container_filesystems. No other field of the others
// counts.
//
// An error of another runtime does not fail the call, because kubelet does not start if it fails.
func mergeImageFsInfo(parts []director.Part) (*codec.Frame, error) {
	primary := parts[0]
	if primary.Err != nil {
		return nil, primary.Err
	}
	has := map[protowire.Number]bool{}
	if _, err := rewrite.Without(nil, primary.Reply.Bytes(), func(n protowire.Number) bool { has[n] = true; return true }); err != nil {
		return nil, fmt.Errorf("ImageFsInfo of backend %s: %w", primary.Backend, err)
	}
	replies := []*codec.Frame{primary.Reply}
	for _, other := range parts[1:] {
		if other.Err != nil {
			continue
		}
		lists, err := rewrite.Without(nil, other.Reply.Bytes(), func(n protowire.Number) bool {
			return !has[n] || n != imageFilesystems && n != containerFilesystems
		})
		if err == nil { // leave out a malformed reply
			replies = append(replies, codec.NewFrame(lists))
		}
	}
	return codec.Concat(replies), nil
}

var (
	fsFields             = (&runtimeapi.ImageFsInfoResponse{}).ProtoReflect().Descriptor().Fields()
	imageFilesystems     = fsFields.ByName("image_filesystems").Number()
	containerFilesystems = fsFields.ByName("container_filesystems").Number()
)
