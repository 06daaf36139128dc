package csi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The three ways to the suite: one driver alone, and two of them behind criproxy, where the suite's volumes are made on
// one or the other.
var ways = []struct {
	name    string
	through bool
	backend string
}{
	{"direct", false, ""},
	{"primary", true, ""},
	{"second", true, "two.test"},
}

// The suite of the CSI project, which knows nothing of criproxy. A ginkgo suite runs once in a process, so all ways are in
// it at once.
func TestTheSanitySuitePassesThroughTwoDrivers(t *testing.T) {
	bed := newBed(t)
	for _, w := range ways {
		ginkgo.Describe(w.name, func() {
			config := sanity.NewTestConfig()
			dir := t.TempDir()
			config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
			config.IdempotentCount = 3
			config.Address = "unix:" + bed.alone
			if w.through {
				config.Address = "unix:" + bed.proxy
			}
			config.TestVolumeParameters = map[string]string{}
			if w.backend != "" {
				config.TestVolumeParameters["backend"] = w.backend
			}
			sanity.GinkgoTest(&config)
		})
	}
	outcome := map[string]map[string]string{} // :: way → spec → outcome
	ginkgo.ReportAfterEach(func(r ginkgo.SpecReport) {
		way := r.ContainerHierarchyTexts[0]
		if outcome[way] == nil {
			outcome[way] = map[string]string{}
		}
		spec := strings.Join(append(slices.Clone(r.ContainerHierarchyTexts[1:]), r.LeafNodeText), " ")
		outcome[way][spec] = r.State.String()
		if r.State.Is(types.SpecStateFailureStates) {
			t.Errorf("%s: %s: %s\n%s", way, spec, r.Failure.Message, r.Failure.Location)
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = true, true
	// A spec that takes longer than a minute says each minute what it does, and the suite ends at a limit.
	suite.PollProgressAfter, suite.PollProgressInterval, suite.Timeout = time.Minute, time.Minute, 10*time.Minute
	require.True(t, ginkgo.RunSpecs(t, "CSI sanity", suite, reporter))

	passed := 0
	for _, state := range outcome["direct"] {
		if state == types.SpecStatePassed.String() {
			passed++
		}
	}
	require.Greater(t, passed, 60, "the suite has run")
	assert.Equal(t, outcome["direct"], outcome["primary"], "the same specs pass, and the same are skipped")
	assert.Equal(t, outcome["direct"], outcome["second"])
	const create = "/csi.v1.Controller/CreateVolume"
	assert.Greater(t, bed.one.Calls()[create], 20, "volumes were made on the first driver")
	assert.Greater(t, bed.two.Calls()[create], 20, "and on the second")
	t.Logf("%d specs passed in each way", passed)
}

func TestVolumesOfTwoDriversAreOneList(t *testing.T) {
	bed := newBed(t)
	cc, err := grpc.NewClient("unix:"+bed.proxy, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	client := csi.NewControllerClient(cc)
	create := func(name, backend string) string {
		t.Helper()
		reply, err := client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: name, Parameters: map[string]string{"backend": backend}, VolumeCapabilities: []*csi.VolumeCapability{{}}})
		require.NoError(t, err)
		return reply.GetVolume().GetVolumeId()
	}
	var want []string
	for i := range 5 {
		want = append(want, create(fmt.Sprint("one", i), ""))
	}
	for i := range 4 {
		want = append(want, create(fmt.Sprint("two", i), "two.test"))
	}
	assert.Equal(t, []string{"000001", "000002", "000003", "000004"}, bed.two.Volumes(), "the driver knows nothing of prefixes")
	assert.Equal(t, "two.test__000004", want[8])

	for size := range int32(11) {
		var got []string
		for token, pages := "", 0; ; pages++ {
			require.Less(t, pages, 20)
			reply, err := client.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: size, StartingToken: token})
			require.NoError(t, err)
			for _, e := range reply.GetEntries() {
				got = append(got, e.GetVolume().GetVolumeId())
			}
			if token = reply.GetNextToken(); token == "" {
				break
			}
			assert.Len(t, reply.GetEntries(), int(size), "every page but the last is full")
		}
		assert.Equal(t, want, got, "in pages of %d", size)
	}

	snap := func(volume string) *csi.Snapshot {
		t.Helper()
		reply, err := client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "of " + volume, SourceVolumeId: volume})
		require.NoError(t, err)
		return reply.GetSnapshot()
	}
	one, two := snap(want[0]), snap(want[8])
	assert.Equal(t, want[8], two.GetSourceVolumeId())
	snaps, err := client.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Len(t, snaps.GetEntries(), 2)
	assert.Equal(t, []string{one.GetSnapshotId(), two.GetSnapshotId()},
		[]string{snaps.GetEntries()[0].GetSnapshot().GetSnapshotId(), snaps.GetEntries()[1].GetSnapshot().GetSnapshotId()})

	from := func(id, backend string) error {
		_, err := client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "from " + id + backend, Parameters: map[string]string{"backend": backend},
			VolumeCapabilities:  []*csi.VolumeCapability{{}},
			VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}})
		return err
	}
	assert.NoError(t, from(two.GetSnapshotId(), ""), "what it is made of says where it goes")
	assert.Len(t, bed.two.Volumes(), 5)
	assert.Equal(t, codes.NotFound, status.Code(from(one.GetSnapshotId(), "two.test")), "one driver cannot read another's snapshot")
	assert.Equal(t, codes.InvalidArgument, status.Code(from("", "three.test")), "there is no such driver")
	_, err = client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: want[8]})
	require.NoError(t, err)
	assert.NotContains(t, bed.two.Volumes(), "000004")
	assert.Contains(t, bed.one.Volumes(), "000004")
}

// bed is two drivers with criproxy in front of them, and one alone.
type bed struct {
	one, two     *Driver
	alone, proxy string // sockets
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bed{alone: filepath.Join(dir, "alone.sock"), proxy: filepath.Join(dir, "proxy.sock")}
	start := func(path, name string) *Driver {
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		d := Serve(l, name, "node-1")
		t.Cleanup(d.Stop)
		return d
	}
	start(b.alone, "alone.test")
	b.one = start(filepath.Join(dir, "1.sock"), "one.test")
	b.two = start(filepath.Join(dir, "2.sock"), "two.test")

	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	program := filepath.Join(dir, "criproxy")
	build := command(t, root, "go", "build", "-race", "-buildvcs=false", "-o", program, "./cmd/criproxy")
	build.Env = append(build.Env, "CGO_ENABLED=1") // for the race detector
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	spec, err := command(t, ".", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	require.NoError(t, err)
	args := []string{
		"-profile", filepath.Join(root, "docs/profiles/csi.yaml"), "-proto", filepath.Join(strings.TrimSpace(string(spec)), "csi.proto"),
		"-connect", filepath.Join(dir, "1.sock") + ",two.test:" + filepath.Join(dir, "2.sock"), "-listen", b.proxy, "-state-dir", "none",
	}
	checked := command(t, dir, program, append([]string{"check"}, args...)...)
	out, err = checked.CombinedOutput()
	require.NoError(t, err, string(out))

	var log bytes.Buffer
	serve := command(t, dir, program, append(args, "-logtostderr")...)
	serve.Stderr = &log
	require.NoError(t, serve.Start())
	t.Cleanup(func() {
		assert.NoError(t, serve.Process.Signal(os.Interrupt))
		assert.NoError(t, serve.Wait(), "%s", &log)
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", b.proxy)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond)
	return b
}

func command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Minute
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // a Go program says what it does
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	return cmd
}
