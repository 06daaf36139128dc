// Package plane starts a cluster without a node.
package plane

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// A Plane is a cluster without a node: etcd, the API server, its controllers and the scheduler, each a process of its own
// that listens on 127.0.0.1 alone.
type Plane struct {
	Bin        string // the folder with the cluster's programs
	Kubeconfig string // the file that leads to the API server
	Server     string // the API server's URL

	dir       string
	processes []host.Process
}

// Token is what everybody shows to the API server.
const Token = "testbed"

// New starts all of it, and waits until pods can be made. It is gone when the test ends.
func New(t *testing.T) *Plane {
	t.Helper()
	dir, err := host.NewDir("", "etcd")
	require.NoError(t, err)
	p := &Plane{dir: dir, Bin: testbed.Require(t, build.Cluster).Cluster}
	p.Kubeconfig = p.at("kubeconfig")
	t.Cleanup(func() {
		for _, process := range slices.Backward(p.processes) {
			if t.Failed() {
				t.Logf("%s:\n%s", process.Title(), process.LogTail(10))
			}
			if err := process.Kill(); err != nil {
				t.Error(err)
			}
		}
		if err := host.Clean(p.dir); err != nil {
			t.Error(err)
		}
	})
	ports, err := host.FreePorts(5)
	require.NoError(t, err)
	etcd, peer, api, controllers, scheduler := ports[0], ports[1], ports[2], ports[3], ports[4]
	p.Server = fmt.Sprintf("https://127.0.0.1:%d", api)
	p.writeFiles(t)
	flags := func(name string, value any) string { return fmt.Sprintf("--%s=%v", name, value) }
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

	p.start(t, "etcd", "server",
		flags("data-dir", p.at("etcd")), flags("unsafe-no-fsync", true), flags("log-level", "warn"),
		flags("listen-client-urls", url(etcd)), flags("advertise-client-urls", url(etcd)),
		flags("listen-peer-urls", url(peer)), flags("initial-advertise-peer-urls", url(peer)), flags("initial-cluster", "default="+url(peer)),
	)
	p.start(t, "kube-apiserver", "kube-apiserver",
		flags("etcd-servers", url(etcd)), flags("bind-address", "127.0.0.1"), flags("secure-port", api), flags("cert-dir", p.at("api")),
		flags("advertise-address", "192.0.2.1"), flags("endpoint-reconciler-type", "none"), // pods cannot reach it
		flags("service-cluster-ip-range", "203.0.113.0/24"), flags("allow-privileged", true),
		flags("token-auth-file", p.at("tokens")), flags("authorization-mode", "RBAC"),
		flags("service-account-issuer", "https://kubernetes.default.svc"),
		flags("service-account-signing-key-file", p.at("accounts.key")), flags("service-account-key-file", p.at("accounts.key")),
		flags("kubelet-preferred-address-types", "InternalIP"),
	)
	p.await(t, func() error { return get(p.Server + "/readyz") })
	p.start(t, "kube-controller-manager", "kube-controller-manager",
		flags("kubeconfig", p.Kubeconfig), flags("bind-address", "127.0.0.1"), flags("secure-port", controllers), flags("cert-dir", p.at("controllers")),
		flags("leader-elect", false), flags("root-ca-file", p.at("api/apiserver.crt")), flags("service-account-private-key-file", p.at("accounts.key")),
	)
	p.start(t, "kube-scheduler", "kube-scheduler",
		flags("kubeconfig", p.Kubeconfig), flags("bind-address", "127.0.0.1"), flags("secure-port", scheduler), flags("cert-dir", p.at("scheduler")),
		flags("leader-elect", false),
	)
	p.await(t, func() error {
		return get(p.Server + "/api/v1/namespaces/default/serviceaccounts/default")
	})
	return p
}

func (p *Plane) at(name string) string { return filepath.Join(p.dir, name) }

// writeFiles writes who may ask the API server, how to get there, and the key that signs the tokens of pods.
func (p *Plane) writeFiles(t *testing.T) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	for name, content := range map[string][]byte{
		"tokens":       []byte(Token + `,admin,admin,"system:masters"` + "\njane,jane,jane\njoe,joe,joe\n"), // RBAC says what jane and joe may
		"accounts.key": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"kubeconfig": fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: testbed
clusters:
- name: testbed
  cluster: {server: %q, insecure-skip-tls-verify: true}
users:
- name: admin
  user: {token: %s}
- {name: jane, user: {token: jane}}
- {name: joe, user: {token: joe}}
contexts:
- name: testbed
  context: {cluster: testbed, user: admin}
- {name: jane, context: {cluster: testbed, user: jane}}
- {name: joe, context: {cluster: testbed, user: joe}}
`, p.Server, Token),
	} {
		require.NoError(t, os.WriteFile(p.at(name), content, 0o600))
	}
}

func (p *Plane) start(t *testing.T, title, program string, args ...string) {
	t.Helper()
	p.Start(t, title, append([]string{filepath.Join(p.Bin, program)}, args...))
}

// Start starts a program that ends with the cluster.
func (p *Plane) Start(t *testing.T, title string, command []string, env ...string) {
	t.Helper()
	process := host.NewProcess(title, p.at(title))
	require.NoError(t, process.Start(command, append(host.Environ(), env...)))
	p.processes = append(p.processes, process)
}

// await waits until try succeeds. It fails at once when one of the processes has ended.
func (p *Plane) await(t *testing.T, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var ended error
	err := host.Await(ctx, "the cluster", func() error {
		for _, process := range p.processes {
			if _, alive := process.PID(); !alive {
				ended = fmt.Errorf("%s has ended\n%s", process.Title(), process.LogTail(20))
				return nil
			}
		}
		return try()
	})
	require.NoError(t, errors.Join(err, ended))
}

// Command is kubectl, which asks the API server, for four minutes if ctx has no deadline.
func (p *Plane) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := host.CommandWithin(ctx, 4*time.Minute, filepath.Join(p.Bin, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig, "HOME="+p.dir)
	return cmd
}

// Kubectl runs kubectl, which must succeed, and returns what it printed.
func (p *Plane) Kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return p.KubectlWith(t, "", args...)
}

// KubectlWith does so with a text as its standard input.
func (p *Plane) KubectlWith(t *testing.T, input string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := p.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	require.NoError(t, cmd.Run(), "kubectl %s\n%s%s", strings.Join(args, " "), &stdout, &stderr)
	return stdout.String()
}

// Apply makes or changes an object.
func (p *Plane) Apply(t *testing.T, yaml string) {
	t.Helper()
	p.KubectlWith(t, yaml, "apply", "-f", "-")
}

// AwaitOutput waits until kubectl prints what is wanted, and nothing else.
func (p *Plane) AwaitOutput(t *testing.T, wanted string, args ...string) {
	t.Helper()
	p.AwaitMatch(t, "^"+regexp.QuoteMeta(wanted)+"$", args...)
}

// AwaitMatch waits until what kubectl prints matches a regular expression.
func (p *Plane) AwaitMatch(t *testing.T, wanted string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	require.NoError(t, host.Await(ctx, fmt.Sprintf("kubectl %s to print %s", strings.Join(args, " "), wanted), func() error {
		out, err := p.Command(ctx, args...).CombinedOutput()
		if matched, _ := regexp.Match(wanted, out); err != nil || !matched {
			return fmt.Errorf("it prints %q (%v)", out, err)
		}
		return nil
	}))
}

// get asks the API server, whose certificate is its own.
func get(url string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+Token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
