package browser

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A machine is criproxy in front of two runtimes, a client, and `criproxy ui`.
type machine struct {
	t       *testing.T
	dir     string
	program string
	admin   string
	proxy   *exec.Cmd
	ui      *exec.Cmd
	link    string
	client  runtimeapi.RuntimeServiceClient
	web     *testkit.Machine // the first runtime
	vault   *testkit.Machine // the second one
}

func start(t *testing.T, flags ...string) *machine {
	t.Helper()
	return startWith(t, func(string) {}, flags...)
}

// startWith is start with what was in the state folder, and on the runtimes alpha and beta in it, before.
func startWith(t *testing.T, prepare func(dir string), flags ...string) *machine {
	t.Helper()
	chromium(t)
	program, err := criproxy()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "ui-") // t.TempDir is too long for a socket
	require.NoError(t, err)
	m := &machine{t: t, dir: dir, program: program, admin: filepath.Join(dir, "admin.sock")}
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	m.web, m.vault = m.runtime("alpha", 1), m.runtime("beta", 2)
	prepare(dir)
	socket := filepath.Join(dir, "cri.sock")
	m.proxy = m.run(append([]string{"serve", "-connect", filepath.Join(dir, "alpha") + ",kata.io:" + filepath.Join(dir, "beta"), "-listen", socket, "-admin", m.admin, "-state-dir", dir, "-hooks", "none"}, flags...)...)
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"methodConfig": [{"name": [{}], "timeout": "%.0fs"}]}`, patience.Seconds()))) // the process may change
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	m.client = runtimeapi.NewRuntimeServiceClient(conn)
	m.version()
	m.show("-admin", m.admin)
	return m
}

// runtime starts a runtime.
func (m *machine) runtime(name string, seed uint64) *testkit.Machine {
	runtime := testkit.NewMachine(m.t, name, filepath.Join(m.dir, name), fakecri.Config{Name: name, Version: "1.0.0", Seed: seed})
	runtime.Start()
	return runtime
}

// show starts criproxy ui, whose link m then has.
func (m *machine) show(flags ...string) {
	m.t.Helper()
	m.ui, m.link = m.command(append([]string{"ui"}, flags...)...), ""
	out, err := m.ui.StdoutPipe()
	require.NoError(m.t, err)
	m.started(m.ui)
	lines := bufio.NewReader(out)
	for m.link == "" {
		line, err := lines.ReadString('\n')
		require.NoError(m.t, err)
		m.link = regexp.MustCompile(`http://\S+|$`).FindString(line)
	}
}

func (m *machine) command(args ...string) *exec.Cmd {
	cmd := bounded.Command(m.t, m.program, args...)
	cmd.Stderr = m.t.Output()
	return cmd
}

func (m *machine) run(args ...string) *exec.Cmd {
	cmd := m.command(args...)
	m.started(cmd)
	return cmd
}

// started starts a process, which ends with the test.
func (m *machine) started(cmd *exec.Cmd) {
	require.NoError(m.t, cmd.Start())
	m.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
	})
}

func (m *machine) version() {
	m.t.Helper()
	_, err := m.client.Version(m.t.Context(), &runtimeapi.VersionRequest{})
	require.NoError(m.t, err)
}

func (m *machine) pod(name, runtime string) string {
	m.t.Helper()
	return runPod(m.t, m.client, name, runtime)
}

func runPod(t *testing.T, client runtimeapi.RuntimeServiceClient, name, runtime string) string {
	t.Helper()
	r, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Annotations: map[string]string{"kubernetes.io/target-runtime": runtime},
	}})
	require.NoError(t, err)
	return r.GetPodSandboxId()
}

func TestCallsAppearAsTheyCome(t *testing.T) {
	m := start(t)
	p := open(t, m.link)
	p.see(`document.querySelector("#link:not(.lost)")`)
	p.see(`document.querySelectorAll(".row").length >= 1`)
	assert.NotContains(t, value[string](p, `location.href`), "token")
	m.pod("web", "")
	id := m.pod("vault", "kata.io")
	p.see(`[...document.querySelectorAll(".row .about")].filter((e) => /default\/(web|vault)/.test(e.textContent)).length === 2`)

	// A call that has just come opens with both legs.
	p.fill("pod", "vault")
	p.keys("\r")
	p.see(`document.querySelectorAll(".row").length === 1`)
	p.keys("j\r")
	p.see(`document.querySelectorAll("#detail .legs > div").length === 2`)
	assert.Contains(t, strings.Join(p.texts("#detail .legs"), ""), strings.TrimPrefix(id, "kata.io__"))
	p.keys("\x1b\x1b")

	// A call is shown while it is under way.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := m.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	require.NoError(t, err)
	p.see(`[...document.querySelectorAll(".row")].some((e) => e.textContent.includes("GetContainerEvents") && e.textContent.includes("under way"))`)
	cancel()
	p.see(`[...document.querySelectorAll(".row")].some((e) => e.textContent.includes("GetContainerEvents") && e.textContent.includes("Canceled by the client") && !e.classList.contains("failed"))`)
	p.see(`!document.querySelector("#facts .bad")`) // nothing has failed

	p.keys("6")
	p.see(`document.querySelectorAll(".card").length >= 3`)
	p.see(`[...document.querySelectorAll(".card")].some((e) => /kata.io[^]*pods1/.test(e.textContent))`)
	p.see(`[...document.querySelectorAll(".card")].some((e) => /list took[0-9]/.test(e.textContent))`)
	cards := strings.Join(p.texts(".card"), "\n")
	assert.Contains(t, cards, "kata.io")
	assert.Contains(t, cards, fmt.Sprint(m.proxy.Process.Pid))
}

// While the calls were on their way, the page said that there were none.
func TestThePageSaysThatCallsAreOnTheirWay(t *testing.T) {
	m := start(t)
	p := open(t, m.link, command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `const add = EventSource.prototype.addEventListener; EventSource.prototype.addEventListener = function (kind, f) { if (kind !== "calls" && kind !== "info") add.call(this, kind, f); };`,
	}))
	p.see(`document.querySelector("#link:not(.lost)") && document.querySelector("#facts").textContent === "loading calls"`)
	for i, view := range []string{"calls", "pods"} {
		p.keys(fmt.Sprint(i + 1))
		p.see(fmt.Sprintf(`document.querySelector("#view-%s .empty").textContent === "Loading calls"`, view))
	}
	base, _, _ := strings.Cut(m.link, "?")
	open(t, base).see(`/^[1-9].* calls?/.test(document.querySelector("#facts").textContent)`)
}

func TestAnOutageIsABand(t *testing.T) {
	m := start(t)
	id := m.pod("vault", "kata.io")
	p := open(t, m.link, dark(false))
	p.see(`document.querySelectorAll(".row").length >= 2`)
	m.vault.Kill()
	testkit.Eventually(t, "criproxy notices", func() bool {
		_, err := m.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return status.Code(err) == codes.Unavailable
	})
	p.keys("2")
	p.see(`document.querySelectorAll(".lane rect.band.gone").length > 0`)
	p.keys("6")
	p.see(`[...document.querySelectorAll(".card")].some((c) => /^What happened.*kata.io is gone/.test(c.textContent))`)
	p.see(`[...document.querySelectorAll(".card")].some((c) => /^Latest errors.*StopPodSandbox of kata.io/.test(c.textContent))`)
	p.picture("status")
	// The report of criproxy can take seconds, because it asks the runtimes; the page does not wait for it.
	base, _, _ := strings.Cut(m.link, "?")
	other := open(t, base, command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `const add = EventSource.prototype.addEventListener; EventSource.prototype.addEventListener = function (kind, f) { if (kind !== "status") add.call(this, kind, f); };`,
	}))
	other.see(`document.querySelector("#tab-status").getAttribute("aria-selected") === "true" && /kata.io.*gone/.test(document.querySelector(".card.gone").textContent)`)
	p.keys("4")
	for runtime, sign := range map[string]string{"primary": "up 50%", "kata.io": "gone 0px"} { // a circle, and a square
		p.see(fmt.Sprintf(`((e) => e.className.slice(4) + " " + getComputedStyle(e).borderRadius)([...document.querySelectorAll(".talk g.who")].find((e) => e.getAttribute("aria-label").startsWith(%q)).querySelector(".dot")) === %q`, runtime, sign))
	}
}

// What was rewritten in calls came before them, and was lost.
func TestThePageCountsWhatIsRewritten(t *testing.T) {
	m := start(t, "-ids", "prefix")
	m.pod("vault", "kata.io")
	p := open(t, m.link)
	p.see(`document.querySelector("#link:not(.lost)") && document.querySelectorAll(".row").length > 1`)
	for range 3 {
		lists := `[...document.querySelectorAll(".row")].filter((e) => e.textContent.includes("ListPodSandbox") && e.querySelector(".chip.rewritten"))`
		before := value[int](p, lists+`.length`)
		_, err := m.client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		p.see(fmt.Sprintf(`%s.length === %d`, lists, before+1))
	}
	sum := value[int](p, `[...document.querySelectorAll(".row .chip.rewritten")].reduce((n, e) => n + parseInt(e.textContent, 10), 0)`)
	p.keys("4")
	p.see(fmt.Sprintf(`document.querySelectorAll(".hub text")[2].textContent === "%d fields rewritten"`, sum))
}

// kubelet makes a new sandbox for a pod whose first sandbox has died, and removes the first one later.
func TestAPodHasOneLifeAfterTheOther(t *testing.T) {
	m := start(t)
	first := m.pod("web", "")
	_, err := m.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: first})
	require.NoError(t, err)
	_, err = m.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "uid-web", Attempt: 1},
	}})
	require.NoError(t, err)
	_, err = m.client.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: first})
	require.NoError(t, err)
	_, err = m.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "never", Namespace: "default", Uid: "uid-never"},
		Annotations: map[string]string{"kubernetes.io/target-runtime": "nobody"},
	}})
	require.Error(t, err)
	p := open(t, m.link)
	p.keys("2")
	const lives = `(name) => [...document.querySelectorAll(".lane:not(.group)")].find((l) => l.firstChild.firstChild.textContent === name).querySelectorAll("rect.life")`
	p.see(fmt.Sprintf(`(%s)("web").length === 2`, lives))
	m.version() // adds a call to the picture
	p.see(fmt.Sprintf(`((r) => Number(r[1].getAttribute("x")) + Number(r[1].getAttribute("width")) > Number(r[0].getAttribute("x")) + Number(r[0].getAttribute("width")))((%s)("web"))`, lives))
	p.see(fmt.Sprintf(`(%s)("never").length === 0`, lives))
}

func TestThePageSurvivesAHandover(t *testing.T) {
	m := start(t)
	m.pod("web", "")
	p := open(t, m.link)
	pid := fmt.Sprintf("process %d", m.proxy.Process.Pid)
	p.see(fmt.Sprintf(`document.querySelector("#link").textContent === %q`, pid))
	p.see(`document.querySelectorAll(".row").length >= 2`)
	require.NoError(t, m.proxy.Process.Signal(syscall.SIGUSR2))
	p.see(fmt.Sprintf(`document.querySelector("#link:not(.lost)") && document.querySelector("#link").textContent !== %q`, pid))
	m.pod("after", "")
	p.see(`[...document.querySelectorAll(".row .about")].some((e) => e.textContent.includes("default/after"))`)
	assert.Contains(t, strings.Join(p.texts(".row .about"), "\n"), "default/web", "what was before is still there")
	var successor int
	_, err := fmt.Sscanf(p.texts("#link")[0], "process %d", &successor)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(successor, syscall.SIGTERM))
	p.see(`document.querySelector("#link.lost") && document.querySelector("#strip").textContent.startsWith("When criproxy last answered:")`)
}

func TestTheLinkLetsOneBrowserIn(t *testing.T) {
	m := start(t)
	get := func(link, host string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
		require.NoError(t, err)
		if host != "" {
			request.Host = host
		}
		client := http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	base, _, _ := strings.Cut(m.link, "?")
	code, _ := get(base+"stream", "")
	assert.Equal(t, http.StatusForbidden, code)
	code, _ = get(m.link, "evil.example")
	assert.Equal(t, http.StatusMisdirectedRequest, code)
	open(t, m.link).see(`document.querySelector("#link:not(.lost)")`)
	code, body := get(m.link, "")
	assert.Equal(t, http.StatusForbidden, code)
	assert.Contains(t, body, "already used")
}
