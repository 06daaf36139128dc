package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/command/cli"
	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// planted is part of all secrets of a node, and of nothing else.
const planted = "pLaNtEd"

// renamed makes calls in an older version of CRI, whose messages are the same.
type renamed struct {
	*grpc.ClientConn
	pkg string
}

func (c renamed) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConn.Invoke(ctx, strings.Replace(method, "/runtime.v1.", "/"+c.pkg+".", 1), args, reply, opts...)
}

// plant makes calls with secrets in every possible place.
func plant(t *testing.T, cc grpc.ClientConnInterface, name string) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+planted, "x-registry-token", planted, "harmless", "harmless-metadata")
	rt, img := runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc)
	annotations := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": planted, "harmless": "harmless-annotation"}
	pod := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, Annotations: annotations}
	auth := &runtimeapi.AuthConfig{Username: planted, Password: planted, Auth: planted, IdentityToken: planted, RegistryToken: planted, ServerAddress: "https://harmless"}
	auth.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 77, protowire.BytesType), planted)) // as a newer kubelet may send
	_, err := img.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "nginx:1", Annotations: annotations}, SandboxConfig: pod, Auth: auth})
	require.NoError(t, err)
	sandbox, err := rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	require.NoError(t, err)
	request := &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "nginx:1"}, Annotations: annotations,
		Envs:    []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte(planted)}},
		Windows: &runtimeapi.WindowsContainerConfig{SecurityContext: &runtimeapi.WindowsContainerSecurityContext{CredentialSpec: planted}},
	}}
	created, err := rt.CreateContainer(ctx, request)
	require.NoError(t, err)
	_, err = rt.CreateContainer(ctx, request)
	require.Error(t, err, "its name is taken")
	id := created.ContainerId
	_, err = rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	out, err := rt.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"env"}})
	require.NoError(t, err)
	require.Contains(t, string(out.Stdout), planted)
	exec, err := rt.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"env"}, Stdout: true})
	require.NoError(t, err)
	require.Contains(t, exec.Url, planted)
	_, err = rt.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
	require.NoError(t, err)
	_, err = rt.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: sandbox.PodSandboxId})
	require.NoError(t, err)
	st, err := rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	require.NoError(t, err)
	require.Contains(t, st.Info["info"], planted)
	_, err = rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.PodSandboxId, Verbose: true})
	require.NoError(t, err)
	_, err = rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	require.NoError(t, err)
	_, err = rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	_, err = rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId})
	require.NoError(t, err)
	_, err = img.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "nginx:1"}})
	require.NoError(t, err)
}

var base64Text = regexp.MustCompile(`[A-Za-z0-9+/]{8,}=*`)

// hasPlanted reports whether a secret is in b, as it is or in base64.
func hasPlanted(b []byte) bool {
	if bytes.Contains(b, []byte(planted)) {
		return true
	}
	for _, one := range base64Text.FindAll(b, -1) {
		if decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(string(one), "=")); err == nil && bytes.Contains(decoded, []byte(planted)) {
			return true
		}
	}
	return false
}

// No output of the process contains secrets, unless the user has asked for them.
func TestNoSecretLeavesTheProcess(t *testing.T) {
	for name, unsafe := range map[string]bool{"by default": false, "with -unsafe-raw": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			at := func(name string) string { return filepath.Join(dir, name) }
			runtime := testkit.NewMachine(t, "", at("0.sock"), fakecri.Config{StreamURL: "http://harmless/" + planted, Packages: []string{fakecri.V1, fakecri.V1alpha2}})
			runtime.Start()
			testkit.NewMachine(t, "beta.io", at("1.sock"), fakecri.Config{}).Start() // with two runtimes, criproxy has a cache
			args := []string{"-connect", at("0.sock") + ",beta.io:" + at("1.sock"), "-listen", at("p.sock"), "-admin", at("a.sock"), "-state-dir", at("state"), "-hooks", "none",
				"-logtostderr", "-v", "9", "-capture", at("all.pcapng")}
			if unsafe {
				args = append(args, "-unsafe-raw")
			}
			log := &output{}
			proxy := exec.Command("criproxy", args...)
			proxy.Stdout, proxy.Stderr = log, log
			require.NoError(t, proxy.Start())
			log.waitFor(t, "Serving")
			plant(t, testkit.Dialed(t, at("p.sock")), "one")
			plant(t, renamed{testkit.Dialed(t, at("p.sock")), "runtime.v1alpha2"}, "two")
			log.waitFor(t, "runtime.v1alpha2.ImageService/RemoveImage")

			seen := map[string][]byte{}
			command := func(args ...string) {
				t.Helper()
				var out bytes.Buffer
				err := run(t.Context(), args, &out, &out)
				if err != nil {
					require.ErrorIs(t, err, cli.ErrReported, "%v: %s", args, out.String())
				}
				seen[strings.ReplaceAll(strings.Join(args, " "), dir+"/", "")] = out.Bytes()
			}
			for _, file := range []string{"d.jsonl", "d.pcapng", "d.binlog", "d.jsonl.zst"} {
				command("dump", "-admin", at("a.sock"), at(file))
			}
			command("dump", "-admin", at("a.sock"))
			for _, flags := range [][]string{{}, {"-full"}, {"-diff"}, {"-o", "json", "-full"}, {"-o", "json", "-diff"}} {
				ctx, stop := context.WithCancel(t.Context())
				live, done := &output{}, make(chan error, 1)
				go func() {
					done <- run(ctx, append([]string{"tail", "-past", "-follow", "-admin", at("a.sock")}, flags...), live, live)
				}()
				live.waitFor(t, "RemoveImage", "ContainerStatus")
				stop()
				require.NoError(t, <-done)
				seen["tail "+strings.Join(flags, " ")] = []byte(live.String())
			}
			for _, path := range []string{"/status", "/metrics", "/config", "/events", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
				response, err := admin.NewClient(at("a.sock")).Get(t.Context(), path)
				require.NoError(t, err)
				seen["GET "+path], err = io.ReadAll(response.Body)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
			}
			require.NoError(t, proxy.Process.Signal(syscall.SIGUSR1))
			log.waitFor(t, "Dumped the recording")
			dumps, err := filepath.Glob(at("state/criproxy-dump-*.jsonl"))
			require.NoError(t, err)
			require.Len(t, dumps, 1)

			// The recording, replayed to a runtime that answers with other secrets.
			command("replay", "-write", "-failed", at("d.jsonl"), "-to", at("p.sock"), "-speed", "0")
			command("replay", "-write", "-failed", at("d.binlog"), "-to", at("p.sock"), "-speed", "0", "-o", "json")
			require.NoError(t, proxy.Process.Signal(os.Interrupt))
			require.NoError(t, proxy.Wait())
			kept, err := filepath.Glob(at("state/*.*"))
			require.NoError(t, err)
			require.Contains(t, kept, at("state/primary.known"))
			for _, file := range kept {
				seen[filepath.Base(file)] = readFile(t, file)
			}
			packed := []string{at("d.jsonl.zst")}
			if blocks, _ := filepath.Glob(at("state/recorder-*.blocks")); !unsafe {
				require.NotEmpty(t, blocks)
				packed = append(packed, blocks...)
			}
			for _, file := range packed {
				command("view", "-full", file)
			}
			for _, file := range []string{at("d.jsonl"), at("d.pcapng"), at("d.binlog"), at("all.pcapng"), dumps[0]} {
				command("view", "-full", file)
				command("view", "-diff", file)
				command("view", "-o", "json", "-full", file)
				command("view", "-o", "json", "-diff", file)
				command("view", "-sequence", file)
				command("view", "-stats", file)
				seen[filepath.Base(file)] = readFile(t, file)
				assert.Equal(t, unsafe, bytes.Contains(seen[filepath.Base(file)], []byte("unsafe_raw")), "the header of %s says so", file)
			}
			seen["log"] = []byte(log.String())

			whole := 0
			for where, what := range seen {
				assert.NotEmpty(t, what, where)
				if !unsafe {
					assert.False(t, hasPlanted(what), "a secret is in what %s says", where)
				}
				if hasPlanted(what) {
					whole++
				}
			}
			if unsafe { // everything that shows messages
				assert.GreaterOrEqual(t, whole, 20)
				for _, where := range []string{"log", "d.jsonl", "d.pcapng", "d.binlog", "GET /events", "all.pcapng", "tail -full", filepath.Base(dumps[0]), "view -full d.jsonl.zst"} {
					assert.True(t, hasPlanted(seen[where]), "-unsafe-raw shows all in %s", where)
				}
			}
			shown := []string{"log", "tail -full", "d.jsonl", "all.pcapng"}
			for _, file := range packed {
				shown = append(shown, "view -full "+strings.TrimPrefix(file, dir+"/"))
			}
			for _, where := range shown { // criproxy hides no more than necessary
				for _, word := range []string{"harmless-annotation", "https://harmless"} {
					assert.Contains(t, string(seen[where]), word, where)
				}
			}
			assert.Contains(t, string(seen["tail -full"]), "harmless-metadata")
		})
	}
}
