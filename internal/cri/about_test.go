package cri_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestNamesOfPodsAndContainersFollowTheirIDs(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	names, err := cri.NewNames(cfg.Profile, cfg.Schema, nil)
	require.NoError(t, err)
	describe := func(m proto.Message) (calls.About, []calls.About) {
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		return names.Message(m.ProtoReflect().Descriptor(), b)
	}
	_, pods := describe(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{
		{Id: "beta.io__7f", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"}, CreatedAt: 5},
	}})
	pod := calls.About{Namespace: "default", Pod: "web", UID: "u", IDs: []string{"beta.io__7f"}, Created: time.Unix(0, 5)}
	require.Equal(t, []calls.About{pod}, pods)
	names.Learn(pods[0])
	_, containers := describe(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Id: "beta.io__8a", PodSandboxId: "beta.io__7f", Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "nginx"}},
	}})
	require.Len(t, containers, 1)
	names.Learn(names.Complete(containers[0]))

	about, _ := describe(&runtimeapi.StopContainerRequest{ContainerId: "beta.io__8a"})
	assert.Equal(t, calls.About{Namespace: "default", Pod: "web", UID: "u", Container: "main", IDs: []string{"beta.io__8a", "beta.io__7f"}}, names.Complete(about))
	_, containers = describe(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "beta.io__9b", PodSandboxId: "beta.io__7f"}}})
	names.Learn(containers[0]) // crictl gives no labels, and the pod may be in a later list
	about, _ = describe(&runtimeapi.StopContainerRequest{ContainerId: "beta.io__9b"})
	assert.Equal(t, "web", names.Complete(about).Pod)
	about, _ = describe(&runtimeapi.StopPodSandboxRequest{PodSandboxId: "beta.io__7"}) // as crictl may send it
	assert.Equal(t, "web", names.Complete(about).Pod)
	about, _ = describe(&runtimeapi.StopPodSandboxRequest{PodSandboxId: "9"})
	assert.Empty(t, names.Complete(about).Pod)
	about, _ = describe(&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "nginx:1"}, SandboxConfig: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web"}}})
	assert.Equal(t, "web nginx:1", about.String())
}

// Exported calls of another API, and the long calls of a drain, did not say what they were about.
func TestANameOfAnyKindIsAnID(t *testing.T) {
	names, err := cri.NewNames(muxtest.LibraryProfile(t), muxtest.Library, nil)
	require.NoError(t, err)
	describe := func(message, text string) (calls.About, []calls.About) {
		return names.Message(muxtest.Message(message), muxtest.Frame(t, message, text).Bytes())
	}
	about, _ := describe("GetRequest", `book_id: "7f" lender_id: "8a"`)
	assert.Equal(t, calls.About{IDs: []string{"7f", "8a"}}, about)
	about, _ = describe("PutRequest", `book {title: "Emma"} shelf: "novels"`)
	assert.Empty(t, about, "the name of a shelf is not that of one backend")
	_, books := describe("ListResponse", `books {id: "7f"} books {id: "8a"}`)
	assert.Equal(t, []calls.About{{IDs: []string{"7f"}}, {IDs: []string{"8a"}}}, books)
}

// The calls of a pod lacked a failed exec, if only criproxy itself had listed the container.
func TestNamesInListsOfARuntimeAreThoseOfPrefixedIDs(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	names, err := cri.NewNames(cfg.Profile, cfg.Schema, nil)
	require.NoError(t, err)
	names.Learn(calls.About{Namespace: "default", Pod: "web", UID: "u", Container: "main", IDs: []string{"8a", "7f"}})
	of := func(id string) calls.About { return names.Complete(calls.About{IDs: []string{id}}) }
	web := calls.About{Namespace: "default", Pod: "web", UID: "u", Container: "main", IDs: []string{"beta.io__8a", "beta.io__7f"}}
	assert.Equal(t, web, of("beta.io__8a"))
	web.IDs = []string{"beta.io__8", "beta.io__8a", "beta.io__7f"}
	assert.Equal(t, web, of("beta.io__8"), "as crictl may send it")
	assert.Equal(t, calls.About{IDs: []string{"beta.io__9"}}, of("beta.io__9"))

	names.Learn(calls.About{Pod: "vm", IDs: []string{"beta.io__8a"}})
	assert.Equal(t, "vm", of("beta.io__8a").Pod, "another runtime may have the same id")
}

func TestAContainerRunsSinceItStartedOrWasCreated(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	names, err := cri.NewNames(cfg.Profile, cfg.Schema, nil)
	require.NoError(t, err)
	describe := func(m proto.Message) (calls.About, []calls.About) {
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		return names.Message(m.ProtoReflect().Descriptor(), b)
	}
	const exited, running = runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_RUNNING
	_, items := describe(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "1", State: running, CreatedAt: 5}, {Id: "2", State: exited, CreatedAt: 5}, {Id: "3", State: running}}})
	assert.Equal(t, []calls.About{{IDs: []string{"1"}, Running: true, Started: time.Unix(0, 5)}, {IDs: []string{"2"}}, {IDs: []string{"3"}, Running: true}}, items)
	about, _ := describe(&runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: "1", State: running, CreatedAt: 5, StartedAt: 7}})
	assert.Equal(t, calls.About{IDs: []string{"1"}, Running: true, Started: time.Unix(0, 7)}, about)
}

// The page drew no bars for running containers that had no labels of kubelet, or were in a list that came in parts.
func TestListedContainersAreInTheirPods(t *testing.T) {
	cfg, err := criadapter.Config(criadapter.Options{})
	require.NoError(t, err)
	names, err := cri.NewNames(cfg.Profile, cfg.Schema, nil)
	require.NoError(t, err)
	a := calls.NewAssembler(cfg.Schema, names)
	a.Lists = true
	ended := uint64(0)
	call := func(method string, replies ...proto.Message) []calls.About {
		ended++
		add := func(kind capture.Kind, payload []byte) (*calls.Call, calls.What) {
			return a.Add(&capture.Event{Call: ended, Kind: kind, Method: "/runtime.v1.RuntimeService/" + method, Payload: payload, Size: len(payload)})
		}
		add(capture.Start, nil)
		for _, m := range replies {
			b, err := proto.Marshal(m)
			require.NoError(t, err)
			add(capture.Reply, b)
		}
		c, what := add(capture.End, nil)
		require.Equal(t, calls.Done, what)
		return c.Listed
	}
	call("ListPodSandbox", &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "7f", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u"}}}})
	container := func(id string) []*runtimeapi.Container {
		return []*runtimeapi.Container{{Id: id, PodSandboxId: "7f", Metadata: &runtimeapi.ContainerMetadata{Name: "c" + id}, State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
	}
	want := func(id string) calls.About {
		return calls.About{Namespace: "ns", Pod: "web", UID: "u", Container: "c" + id, IDs: []string{id, "7f"}, Running: true}
	}
	assert.Equal(t, []calls.About{want("1")}, call("ListContainers", &runtimeapi.ListContainersResponse{Containers: container("1")}))
	assert.Equal(t, []calls.About{want("2"), want("3")}, call("StreamContainers", &runtimeapi.StreamContainersResponse{Containers: container("2")}, &runtimeapi.StreamContainersResponse{Containers: container("3")}))
	event := &runtimeapi.ContainerEventResponse{ContainerId: "1", ContainersStatuses: []*runtimeapi.ContainerStatus{{Id: "1", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}}
	assert.Empty(t, call("GetContainerEvents", event), "it says what happened, for hours perhaps")
}
