package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// ways are the ways in which a runtime can be gone.
var ways = []struct {
	name string
	go_  func(m *testkit.Machine)
	back func(m *testkit.Machine)
	slow bool   // everything except its lists works
	ids  string // the form of ids that is tested with it
}{
	{"killed", (*testkit.Machine).Kill, (*testkit.Machine).Start, false, config.PrefixIDs},
	{"frozen", (*testkit.Machine).Freeze, (*testkit.Machine).Thaw, false, config.NativeIDs},
	{"starting as containerd 1.6 does",
		func(m *testkit.Machine) {
			m.When(testkit.Failing(status.Error(codes.Unknown, "server is not initialized yet")))
		},
		func(m *testkit.Machine) { m.When(nil) }, false, config.PrefixIDs},
	{"starting as containerd 2 does",
		func(m *testkit.Machine) {
			m.When(testkit.Failing(status.Error(codes.Unavailable, "server is not initialized yet")))
		},
		func(m *testkit.Machine) { m.When(nil) }, false, config.NativeIDs},
	{"broken in one list",
		func(m *testkit.Machine) {
			m.When(testkit.Failing(status.Error(codes.Internal, "database is corrupt"), "ListContainers", "StreamContainers"))
		},
		func(m *testkit.Machine) { m.When(nil) }, true, config.PrefixIDs},
}

func TestTheItemsOfARuntimeThatIsGoneStayInAllLists(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, func(c *config.Config) {
				c.IDs, c.GoneAfter, c.ListBudget = way.ids, backend.DefaultSilence, backend.DefaultSilence // none of a busy primary's lists is late
				if way.slow {
					c.ListBudget = backend.DefaultBudget
				}
			})
			n.run(0, "web", 2)
			one, two := n.run(1, "db1", 2), n.run(1, "db2", 1)
			_, err := n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: two.sandbox})
			require.NoError(t, err)
			n.known()
			before := map[string][]proto.Message{}
			for _, l := range allListings() {
				before[l.name], err = l.unary(n)
				require.NoError(t, err)
			}
			podStatus, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: one.sandbox})
			require.NoError(t, err)
			containerStatus, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: one.containers[1]})
			require.NoError(t, err)

			way.go_(n.runtimes[1])
			if way.slow {
				n.isSlow(1)
			} else {
				n.isDown(1)
			}
			for _, l := range []listing{listContainerStats(nil), listPodStats(nil), listMetrics()} { // which went on until it was gone
				last, err := l.unary(n)
				require.NoError(t, err)
				require.ElementsMatch(t, idsOf(before[l.name]), idsOf(last), l.name)
				before[l.name] = last
			}
			for _, l := range allListings() {
				for form, list := range map[string]func(*node, ...grpc.CallOption) ([]proto.Message, error){"unary": l.unary, "streamed": l.streamed} {
					var header metadata.MD
					got, err := list(n, grpc.Header(&header))
					require.NoError(t, err, "%s %s", form, l.name)
					require.ElementsMatch(t, idsOf(before[l.name]), idsOf(got), "%s %s", form, l.name)
					if form == "unary" && !way.slow {
						assert.Equal(t, []string{"beta.io"}, header[backend.HeaderKey], "%s: it says that it is from the cache", l.name)
					}
					for _, item := range got {
						for _, was := range before[l.name] {
							if idOf(was) == idOf(item) && !n.isPrimarys(was) && !way.slow { // whose statistics go on
								assertProto(t, was, item)
							}
						}
					}
				}
			}

			t.Run("filters are applied", func(t *testing.T) {
				for _, c := range filterCases(n, one, two) {
					got, _ := c.both(n)
					assert.ElementsMatch(t, c.want, idsOf(got), "%s, %s", c.what, c.name)
				}
			})
			t.Run("statuses are answered", func(t *testing.T) {
				got, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: one.sandbox})
				require.NoError(t, err)
				assertProto(t, podStatus, got)
				gotOne, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: one.containers[1]})
				require.NoError(t, err)
				assertProto(t, containerStatus, gotOne)
				// Only the proxy itself has asked for these.
				_, err = n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: two.sandbox})
				assert.NoError(t, err)
				last, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: two.containers[0], Verbose: true})
				require.NoError(t, err)
				assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, last.GetStatus().GetState())
				short, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: two.containers[0][:len(two.containers[0])-50]})
				require.NoError(t, err)
				assert.Equal(t, two.containers[0], short.GetStatus().GetId(), "found by the beginning of its id")
				for _, name := range []string{"beta.io/busybox", "beta.io/docker.io/library/busybox:latest", before["images"][1].(*runtimeapi.Image).GetId()} {
					image, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
					require.NoError(t, err)
					assertProto(t, before["images"][1], image.GetImage())
				}
				image, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "not-pulled-yet:1"}})
				require.NoError(t, err)
				assert.Nil(t, image.GetImage(), "the cache has all images of the runtime")
			})
			t.Run("all else is Unavailable", func(t *testing.T) {
				if way.slow {
					for what, err := range n.callsAbout(1, one) {
						assert.NoError(t, err, "%s passes as usual", what)
					}
					return
				}
				for what, err := range n.callsAbout(1, one) {
					testkit.AssertCode(t, codes.Unavailable, err)
					assert.ErrorContains(t, err, "beta.io", what)
				}
				for what, err := range n.callsAbout(0, n.run(0, "other", 1)) {
					assert.NoError(t, err, what)
				}
			})

			way.back(n.runtimes[1])
			n.isUp(1)
			for what, err := range n.callsAbout(1, one) {
				assert.NoError(t, err, what)
			}
		})
	}
}

// isPrimarys reports whether an item of a list is one of the primary's.
func (n *node) isPrimarys(item proto.Message) bool {
	for _, p := range n.runtimes[0].Pods() {
		if p.GetId() == idOf(item) {
			return true
		}
	}
	for _, c := range n.runtimes[0].Containers() {
		if c.GetId() == idOf(item) {
			return true
		}
	}
	return false
}

// callsAbout makes calls about a running pod of runtime i that its cache cannot
// answer, and that can be repeated.
func (n *node) callsAbout(i int, p *pod) map[string]error {
	errs := map[string]error{}
	id := p.containers[0]
	_, errs["ExecSync"] = n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	_, errs["Exec"] = n.Exec(n.ctx(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	_, errs["Attach"] = n.Attach(n.ctx(), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
	_, errs["PortForward"] = n.PortForward(n.ctx(), &runtimeapi.PortForwardRequest{PodSandboxId: p.sandbox})
	_, errs["ContainerStats"] = n.ContainerStats(n.ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
	_, errs["PodSandboxStats"] = n.PodSandboxStats(n.ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.sandbox})
	_, errs["UpdateContainerResources"] = n.UpdateContainerResources(n.ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id})
	_, errs["ReopenContainerLog"] = n.ReopenContainerLog(n.ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	_, errs["PullImage"] = n.PullImage(n.ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(i, "other")}})
	_, errs["RemoveImage"] = n.RemoveImage(n.ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image(i, "other")}})
	config := testkit.PodConfig(fmt.Sprint("more", time.Now().UnixNano()))
	if i > 0 {
		config.Annotations["kubernetes.io/target-runtime"] = n.cfg.Backends[i].Name
	}
	var ran *runtimeapi.RunPodSandboxResponse
	ran, errs["RunPodSandbox"] = n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	more := ran.GetPodSandboxId()
	if more == "" {
		more = p.sandbox // stopping it is Unavailable as well
	}
	_, errs["StopPodSandbox"] = n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: more})
	_, errs["RemovePodSandbox"] = n.RemovePodSandbox(n.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: more})
	return errs
}

func TestThePrimaryCanBeDownLikeAnyOther(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs })
	web, db := n.run(0, "web", 1), n.run(1, "db", 1)
	n.known()
	n.runtimes[0].Kill()
	n.isDown(0)
	n.lists(web.sandbox, db.sandbox)
	for what, err := range n.callsAbout(1, db) {
		assert.NoError(t, err, what)
	}
	_, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
	testkit.AssertCode(t, codes.Unavailable, err) // only the primary can say whether it is ready
}

// kubelet asks for ImageFsInfo when it starts, and does not start without.
func TestImageFsInfoNeedsThePrimaryOnly(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"last-known", "fail"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, impatient, machineConfig{Config: fakecri.Config{ImageMount: "/first"}},
				machineConfig{Config: fakecri.Config{ImageMount: "/second"}, backend: config.Backend{Name: "beta.io", Policy: policy}})
			n.run(0, "web", 1)
			mounts := func() []string {
				t.Helper()
				info, err := n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
				require.NoError(t, err)
				var all []string
				for _, fs := range info.GetImageFilesystems() {
					all = append(all, fs.GetFsId().GetMountpoint())
				}
				return all
			}
			m := n.runtimes[1]
			n.known()
			m.Kill() // before its first call
			n.isDown(1)
			assert.Equal(t, []string{"/first"}, mounts())
			m.Start()
			n.isUp(1)
			m.When(testkit.Failing(status.Error(codes.Unimplemented, "unknown method"), "ImageFsInfo"))
			assert.Equal(t, []string{"/first"}, mounts())
			m.When(testkit.Hanging("ImageFsInfo"))
			assert.Equal(t, []string{"/first"}, mounts())
			m.When(nil)
			testkit.Eventually(t, "it is in time again", func() bool { return len(mounts()) == 2 })
			assert.Equal(t, []string{"/first", "/second"}, mounts())
			m.Kill()
			n.isDown(1)
			if policy == "last-known" {
				assert.Equal(t, []string{"/first", "/second"}, mounts())
			} else {
				assert.Equal(t, []string{"/first"}, mounts())
			}
			n.runtimes[0].When(testkit.Failing(status.Error(codes.Internal, "no disk"), "ImageFsInfo"))
			testkit.Eventually(t, "the primary's error", func() bool { // while it is slow, on a busy machine, the cache answers for it
				_, err := n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
				return status.Convert(err).String() == status.New(codes.Internal, "no disk").String()
			})
		})
	}
}

func TestAChangeOfStateIsOneLineInTheLog(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "oneline.io"}})
	p := n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	n.isDown(1)
	for range 10 {
		_, err := listPods(nil).unary(n)
		require.NoError(t, err)
		n.callsAbout(1, p)
	}
	assert.Len(t, testkit.LogLines("oneline.io"), 1, "the runtime is down")
	n.runtimes[1].Start()
	n.isUp(1)
	for range 10 {
		_, err := listPods(nil).unary(n)
		require.NoError(t, err)
	}
	testkit.Eventually(t, "it is said", func() bool { return len(testkit.LogLines("oneline.io")) > 1 })
	assert.Len(t, testkit.LogLines("oneline.io"), 2, "the runtime is up")
}
