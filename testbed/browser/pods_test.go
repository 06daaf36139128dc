package browser

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// Pods that are older than criproxy, on a runtime that is gone, were on the primary in the page: what listed them first
// was criproxy's own call, without a prefix. Issue 43.
func TestPodsOlderThanTheRecordingAreOnTheirRuntime(t *testing.T) {
	for _, ids := range []string{"prefix", "native"} {
		t.Run(ids, func(t *testing.T) {
			m := startWith(t, func(dir string) {
				for runtime, pod := range map[string]string{"alpha": "web", "beta": "vault"} {
					conn, err := grpc.NewClient("unix:"+filepath.Join(dir, runtime), grpc.WithTransportCredentials(insecure.NewCredentials()))
					require.NoError(t, err)
					runPod(t, runtimeapi.NewRuntimeServiceClient(conn), pod, "")
					require.NoError(t, conn.Close())
				}
			}, "-ids", ids)
			onRuntimes := `((groups) => { let at; for (const l of document.querySelectorAll(".lane")) { const name = l.firstChild.firstChild.textContent; if (l.classList.contains("group")) at = name; else (groups[at] ??= []).push(name); } return groups["primary"]?.join() === "web" && groups["kata.io"]?.join() === "vault" && Object.keys(groups).length === 2; })({})`
			is := func(want string) {
				t.Helper()
				testkit.Eventually(t, "the second runtime is "+want, func() bool { all := m.history(); return len(all) > 0 && all[len(all)-1].What == want })
			}
			is(capture.Up)
			up := open(t, m.link, dark(false))
			up.see(`document.querySelector("#link:not(.lost)")`)
			up.keys("2")
			up.see(onRuntimes)
			m.vault.Kill()
			is(capture.Gone)
			_, err := m.client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			m.show("-admin", m.admin)
			gone := open(t, m.link, dark(false))
			for _, p := range []*tab{up, gone} {
				p.keys("2")
				p.see(`document.querySelector("#strip .cond.gone") && ` + onRuntimes)
			}
		})
	}
}
