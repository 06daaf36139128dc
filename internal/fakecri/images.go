package fakecri

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An image belongs to a Runtime, whose mutex guards it.
type image struct {
	id      string // the digest of its config: "sha256:…"
	tags    []string
	digests []string
	size    uint64
}

type imageStore struct {
	table[image]
	names map[string]*image // by tag and by digest
}

func newImageStore() imageStore {
	return imageStore{table: newTable[image]("image"), names: map[string]*image{}}
}

// find returns the image called name, which is a tag, a digest, an id, or the unique beginning of an
// id, with or without "sha256:". Its errors are those of [table.get].
func (s *imageStore) find(name string) (*image, error) {
	if image := s.names[fullName(name)]; image != nil {
		return image, nil
	}
	if name != "" && !strings.HasPrefix(name, sha256Prefix) {
		name = sha256Prefix + name
	}
	return s.get(name)
}

// name gives a name to the image. No other image has it: see digests.
func (s *imageStore) name(i *image, name string) {
	s.names[name] = i
	list := &i.tags
	if isDigest(name) {
		list = &i.digests
	}
	if !slices.Contains(*list, name) {
		*list = append(slices.Clone(*list), name)
	}
}

func (s imageService) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := r.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "the request names no image")
	}
	name = fullName(name)
	manifest, id := digests(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.images.byIDOrNew(id)
	if !isDigest(name) {
		s.images.name(i, name)
	}
	s.images.name(i, repository(name)+"@"+manifest)
	return &runtimeapi.PullImageResponse{ImageRef: i.id}, nil
}

func (s *imageStore) byIDOrNew(id string) *image {
	if i := s.byID[id]; i != nil {
		return i
	}
	i := &image{id: id, size: 1<<20 + spread(id, 64<<20)}
	s.add(id, i)
	return i
}

func (s imageService) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.images.find(r.GetImage().GetImage())
	if err == nil {
		for _, name := range slices.Concat(i.tags, i.digests) {
			delete(s.images.names, name)
		}
		s.images.remove(i.id)
	}
	return &runtimeapi.RemoveImageResponse{}, unlessGone(err)
}

func (s imageService) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.images.find(r.GetImage().GetImage())
	if err != nil {
		return &runtimeapi.ImageStatusResponse{}, unlessGone(err)
	}
	reply := &runtimeapi.ImageStatusResponse{Image: i.listed()}
	if r.GetVerbose() {
		reply.Info = verbose("chainID", i.id, "imageSpec", map[string]string{"architecture": "amd64", "os": "linux"})
	}
	return reply, nil
}

func (s imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bytes, inodes uint64
	for i := range s.images.all {
		bytes += i.size
		inodes += i.size >> 14
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp:  s.now(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.cfg.ImageMount},
		UsedBytes:  &runtimeapi.UInt64Value{Value: bytes},
		InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
	}}}, nil
}

func (i *image) listed() *runtimeapi.Image {
	return &runtimeapi.Image{Id: i.id, RepoTags: i.tags, RepoDigests: i.digests, Size: i.size}
}
