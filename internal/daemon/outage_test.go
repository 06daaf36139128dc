package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/lastknown"
	"github.com/criproxy/criproxy/internal/testkit"
)

// ways are the ways in which a runtime can be gone.
var ways = []struct {
	name string
	go_  func(m *testkit.Machine)
	back func(m *testkit.Machine)
	slow bool // all but its lists works
}{
	{"killed", (*testkit.Machine).Kill, (*testkit.Machine).Start, false},
	{"frozen", (*testkit.Machine).Freeze, (*testkit.Machine).Thaw, false},
	{"starting as containerd 1.6 does",
		func(m *testkit.Machine) {
			m.When(testkit.Failing(status.Error(codes.Unknown, "server is not initialized yet")))
		},
		func(m *testkit.Machine) { m.When(nil) }, false},
	{"starting as containerd 2 does",
		func(m *testkit.Machine) {
			m.When(testkit.Failing(status.Error(codes.Unavailable, "server is not initialized yet")))
		},
		func(m *testkit.Machine) { m.When(nil) }, false},
	{"broken in one list",
		func(m *testkit.Machine) {
			m.When(testkit.Failing(status.Error(codes.Internal, "database is corrupt"), "ListContainers", "StreamContainers"))
		},
		func(m *testkit.Machine) { m.When(nil) }, true},
}

func TestTheItemsOfARuntimeThatIsGoneStayInAllLists(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
				n := newNode(t, mode)
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
				for _, l := range allListings() {
					for form, list := range map[string]func(*node, ...grpc.CallOption) ([]proto.Message, error){"unary": l.unary, "streamed": l.streamed} {
						got, err := list(n)
						require.NoError(t, err, "%s %s", form, l.name)
						require.ElementsMatch(t, idsOf(before[l.name]), idsOf(got), "%s %s", form, l.name)
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
						for form, list := range map[string]func(*node, ...grpc.CallOption) ([]proto.Message, error){"unary": c.unary, "streamed": c.streamed} {
							got, err := list(n)
							require.NoError(t, err)
							assert.ElementsMatch(t, c.want, idsOf(got), "%s, %s %s", c.what, form, c.name)
						}
					}
				})
				t.Run("statuses are answered", func(t *testing.T) {
					got, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: one.sandbox})
					require.NoError(t, err)
					assertProto(t, podStatus, got)
					gotOne, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: one.containers[1]})
					require.NoError(t, err)
					assertProto(t, containerStatus, gotOne)
					// Nobody but the proxy itself has asked for these.
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
				})
				t.Run("all else is Unavailable at once", func(t *testing.T) {
					if way.slow {
						for what, err := range n.callsAbout(1, one) {
							assert.NoError(t, err, "%s passes as usual", what)
						}
						return
					}
					n.runtimes[1].ForgetCalls()
					began := time.Now()
					for what, err := range n.callsAbout(1, one) {
						testkit.AssertCode(t, codes.Unavailable, err)
						assert.ErrorContains(t, err, "beta.io", what)
					}
					assert.Less(t, time.Since(began), testkit.Patience, "frozen, each would take for ever")
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

type filterCase struct {
	listing
	what string
	want []string
}

// filterCases are lists with filters, whatever the state of the runtimes. Pod one
// has two containers, of which one runs; pod two has been stopped.
func filterCases(n *node, one, two *pod) []filterCase {
	pods := func(what string, f *runtimeapi.PodSandboxFilter, want ...string) filterCase {
		return filterCase{listPods(f), what, want}
	}
	containers := func(what string, f *runtimeapi.ContainerFilter, want ...string) filterCase {
		return filterCase{listContainers(f), what, want}
	}
	cut := func(id string) string { return id[:len(id)-40] }
	notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	in := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	return []filterCase{
		pods("id", &runtimeapi.PodSandboxFilter{Id: one.sandbox}, one.sandbox),
		pods("beginning of an id", &runtimeapi.PodSandboxFilter{Id: cut(one.sandbox)}, one.sandbox),
		pods("state", &runtimeapi.PodSandboxFilter{State: notReady}, two.sandbox),
		pods("state, which is zero on the wire, and id", &runtimeapi.PodSandboxFilter{Id: two.sandbox, State: ready}),
		pods("label", &runtimeapi.PodSandboxFilter{LabelSelector: one.config.GetLabels()}, one.sandbox),
		pods("label of two", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "db"}}, one.sandbox, two.sandbox),
		pods("label of nobody", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "db", "none": ""}}),
		containers("id", &runtimeapi.ContainerFilter{Id: one.containers[0]}, one.containers[0]),
		containers("sandbox", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox}, one.containers...),
		containers("beginning of a sandbox's id", &runtimeapi.ContainerFilter{PodSandboxId: cut(one.sandbox)}, one.containers...),
		containers("sandbox and id", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox, Id: one.containers[1]}, one.containers[1]),
		containers("sandbox and the id of another's", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox, Id: two.containers[0]}),
		containers("sandbox and state", &runtimeapi.ContainerFilter{PodSandboxId: one.sandbox, State: in(runtimeapi.ContainerState_CONTAINER_RUNNING)}, one.containers[0]),
		containers("state, which is zero on the wire", &runtimeapi.ContainerFilter{State: in(runtimeapi.ContainerState_CONTAINER_CREATED)}),
		containers("label", &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"pod": "db1", "container": "c1"}}, one.containers[1]),
		{listContainerStats(&runtimeapi.ContainerStatsFilter{PodSandboxId: one.sandbox}), "sandbox", one.containers},
		{listContainerStats(&runtimeapi.ContainerStatsFilter{Id: one.containers[0]}), "id", one.containers[:1]},
		{listContainerStats(&runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{"pod": "db1"}}), "label", one.containers},
		{listPodStats(&runtimeapi.PodSandboxStatsFilter{Id: one.sandbox}), "id", []string{one.sandbox}},
		{listPodStats(&runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{"pod": "db1"}}), "label", []string{one.sandbox}},
	}
}

// callsAbout makes calls about a running pod of runtime i that its memory cannot
// answer, and that change nothing but what can be done again.
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

func TestFiltersMeanTheSameWhetherOrNotARuntimeIsThere(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		n.run(0, "web", 2)
		one, two := n.run(1, "db1", 2), n.run(1, "db2", 1)
		_, err := n.StopPodSandbox(n.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: two.sandbox})
		require.NoError(t, err)
		for _, c := range filterCases(n, one, two) {
			got, err := c.unary(n)
			require.NoError(t, err)
			assert.ElementsMatch(t, c.want, idsOf(got), "%s, %s", c.what, c.name)
			got, err = c.streamed(n)
			require.NoError(t, err)
			assert.ElementsMatch(t, c.want, idsOf(got), "%s, %s streamed", c.what, c.name)
		}
	})
}

// An answer from memory says so in its header, and names the backend.
func TestAnAnswerFromMemoryIsMarked(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.run(1, "db1", 1)
	n.known()
	var header metadata.MD
	_, err := listPods(nil).unary(n, grpc.Header(&header))
	require.NoError(t, err)
	assert.Empty(t, header[lastknown.HeaderKey])
	n.runtimes[1].Kill()
	n.isDown(1)
	header = nil
	_, err = listPods(nil).unary(n, grpc.Header(&header))
	require.NoError(t, err)
	assert.Equal(t, []string{"beta.io"}, header[lastknown.HeaderKey])
}

func TestCallsToARuntimeThatFreezesAreUnavailable(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		p := n.run(1, "db1", 1)
		n.known()
		n.runtimes[1].Freeze()
		defer n.runtimes[1].Thaw()
		calls := map[string]func(ctx context.Context) error{
			"ExecSync": func(ctx context.Context) error {
				_, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: p.containers[0], Cmd: []string{"true"}, Timeout: 1})
				return err
			},
			"StopContainer": func(ctx context.Context) error {
				_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: p.containers[0]})
				return err
			},
			"PullImage": func(ctx context.Context) error {
				_, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "beta.io/other"}})
				return err
			},
		}
		errs := make(chan error)
		for _, call := range calls {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // kubelet's own
				defer cancel()
				errs <- call(ctx)
			}()
		}
		for range calls {
			select {
			case err := <-errs:
				testkit.AssertCode(t, codes.Unavailable, err)
			case <-time.After(testkit.Patience):
				require.Fail(t, "a call hangs: nobody noticed")
			}
		}
		// A status is answered all the same.
		status, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, status.GetStatus().GetState())
	})
}

func TestACommandThatTakesTooLongIsNoOutage(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	for i := range n.runtimes {
		p := n.run(i, "slow", 1)
		_, err := n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: p.containers[0], Cmd: []string{"sleep", "60"}, Timeout: 1})
		testkit.AssertCode(t, codes.DeadlineExceeded, err)
		assert.NotEqual(t, lastknown.Gone, n.proxy.backends()[i].known.State().Condition)
		n.runtimes[i].When(testkit.Failing(status.Error(codes.DeadlineExceeded, "probe timed out"), "ExecSync"))
		_, err = n.ExecSync(n.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: p.containers[0]})
		assert.Equal(t, status.New(codes.DeadlineExceeded, "probe timed out").String(), status.Convert(err).String(), "as the runtime said it")
	}
}

func TestThePrimaryCanBeDownLikeAnyOther(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		web, db := n.run(0, "web", 1), n.run(1, "db", 1)
		n.known()
		n.runtimes[0].Kill()
		n.isDown(0)
		pods, err := listPods(nil).unary(n)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{web.sandbox, db.sandbox}, idsOf(pods))
		for what, err := range n.callsAbout(1, db) {
			assert.NoError(t, err, what)
		}
		_, err = n.Status(n.ctx(), &runtimeapi.StatusRequest{})
		testkit.AssertCode(t, codes.Unavailable, err) // whether it is ready, only it can say
	})
}

func TestPolicyFailFailsListsAndPolicySkipLeavesOut(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode, machineConfig{},
			machineConfig{backend: config.Backend{Name: "fail.io", Policy: "fail"}},
			machineConfig{backend: config.Backend{Name: "skip.io", Policy: "skip"}})
		web := n.run(0, "web", 1)
		failed := n.run(1, "failed", 1)
		skipped := n.run(2, "skipped", 1)
		n.known()

		n.runtimes[2].Kill()
		n.isDown(2)
		for _, l := range []listing{listPods(nil), listPods(&runtimeapi.PodSandboxFilter{})} {
			for _, list := range []func(*node, ...grpc.CallOption) ([]proto.Message, error){l.unary, l.streamed} {
				pods, err := list(n)
				require.NoError(t, err)
				assert.ElementsMatch(t, []string{web.sandbox, failed.sandbox}, idsOf(pods))
			}
		}
		_, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: skipped.sandbox})
		testkit.AssertCode(t, codes.Unavailable, err)

		n.runtimes[1].Kill()
		n.isDown(1)
		for _, l := range allListings() {
			_, err := l.unary(n)
			testkit.AssertCode(t, codes.Unavailable, err)
			assert.ErrorContains(t, err, "fail.io", l.name)
			_, err = l.streamed(n)
			testkit.AssertCode(t, codes.Unavailable, err)
		}
		_, err = n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: failed.sandbox})
		testkit.AssertCode(t, codes.Unavailable, err)
		for what, err := range n.callsAbout(0, web) {
			assert.NoError(t, err, what)
		}

		n.runtimes[1].Start()
		n.runtimes[2].Start()
		n.isUp(1)
		n.isUp(2)
		pods, err := listPods(nil).unary(n)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{web.sandbox, failed.sandbox, skipped.sandbox}, idsOf(pods))
	})
}

// A runtime that is configured and not installed keeps nobody from anything.
func TestARuntimeThatWasNeverSeenIsLeftOutAndSaidSo(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		name := "never-" + filepath.Base(t.Name()) + ".io"
		n := newNode(t, mode, machineConfig{}, machineConfig{backend: config.Backend{Name: name}, absent: true})
		web := n.run(0, "web", 1)
		n.isDown(1)
		testkit.Eventually(t, "it is said", func() bool {
			return len(testkit.LogLines(name, "was not seen since this node booted")) == 1
		})
		for _, l := range allListings() {
			for _, list := range []func(*node, ...grpc.CallOption) ([]proto.Message, error){l.unary, l.streamed} {
				got, err := list(n)
				require.NoError(t, err, l.name)
				assert.NotEmpty(t, got, l.name)
			}
		}
		_, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
		assert.NoError(t, err)
		_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
		assert.NoError(t, err)
		_, err = n.ListMetricDescriptors(n.ctx(), &runtimeapi.ListMetricDescriptorsRequest{})
		assert.NoError(t, err)
		for what, err := range n.callsAbout(0, web) {
			assert.NoError(t, err, what)
		}
		// kubelet asks for the status of each image before it pulls it, and for that of
		// the image of each container when it looks for its user.
		image, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "not-pulled-yet:1"}})
		require.NoError(t, err)
		assert.Nil(t, image.GetImage())

		n.runtimes[1].Start()
		n.isUp(1)
		db := n.run(1, "db", 1)
		pods, err := listPods(nil).unary(n)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{web.sandbox, db.sandbox}, idsOf(pods))
		assert.Len(t, testkit.LogLines(name, "was not seen since"), 1)
	})
}

// What is said about an image that nobody has is that nobody has it, also while
// a runtime that was seen is down: it is known what that one has.
func TestAMissingImageIsAbsentDuringAnOutage(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	n.isDown(1)
	image, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "not-pulled-yet:1"}})
	require.NoError(t, err)
	assert.Nil(t, image.GetImage())
}

func TestListsWaitForARequiredRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Required: true}, absent: true})
	listed := make(chan int, 1)
	go func() {
		pods, err := listPods(nil).unary(n)
		assert.NoError(t, err)
		listed <- len(pods)
	}()
	n.isDown(1)
	_, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
	assert.NoError(t, err, "kubelet starts all the same")
	_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
	assert.NoError(t, err, "and asks for this when it does")
	n.runtimes[1].Fill(1)
	n.runtimes[1].Start()
	select {
	case got := <-listed:
		assert.Equal(t, 1, got)
	case <-time.After(testkit.Patience):
		require.Fail(t, "the list waits on")
	}
}

func TestListsFailWhenARequiredRuntimeDoesNotCome(t *testing.T) {
	t.Parallel() // it waits for 10 s
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Required: true}, absent: true})
	_, err := listPods(nil).unary(n)
	testkit.AssertCode(t, codes.Unavailable, err)
	assert.ErrorContains(t, err, "backend beta.io is required, has not been seen since this node was booted, and did not come within 3s")
	_, err = n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")})
	assert.NoError(t, err, "what is not a list goes on")
}

// kubelet asks for ImageFsInfo when it starts, and does not start without.
func TestImageFsInfoNeedsThePrimaryOnly(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"last-known", "fail", "skip"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil, machineConfig{Config: fakecri.Config{ImageMount: "/first"}},
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
			m.Kill() // before anybody has asked it
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
			_, err := n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
			assert.Equal(t, status.New(codes.Internal, "no disk").String(), status.Convert(err).String())
		})
	}
}

func TestARestartWhileARuntimeIsDownChangesNothing(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		web, db := n.run(0, "web", 1), n.run(1, "db", 2)
		n.known()
		before := map[string][]proto.Message{}
		for _, l := range allListings()[:3] {
			var err error
			before[l.name], err = l.unary(n)
			require.NoError(t, err)
		}
		n.runtimes[1].Kill()
		n.isDown(1)
		n.stop()
		n.start()
		for _, l := range allListings()[:3] { // the first call of all is a list
			got, err := l.unary(n)
			require.NoError(t, err)
			require.Len(t, got, len(before[l.name]))
			for i := range got {
				assertProto(t, before[l.name][i], got[i])
			}
		}
		status, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: db.containers[1]})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, status.GetStatus().GetState())
		_, err = n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: db.containers[0]})
		testkit.AssertCode(t, codes.Unavailable, err)
		for what, err := range n.callsAbout(0, web) {
			assert.NoError(t, err, what)
		}
		n.runtimes[1].Start()
		n.isUp(1)
		for what, err := range n.callsAbout(1, db) {
			assert.NoError(t, err, what)
		}
	})
}

func TestABrokenFileOfWhatIsKnownIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	web := n.run(0, "web", 1)
	n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	n.isDown(1)
	n.stop()
	file := stateFile(n.cfg, n.cfg.Backends[1]).Path
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(file, data, 0o600))
	n.start()
	assert.NotEmpty(t, testkit.LogLines("cannot be read", file), "before anybody asks")
	_, err = n.Status(n.ctx(), &runtimeapi.StatusRequest{})
	assert.NoError(t, err)
	_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
	assert.NoError(t, err, "kubelet could not start without")
	for what, err := range n.callsAbout(0, web) {
		assert.NoError(t, err, what)
	}
	_, err = listPods(nil).unary(n) // waits for 10 s
	testkit.AssertCode(t, codes.Unavailable, err)
	assert.ErrorContains(t, err, file, "it says which file")
	assert.ErrorContains(t, err, "checksum", "and what is wrong with it")
	n.runtimes[1].Start()
	n.isUp(1)
	pods, err := listPods(nil).unary(n)
	require.NoError(t, err)
	assert.Len(t, pods, 2)
}

func TestABackendIsRememberedByItsName(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a, b := n.cfg.Backends[1], n.cfg.Backends[1]
	b.Address += "2"
	assert.Equal(t, stateFile(n.cfg, a).Path, stateFile(n.cfg, b).Path, "at whatever address")
	info, err := os.Stat(n.cfg.StateDir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700)|os.ModeDir, info.Mode(), "environments are in there")
}

// What a client was told is what is shown after the runtime is gone, even if that
// was a moment ago: the proxy's own look is a second apart.
func TestWhatIsKnownIsNeverOlderThanWhatAClientWasTold(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		p := n.run(1, "db", 2)
		n.known()
		for _, form := range []string{"a list", "a stream", "a list with a filter", "a list without it"} {
			m := n.runtimes[1]
			_, id, _ := cutName(n, p.containers[0])
			running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
			exited := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}
			require.NoError(t, m.Exit(id, 7)) // behind our back
			var err error
			switch form {
			case "a list":
				_, err = listContainers(nil).unary(n)
			case "a stream":
				_, err = listContainers(nil).streamed(n)
			case "a list with a filter":
				var got []proto.Message
				got, err = listContainers(&runtimeapi.ContainerFilter{State: exited}).unary(n)
				require.Len(t, got, 2)
			case "a list without it":
				var got []proto.Message
				got, err = listContainers(&runtimeapi.ContainerFilter{State: running}).unary(n)
				require.Empty(t, got)
			}
			require.NoError(t, err)
			m.Kill()
			got, err := listContainers(&runtimeapi.ContainerFilter{Id: p.containers[0]}).unary(n)
			require.NoError(t, err)
			require.Len(t, got, 1)
			assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, got[0].(*runtimeapi.Container).GetState(), "after %s", form)

			m.Start()
			n.isUp(1)
			p = n.run(1, fmt.Sprint("db", len(form)), 1)
			_, err = n.RemoveContainer(n.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: n.front(1, id)})
			require.NoError(t, err)
			n.known()
		}
	})
}

// The answer to a list with a filter, which is not the whole truth, is not taken
// for newer than it is either.
func TestALateAnswerUndoesNothing(t *testing.T) {
	t.Parallel()
	for name, filter := range map[string]func(p *pod) *runtimeapi.ContainerFilter{
		"of one": func(p *pod) *runtimeapi.ContainerFilter { return &runtimeapi.ContainerFilter{Id: p.containers[0]} },
		"of all": func(*pod) *runtimeapi.ContainerFilter { return &runtimeapi.ContainerFilter{} }, // our own requests have none
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			p := n.run(1, "db", 1)
			n.known()
			m := n.runtimes[1]
			held, release := make(chan bool, 1), make(chan struct{})
			m.FaultAfter(func(_ context.Context, _ string, request any) error {
				if r, ok := request.(*runtimeapi.ListContainersRequest); ok && r.GetFilter() != nil {
					held <- true
					<-release
				}
				return nil
			})
			late := make(chan []proto.Message)
			go func() {
				got, err := listContainers(filter(p)).unary(n)
				assert.NoError(t, err)
				late <- got
			}()
			<-held // it says that the container runs
			_, err := n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: p.containers[0]})
			require.NoError(t, err)
			n.known()
			close(release)
			require.Len(t, <-late, 1)
			m.Kill()
			got, err := listContainers(nil).unary(n)
			require.NoError(t, err)
			require.Len(t, got, 1)
			assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, got[0].(*runtimeapi.Container).GetState())
		})
	}
}

// cutName returns the runtime of an id in front, and its own name for it.
func cutName(n *node, id string) (i int, back string, ok bool) {
	for i := len(n.cfg.Backends) - 1; i >= 0; i-- {
		for _, p := range n.runtimes[i].Pods() {
			if n.front(i, p.GetId()) == id {
				return i, p.GetId(), true
			}
		}
		for _, c := range n.runtimes[i].Containers() {
			if n.front(i, c.GetId()) == id {
				return i, c.GetId(), true
			}
		}
	}
	return 0, "", false
}

// A runtime that a client looks at often enough is not looked at by the proxy
// besides.
func TestARuntimeIsNotAskedForWhatAClientAsksFor(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.run(1, "db", 1)
	n.known()
	own := func() (count int) {
		for _, c := range n.runtimes[1].Calls("ListPodSandbox", "ListContainers") {
			if len(c.Metadata["test"]) == 0 {
				count++
			}
		}
		return count
	}
	ask := func() {
		ctx := metadata.AppendToOutgoingContext(n.ctx(), "test", "yes")
		_, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		_, err = n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		require.NoError(t, err)
	}
	ask()
	time.Sleep(200 * time.Millisecond) // what was under way has come
	n.runtimes[1].ForgetCalls()
	slow := false
	for began, last := time.Now(), time.Now(); time.Since(began) < 4*time.Second; time.Sleep(50 * time.Millisecond) {
		ask()
		slow = slow || time.Since(last) > 500*time.Millisecond
		last = time.Now()
	}
	if !slow { // else the machine was busy, and the proxy right to ask
		assert.Zero(t, own())
	}
	n.runtimes[1].ForgetCalls()
	testkit.Eventually(t, "it asks when nobody does", func() bool { return own() >= 4 })
}

// Where nothing changes a status is asked for once, and nothing is written: the
// labels of an item come in another order each time.
func TestWhatHasNotChangedIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.run(1, "db", 3)
	n.known()
	file := stateFile(n.cfg, n.cfg.Backends[1]).Path
	before, err := os.Stat(file)
	require.NoError(t, err)
	n.runtimes[1].ForgetCalls()
	testkit.Eventually(t, "its lists are asked for", func() bool { return len(n.runtimes[1].Calls("ListContainers")) >= 4 })
	assert.Empty(t, n.runtimes[1].Calls("PodSandboxStatus", "ContainerStatus"))
	after, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, before.ModTime(), after.ModTime())
}

func TestAMutationIsFollowedByALook(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode func(*config.Config)) {
		n := newNode(t, mode)
		p := n.run(1, "db", 1)
		n.known()
		n.runtimes[1].ForgetCalls()
		_, err := n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: p.containers[0]})
		require.NoError(t, err)
		// It comes at once, maybe before that reply, and brings the status with it.
		testkit.Eventually(t, "the status is asked for", func() bool { return len(n.runtimes[1].Calls("ContainerStatus")) > 0 })
		n.runtimes[1].ForgetCalls()
		testkit.Eventually(t, "its answer is kept: other rounds have begun", func() bool { return len(n.runtimes[1].Calls("ListPodSandbox")) >= 3 })
		n.runtimes[1].Kill()
		n.isDown(1)
		got, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
		require.NoError(t, err)
		assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, got.GetStatus().GetState())
	})
}

// A list that shows a container dead, and a status that shows it alive because it
// could not be had again, would be a death that kubelet never takes note of: it
// asks for the status when the list changes, and not later.
func TestAStatusIsNotOlderThanItsItem(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]fakecri.Fault{
		"fails": testkit.Failing(status.Error(codes.Unknown, "busy"), "ContainerStatus"),
		"hangs": testkit.Hanging("ContainerStatus"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			p := n.run(1, "db", 1)
			n.known()
			m := n.runtimes[1]
			m.When(fault)
			_, err := n.StopContainer(n.ctx(), &runtimeapi.StopContainerRequest{ContainerId: p.containers[0]})
			require.NoError(t, err)
			n.known()
			m.Kill()
			n.isDown(1)
			list, err := listContainers(nil).unary(n)
			require.NoError(t, err)
			require.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, list[0].(*runtimeapi.Container).GetState())
			_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
			testkit.AssertCode(t, codes.Unavailable, err)

			n.stop() // nor after a restart
			n.start()
			_, err = n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
			testkit.AssertCode(t, codes.Unavailable, err)

			m.When(nil)
			m.Start()
			n.isUp(1)
			n.known()
			m.Kill()
			n.isDown(1)
			got, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: p.containers[0]})
			require.NoError(t, err, "it has been asked for again")
			assert.Equal(t, runtimeapi.ContainerState_CONTAINER_EXITED, got.GetStatus().GetState())
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
	for range 50 {
		_, err := listPods(nil).unary(n)
		require.NoError(t, err)
		n.callsAbout(1, p)
	}
	time.Sleep(2 * time.Second) // and what it does by itself
	assert.Len(t, testkit.LogLines("oneline.io"), 1, "the runtime is down")
	n.runtimes[1].Start()
	n.isUp(1)
	for range 50 {
		_, err := listPods(nil).unary(n)
		require.NoError(t, err)
	}
	testkit.Eventually(t, "it is said", func() bool { return len(testkit.LogLines("oneline.io")) > 1 })
	assert.Len(t, testkit.LogLines("oneline.io"), 2, "the runtime is up")
}

func TestAnUnusableStateFolderIsOneLineInTheLog(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{}, machineConfig{backend: config.Backend{Name: "diskfull.io"}})
	n.run(1, "db1", 1)
	n.known()
	require.NoError(t, os.RemoveAll(n.cfg.StateDir))
	n.run(1, "db2", 1)
	testkit.Eventually(t, "it is said", func() bool { return len(testkit.LogLines("diskfull.io", "writing what is remembered")) > 0 })
	time.Sleep(3 * time.Second)
	assert.Len(t, testkit.LogLines("diskfull.io", "writing what is remembered"), 1)
	require.NoError(t, os.MkdirAll(n.cfg.StateDir, 0o700))
	n.run(1, "db3", 1)
	testkit.Eventually(t, "it is kept again", func() bool { _, err := os.Stat(stateFile(n.cfg, n.cfg.Backends[1]).Path); return err == nil })
	n.stop() // which writes as well, and says when it cannot
}

// A runtime that comes back is found back within the 3 s in which kubelet would
// find it, here with room for a busy machine, however long it was gone.
func TestARuntimeThatComesBackIsFound(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	p := n.run(1, "db", 1)
	n.known()
	n.runtimes[1].Kill()
	time.Sleep(8 * time.Second) // the pauses have reached their full length
	n.runtimes[1].Start()
	began := time.Now()
	n.isUp(1)
	assert.Less(t, time.Since(began), 15*time.Second)
	for what, err := range n.callsAbout(1, p) {
		assert.NoError(t, err, what)
	}
}
