package criadapter

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/rewrite"
)

// mergeImageFsInfo shows the filesystems of all runtimes, and means to kubelet what the
// primary's answer alone would mean: kubelet takes the first entry of each list, and takes
// a node whose two first entries have different mount points for one whose containers are
// on another filesystem than its images (pkg/kubelet/stats, KEP-4191). So both must be the
// primary's. Of each list the others' entries come behind the primary's, and are left out
// where it has none: containerd, which has no container_filesystems, beside CRI-O. Nothing
// else is taken of the others.
//
// The answer does not need the others: kubelet does not start if this call fails.
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
		if err == nil { // or it is not known
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
