package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// Each test here is about a defect of one of the predecessors. Others are in files by subject: events_test.go (no
// streams), failures_test.go (lost status codes), limits_test.go (a limit of 4 MiB), versions_test.go (namespaces of
// v1alpha1).

// The first predecessor refused unknown methods. Others refuse them if they are built with a newer CRI than they were
// written for.
func TestUnknownMethodPassesThrough(t *testing.T) {
	b := start(t)
	front := raw(t, b.proxy.socket)
	for _, method := range []string{
		rt("FromTheFuture"), "/" + v1alpha2 + ".RuntimeService/FromTheFuture", "/runtime.v2.RuntimeService/Version",
		"/containerd.services.version.v1.Version/Version", "/containerd.services.namespaces.v1.Namespaces/List",
	} {
		want := call(t, t.Context(), raw(t, b.one.Socket()), method, nil, nil)
		got := call(t, t.Context(), front, method, nil, nil)
		assert.Equal(t, want.replies, got.replies, method)
		assert.Equal(t, want.status.Proto().String(), got.status.Proto().String(), method)
		assert.Equal(t, want.header, got.header, method)
		assert.Equal(t, want.trailer, got.trailer, method)
	}

	t.Run("whatever its kind of streaming", func(t *testing.T) {
		echo := func(name string) string {
			return serve(t, func(_ string, stream grpc.ServerStream) error {
				for {
					f := &codec.Frame{}
					if err := stream.RecvMsg(f); errors.Is(err, io.EOF) {
						return nil
					} else if err != nil {
						return err
					}
					if err := stream.SendMsg(codec.NewFrame(append([]byte(name), f.Bytes()...))); err != nil {
						return err
					}
				}
			})
		}
		p := startProxy(t, "-connect", connect(echo("one "), echo("two ")))
		cs, err := raw(t, p.socket).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, rt("TalkInTheFuture"))
		require.NoError(t, err)
		for _, said := range []string{"hello", "\xff\x00", ""} { // each answered before the next is sent
			require.NoError(t, cs.SendMsg(codec.NewFrame([]byte(said))))
			f := &codec.Frame{}
			require.NoError(t, cs.RecvMsg(f))
			assert.Equal(t, "one "+said, string(f.Bytes()))
		}
		require.NoError(t, cs.CloseSend())
		assert.ErrorIs(t, cs.RecvMsg(&codec.Frame{}), io.EOF)
	})
}

// The first predecessor decoded messages with the types that it was built with, and encoded them again: unknown fields
// were lost, and of an image's specification everything except the name.
func TestUnknownFieldsSurvive(t *testing.T) {
	b := start(t)
	relays := map[*side]*relay{b.one: newRelay(t, b.one.Socket(), nil), b.two: newRelay(t, b.two.Socket(), nil)}
	p := inFrontOf(t, relays[b.one].socket, relays[b.two].socket)
	cc := raw(t, p.socket)
	for _, s := range b.sides() {
		pull := func(image func(string) string) proto.Message {
			return &runtimeapi.PullImageRequest{
				Image: &runtimeapi.ImageSpec{
					Image: image(s.app()), UserSpecifiedImage: image(s.app()),
					Annotations: map[string]string{"example.com/kept": second + "/" + s.app()},
				},
				SandboxConfig: s.choose(s.PodConfig("unknown")),
			}
		}
		ctx, key := marked(t.Context())
		sandbox := pull(s.image).(*runtimeapi.PullImageRequest).SandboxConfig
		request, want := pull(s.image).(*runtimeapi.PullImageRequest), pull(func(back string) string { return back }).(*runtimeapi.PullImageRequest)
		request.SandboxConfig, want.SandboxConfig = sandbox, sandbox
		got := call(t, ctx, cc, img("PullImage"), determined(t, request), nil)
		require.Equal(t, codes.OK, got.status.Code(), got.status)
		calls := relays[s].find(key)
		require.Len(t, calls, 1)
		requests, _ := calls[0].said()
		assert.Equal(t, []string{string(determined(t, want))}, requests, "nothing but the names is different")
		assert.Empty(t, relays[b.other(s)].find(key))
	}

	t.Run("in replies", func(t *testing.T) {
		list := func(id string) *runtimeapi.ListContainersResponse {
			return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
				Id: id, Image: &runtimeapi.ImageSpec{Annotations: map[string]string{"a": "b"}}, Labels: map[string]string{"id": id[len(id)-2:]},
			}}}
		}
		backend := func(id string) string {
			return serve(t, func(_ string, stream grpc.ServerStream) error {
				if err := stream.RecvMsg(&codec.Frame{}); err != nil {
					return err
				}
				return stream.SendMsg(codec.NewFrame(determined(t, list(id))))
			})
		}
		p := startProxy(t, "-connect", connect(backend("1f"), backend("2f")))
		var got outcome
		eventually(t, func() error {
			got = call(t, t.Context(), raw(t, p.socket), rt("ListContainers"), nil, nil)
			return got.status.Err()
		})
		assert.Equal(t, []string{string(determined(t, list("1f"))) + string(determined(t, list(second+"__2f")))}, got.replies)
	})
}

// determined encodes a stained message in the same way each time.
func determined(t testing.TB, m proto.Message) []byte {
	t.Helper()
	m = proto.Clone(m)
	stain(m.ProtoReflect())
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return b
}

// The first predecessor answered a pull or removal with an empty success when the runtime was away, which kubelet
// believed.
func TestPullToAnOfflineRuntimeIsNotSuccess(t *testing.T) {
	b := start(t)
	absent := filepath.Join(folder(t), "absent.sock")
	p := startProxy(t, "-connect", connect(b.one.Socket(), absent))
	c := dial(t, p.socket, v1)
	_, err := b.one.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: b.one.app()}})
	require.NoError(t, err)
	image := &runtimeapi.ImageSpec{Image: b.two.image(b.two.app())}
	pod := b.one.PodConfig("offline")
	pod.Annotations[target] = second
	none := second + "__" + strings.Repeat("0", 64)
	for name, try := range map[string]func(ctx context.Context) error{
		"pull": func(ctx context.Context) error {
			_, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image})
			return err
		},
		"remove": func(ctx context.Context) error {
			_, err := c.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: image})
			return err
		},
		"pull by annotation": func(ctx context.Context) error {
			_, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: b.one.app()}, SandboxConfig: pod})
			return err
		},
		"run": func(ctx context.Context) error {
			_, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
			return err
		},
		"start": func(ctx context.Context) error {
			_, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: none})
			return err
		},
		"stop": func(ctx context.Context) error {
			_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: none})
			return err
		},
		"stop pod": func(ctx context.Context) error {
			_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: none})
			return err
		},
		"rm": func(ctx context.Context) error {
			_, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: none})
			return err
		},
		"exec sync": func(ctx context.Context) error {
			_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: none, Cmd: []string{"app"}})
			return err
		},
	} {
		err := try(t.Context())
		assert.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", name, err)
		assert.ErrorContains(t, err, second, name)
	}
	assert.NotNil(t, b.one.has(t, b.one.app()), "the primary's is untouched")
	assert.Empty(t, b.one.pods(t))
	_, err = c.Version(t.Context(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err, "the primary answers as ever")
	assert.NoError(t, run(t, c, b.one, "online").side.alive())
}

// alive returns an error if the daemon is not alive.
func (s *side) alive() error {
	if _, alive := s.PID(); !alive {
		return fmt.Errorf("%s has ended", s.Name)
	}
	return nil
}

// The first predecessor waited for an absent runtime regardless of the caller's deadline, and looped busily on a runtime
// that accepted connections and did not answer.
func TestACallToAnAbsentRuntimeKeepsItsDeadline(t *testing.T) {
	mute, err := net.Listen("unix", filepath.Join(folder(t), "mute.sock")) // connections succeed, and are never accepted
	require.NoError(t, err)
	defer mute.Close()
	for name, socket := range map[string]string{
		"absent": filepath.Join(folder(t), "absent.sock"),
		"mute":   mute.Addr().String(),
	} {
		_, primary := fake(t, fakecri.Config{})
		for which, sockets := range map[string][]string{"the primary": {socket, primary}, "the second": {primary, socket}} {
			t.Run(name+" is "+which, func(t *testing.T) {
				p := startProxy(t, "-connect", connect(sockets...))
				c := dial(t, p.socket, v1)
				id := strings.Repeat("0", 64)
				if which == "the second" {
					id = second + "__" + id
				}
				const deadline = time.Second
				var all sync.WaitGroup
				for range 10 {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), deadline)
						defer cancel()
						_, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
						assert.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), err)
					})
				}
				all.Wait()
			})
		}
	}
}

func TestARuntimeThatFailsItsProbeIsNotAskedInALoop(t *testing.T) {
	var asked atomic.Int64
	socket := serve(t, func(method string, stream grpc.ServerStream) error {
		asked.Add(1)
		return status.Error(codes.Unknown, "not yet")
	})
	_, primary := fake(t, fakecri.Config{})
	p := startProxy(t, "-connect", connect(primary, socket))
	_, err := dial(t, p.socket, v1).ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: second + "__0"})
	assert.ErrorContains(t, err, "not yet")
	const pause = 10 * time.Millisecond
	began, before := time.Now(), asked.Load()
	time.Sleep(time.Second) // it is asked for several lists and its version at once, and then again and again
	n := asked.Load() - before
	assert.Less(t, n, int64(2*time.Since(began)/pause), "there is a pause between two probes")
	eventually(t, func() error {
		if asked.Load() == before+n {
			return errors.New("it is not asked again")
		}
		return nil
	})
}

func TestARuntimeThatComesLaterIsFound(t *testing.T) {
	_, primary := fake(t, fakecri.Config{})
	socket := filepath.Join(folder(t), "later.sock")
	p := startProxy(t, "-connect", connect(primary, socket))
	c := dial(t, p.socket, v1)
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "late", Uid: "late"}, Annotations: map[string]string{target: second}}
	_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	late := fakecri.New(fakecri.Config{})
	serveFake(t, late, socket)
	eventually(t, func() error {
		_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		return err
	})
	require.Len(t, late.Pods(), 1)
	require.NoError(t, p.waitForAll(t.Context()))
	list, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	assert.Equal(t, []string{second + "__" + late.Pods()[0].Id}, ids(list.Items, (*runtimeapi.PodSandbox).GetId))
}

// The first predecessor called one runtime after another. Here each runtime answers only when the other has been called.
func TestListsAreAskedInParallel(t *testing.T) {
	var sockets []string
	var waiting [2]chan struct{}
	for i := range waiting {
		waiting[i] = make(chan struct{})
		var once sync.Once
		rt, socket := fake(t, fakecri.Config{})
		rt.Fault(func(ctx context.Context, method string, _ any) error {
			if !isMarked(ctx) {
				return nil
			}
			once.Do(func() { close(waiting[i]) })
			select {
			case <-waiting[1-i]:
				return nil
			case <-ctx.Done():
				return status.Error(codes.Aborted, "the other was not asked meanwhile")
			}
		})
		sockets = append(sockets, socket)
	}
	p := inFrontOf(t, sockets...)
	ctx, _ := marked(t.Context())
	_, err := dial(t, p.socket, v1).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	assert.NoError(t, err)
}

// isMarked reports whether a call at a server comes from a test.
func isMarked(ctx context.Context) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	return len(md[mark]) > 0
}

// One predecessor joined replies in order of arrival, so that the order of lists varied.
func TestListsMergeInTheOrderOfTheRuntimes(t *testing.T) {
	one, oneSocket := fake(t, fakecri.Config{})
	two, twoSocket := fake(t, fakecri.Config{})
	one.Fill(3)
	two.Fill(3)
	var want []string
	for _, p := range one.Pods() {
		want = append(want, p.Id)
	}
	for _, p := range two.Pods() {
		want = append(want, second+"__"+p.Id)
	}
	p := inFrontOf(t, oneSocket, twoSocket)
	c := dial(t, p.socket, v1)
	for _, runtimes := range [][2]*fakecri.Runtime{{one, two}, {two, one}} {
		first, last := runtimes[0], runtimes[1]
		answered := make(chan struct{})
		var once sync.Once
		first.FaultAfter(func(ctx context.Context, _ string, _ any) error {
			if isMarked(ctx) {
				once.Do(func() { close(answered) })
			}
			return nil
		})
		last.Fault(func(ctx context.Context, _ string, _ any) error {
			if isMarked(ctx) {
				<-answered
			}
			return nil
		})
		ctx, _ := marked(t.Context())
		list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		assert.Equal(t, want, ids(list.Items, (*runtimeapi.PodSandbox).GetId))
		first.FaultAfter(nil)
		last.Fault(nil)
	}
}

// All predecessors lost metadata of requests, and headers and trailers of responses.
func TestMetadataTravelsBothWays(t *testing.T) {
	backend := func(name string) (string, func() metadata.MD) {
		var mu sync.Mutex
		var got metadata.MD
		socket := serve(t, func(method string, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
			if isMarked(stream.Context()) {
				mu.Lock()
				got, _ = metadata.FromIncomingContext(stream.Context())
				mu.Unlock()
				if err := stream.SendHeader(metadata.Pairs("x-header", name, "x-header-bin", "\x00\xff"+name)); err != nil {
					return err
				}
				stream.SetTrailer(metadata.Pairs("x-trailer", name, "x-trailer", "twice"))
			}
			return stream.SendMsg(&codec.Frame{})
		})
		return socket, func() metadata.MD {
			mu.Lock()
			defer mu.Unlock()
			return got
		}
	}
	one, oneGot := backend("one")
	two, twoGot := backend("two")
	p := inFrontOf(t, one, two)
	for name, test := range map[string]struct {
		method  string
		request proto.Message
		who     []string
	}{
		"one runtime":    {rt("StopContainer"), &runtimeapi.StopContainerRequest{ContainerId: "7f"}, []string{"one"}},
		"the other":      {rt("StopContainer"), &runtimeapi.StopContainerRequest{ContainerId: second + "__7f"}, []string{"two"}},
		"both":           {rt("ListContainers"), &runtimeapi.ListContainersRequest{}, []string{"one", "two"}},
		"unknown method": {rt("FromTheFuture"), &runtimeapi.VersionRequest{}, []string{"one"}},
		"older version":  {"/" + v1alpha2 + ".RuntimeService/StopContainer", &runtimeapi.StopContainerRequest{ContainerId: second + "__7f"}, []string{"two"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, key := marked(t.Context())
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-1-2-01", "blob-bin", "\x00\xff", "twice", "a", "twice", "b")
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			got := call(t, ctx, raw(t, p.socket), test.method, marshal(t, test.request), nil)
			require.Equal(t, codes.OK, got.status.Code(), got.status)
			var trailers, binary []string
			for _, who := range test.who {
				trailers = append(trailers, who, "twice")
				binary = append(binary, "\x00\xff"+who)
				md := map[string]func() metadata.MD{"one": oneGot, "two": twoGot}[who]()
				assert.Equal(t, []string{key}, md[mark])
				assert.Equal(t, []string{"00-1-2-01"}, md["traceparent"])
				assert.Equal(t, []string{"\x00\xff"}, md["blob-bin"])
				assert.Equal(t, []string{"a", "b"}, md["twice"])
			}
			assert.Equal(t, test.who, got.header["x-header"])
			assert.Equal(t, binary, got.header["x-header-bin"])
			assert.Equal(t, trailers, got.trailer["x-trailer"])
		})
	}
}

// grpc-proxy's handler sends headers with the first message, and so loses the headers of failing calls.
func TestHeadersAndDetailsOfAFailedCallSurvive(t *testing.T) {
	detail, err := anypb.New(wrapperspb.String("detail"))
	require.NoError(t, err)
	failure := status.FromProto(&spb.Status{Code: int32(codes.FailedPrecondition), Message: "RegistryUnavailable: é\n\"%", Details: []*anypb.Any{detail}})
	backend := serve(t, func(_ string, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		if !isMarked(stream.Context()) {
			return stream.SendMsg(&codec.Frame{})
		}
		if err := stream.SendHeader(metadata.Pairs("x-header", "early")); err != nil {
			return err
		}
		stream.SetTrailer(metadata.Pairs("x-trailer", "late"))
		return failure.Err()
	})
	_, other := fake(t, fakecri.Config{})
	p := inFrontOf(t, other, backend)
	single := inFrontOf(t, backend)
	ctx, _ := marked(t.Context())
	id := marshal(t, &runtimeapi.StopContainerRequest{ContainerId: second + "__7f"})
	for name, got := range map[string]outcome{
		"unary":   call(t, ctx, raw(t, p.socket), rt("StopContainer"), id, nil),
		"single":  call(t, ctx, raw(t, single.socket), rt("ListContainers"), nil, nil),
		"stream":  call(t, ctx, raw(t, single.socket), rt("GetContainerEvents"), nil, nil),
		"unknown": call(t, ctx, raw(t, single.socket), rt("FromTheFuture"), nil, nil),
	} {
		assert.Equal(t, []string{"early"}, got.header["x-header"], name)
		assert.Equal(t, []string{"late"}, got.trailer["x-trailer"], name)
		assert.True(t, proto.Equal(failure.Proto(), got.status.Proto()), "%s: %v", name, got.status)
	}
}

// The first predecessor prefixed tags with a runtime's name, but not digests: images by digest had no owner.
func TestImageDigestsArePrefixed(t *testing.T) {
	b := start(t)
	c := dial(t, b.proxy.socket, v1)
	for _, s := range b.sides() {
		ref := s.reg.Image("testbed/app:1")
		_, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: s.image(ref)}})
		require.NoError(t, err)
		direct := s.has(t, ref)
		require.NotNil(t, direct)
		list, err := c.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		require.NoError(t, err)
		i := slices.IndexFunc(list.Images, func(i *runtimeapi.Image) bool { return i.Id == s.image(direct.Id) })
		require.GreaterOrEqual(t, i, 0)
		assert.Equal(t, []string{s.image(direct.RepoDigests[0])}, list.Images[i].RepoDigests)
		assert.Equal(t, []string{s.image(ref)}, list.Images[i].RepoTags)
	}
}

// The first predecessor panicked when it could not convert a message.
func TestMalformedMessagesHurtNoOtherCall(t *testing.T) {
	b := start(t)
	front := raw(t, b.proxy.socket)
	garbage := [][]byte{
		[]byte("\xff"), []byte("\x0a\xff\xff\xff\xff\x0f"), []byte("\x0a\x05two"), bytes.Repeat([]byte{0x0b}, 10000), // groups without an end
		bytes.Repeat([]byte("\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"), 10), []byte("\x00\x00"),
	}
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			method := services.Get(i).Methods().Get(j)
			if method.Input().Fields().Len() == 0 || method.Name() == "GetContainerEvents" {
				continue
			}
			for _, version := range []string{v1, v1alpha2, v1alpha1} {
				for _, g := range garbage {
					name := fmt.Sprintf("/%s.%s/%s", version, services.Get(i).Name(), method.Name())
					got := call(t, t.Context(), front, name, g, nil)
					assert.NotEqual(t, codes.OK, got.status.Code(), "%s %x", name, g[:min(len(g), 12)])
				}
			}
		}
	}
	_, err := dial(t, b.proxy.socket, v1).Version(t.Context(), &runtimeapi.VersionRequest{})
	assert.NoError(t, err)
}

// The first predecessor logged whole requests, including passwords, at the level that its unit file sets.
func TestNoPasswordInTheLog(t *testing.T) {
	b := start(t)
	private, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: testbed.Require(t, build.App).App, Username: "planted-user", Password: "planted-password"})
	require.NoError(t, err)
	defer private.Close()
	config := filepath.Join(folder(t), "criproxy.yaml")
	text := fmt.Sprintf("backends:\n- address: %s\n- name: %s\n  address: %s\n  credentials: true\n", b.one.Socket(), second, b.two.Socket())
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	p := startProxy(t, "-config", config) // logs at level 5
	require.NoError(t, p.waitForAll(t.Context()))
	planted := []string{
		"planted-user", "planted-password", "planted-auth", "planted-identity", "planted-registry",
		"planted-env", // in the request, in what the command prints, and in the verbose status
	}
	for _, version := range []string{v1, v1alpha2} {
		c := dial(t, p.socket, version)
		for _, s := range b.sides() {
			image := &runtimeapi.ImageSpec{Image: s.image(private.Image("testbed/app:1"))}
			_, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: image, Auth: &runtimeapi.AuthConfig{Username: "planted-user", Password: "planted-password"}})
			require.NoError(t, err)
			require.Contains(t, usernames(private), "planted-user", "the credentials did reach the registry")
			for _, auth := range []*runtimeapi.AuthConfig{
				{Username: "planted-user", Password: "planted-password-2"}, {Auth: "cGxhbnRlZC1hdXRo planted-auth"},
				{IdentityToken: "planted-identity"}, {RegistryToken: "planted-registry"},
			} {
				_, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: s.image(private.Image("testbed/user:1"))}, Auth: auth})
				assert.Error(t, err)
			}

			has := run(t, c, s, "secrets")
			config := has.container()
			config.Envs = []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte("planted-env")}}
			id := has.create(t, config)
			_, err = c.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
			require.NoError(t, err)
			assert.Contains(t, has.exec(t, id, "app", "env"), "PASSWORD=planted-env")
			verbose, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
			require.NoError(t, err)
			assert.Contains(t, verbose.Info["info"], "planted-env")
			url, err := c.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"app"}, Stdout: true})
			require.NoError(t, err)
			planted = append(planted, path.Base(url.Url))
			config.Metadata.Name = "fails"
			config.Image = &runtimeapi.ImageSpec{Image: s.image(private.Image("testbed/missing:1"))}
			_, err = c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: has.id, Config: config, SandboxConfig: has.config})
			assert.Error(t, err)
			_, err = s.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: private.Image("testbed/app:1")}})
			assert.NoError(t, err)
		}
	}
	log := p.log()
	assert.Contains(t, log, "PullImage", "it does tell of failed calls")
	for _, secret := range planted {
		assert.NotContains(t, log, secret)
	}
}

// usernames returns the user names in the requests to a registry.
func usernames(r *runtimes.Registry) []string {
	var all []string
	for _, request := range r.Requests() {
		all = append(all, request.Username)
	}
	return all
}
