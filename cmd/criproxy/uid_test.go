package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// unprivileged is a uid and gid without any rights.
const unprivileged = 54321

// tryAll calls every method of the API, in each version, on the socket, and prints the code of
// each as JSON, or why it cannot connect. The tests below run this program under a special name,
// which makes it call tryAll.
func tryAll() {
	path := os.Args[1]
	result := map[string]string{}
	if conn, err := net.Dial("unix", path); err != nil {
		result["dial"] = err.Error()
	} else {
		conn.Close() // nothing was sent
		cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			panic(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		for _, name := range append(everyMethod(), "/containerd.services.containers.v1.Containers/List", "/grpc.health.v1.Health/Check") {
			wg.Go(func() {
				code := tryOne(cc, name).String()
				mu.Lock()
				defer mu.Unlock()
				result[name] = code
			})
		}
		wg.Wait()
	}
	_ = json.NewEncoder(os.Stdout).Encode(result) // the test that reads it notices errors
}

// everyMethod returns the methods of CRI, in each of its versions.
func everyMethod() (names []string) {
	for _, m := range criadapter.Schema().Methods() {
		for _, pkg := range []string{"runtime.v1.", "runtime.v1alpha2.", "runtime."} {
			names = append(names, strings.Replace(m.Name, "runtime.v1.", pkg, 1))
		}
	}
	return names
}

func tryOne(cc *grpc.ClientConn, method string) codes.Code {
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.Patience)
	defer cancel()
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(codec.Raw))
	if err != nil {
		return status.Code(err)
	}
	_ = cs.SendMsg(&codec.Frame{}) // RecvMsg returns the error
	_ = cs.CloseSend()             // likewise
	return status.Code(cs.RecvMsg(&codec.Frame{}))
}

// An attempt is the attempt of a user to call every method on a socket.
type attempt struct {
	uid    uint32
	socket string
}

// try returns the results of tryAll for each attempt. Meanwhile pods come and go, so that each stream
// has events.
func (p *process) try(attempts ...attempt) []map[string]string {
	p.Helper()
	testkit.NeedRoot(p, "access by uid")
	program, err := exec.LookPath("criproxy-try-all")
	require.NoError(p, err)
	data := readFile(p, program)
	ours := filepath.Join(p.dir, "try-all") // a folder that the other user may read
	require.NoError(p, os.WriteFile(ours, data, 0o755))
	require.NoError(p, os.Chmod(ours, 0o755))
	require.NoError(p, os.Symlink(ours, filepath.Join(p.dir, "criproxy-try-all")))
	require.NoError(p, os.Chmod(p.dir, 0o755))
	results := make([]map[string]string, len(attempts))
	var wg sync.WaitGroup
	for i, a := range attempts {
		wg.Go(func() {
			cmd := bounded.Command(p, filepath.Join(p.dir, "criproxy-try-all"), a.socket)
			cmd.Dir, cmd.Stderr = "/", os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.uid, Gid: a.uid}}
			out, err := cmd.Output()
			if assert.NoError(p, err) {
				assert.NoError(p, json.Unmarshal(out, &results[i]), "%s", out)
			}
		})
	}
	tried := make(chan struct{})
	go func() { wg.Wait(); close(tried) }()
	client := runtimeapi.NewRuntimeServiceClient(p.connect(p.front))
	for i := 0; ; i++ {
		name := fmt.Sprint("p", i)
		ran, err := client.RunPodSandbox(p.Context(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig(name)})
		require.NoError(p, err)
		_, err = client.RemovePodSandbox(p.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: ran.GetPodSandboxId()})
		require.NoError(p, err)
		select {
		case <-tried:
			require.False(p, p.Failed())
			return results
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// looks are the methods that change nothing, listed independently of access.go.
func looks(method string) bool {
	short := filepath.Base(method)
	return strings.HasPrefix(short, "List") || strings.HasPrefix(short, "Stream") || strings.HasSuffix(short, "Status") || strings.HasSuffix(short, "Stats") ||
		short == "Version" || short == "RuntimeConfig" || short == "ImageFsInfo" || short == "GetContainerEvents"
}

func TestAnUnprivilegedUserMayOnlyReadWhereAllowed(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	at := func(name string) string { return filepath.Join(p.dir, name+".sock") }
	p.write(fmt.Sprintf(`listeners:
- {path: %s, mode: "0660"}
- {path: %s, mode: "0666", access: [{methods: [read-only]}]}
- {path: %s, mode: "0666", access: [{uids: [0]}]}
- {path: %s, mode: "0666", access: [{uids: [0]}, {gids: [%d], methods: [ListContainers]}]}
`, p.front, at("read"), at("root"), at("some"), unprivileged))
	p.launch()

	results := p.try(attempt{unprivileged, p.front}, attempt{unprivileged, config.AdminBeside(p.front)},
		attempt{unprivileged, at("read")}, attempt{unprivileged, at("root")}, attempt{unprivileged, at("some")},
		attempt{0, p.front}, attempt{0, at("root")}, attempt{0, at("some")}, attempt{0, at("read")})
	refused, admin, byOther, byRoot, reading := results[0], results[1], results[2:5], results[5:8], results[8]
	require.Len(t, refused, 1)
	assert.Contains(t, refused["dial"], "permission denied", "the file's mode keeps them out")
	assert.Contains(t, admin["dial"], "permission denied", "the admin socket refuses, too")

	// With a mode that lets every process connect, the kernel still says which process it is.
	for i, may := range []func(method string) bool{
		func(m string) bool {
			return looks(m) && strings.HasPrefix(m, "/runtime.") || m == "/grpc.health.v1.Health/Check"
		},
		func(string) bool { return false },
		func(m string) bool { return filepath.Base(m) == "ListContainers" },
	} {
		require.Greater(t, len(byOther[i]), 120)
		for method, code := range byOther[i] {
			assert.Equal(t, may(method), code != codes.PermissionDenied.String(), "%s at socket %d: %s", method, i, code)
		}
	}
	for i, all := range byRoot {
		for method, code := range all {
			assert.NotEqual(t, codes.PermissionDenied.String(), code, "root, %s at socket %d", method, i)
		}
	}
	for method, code := range reading {
		assert.Equal(t, looks(method) && strings.HasPrefix(method, "/runtime.") || strings.HasPrefix(method, "/grpc.health"), code != codes.PermissionDenied.String(), "root, too, only reads there: %s %s", method, code)
	}
}
