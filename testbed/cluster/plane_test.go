package cluster_test

import (
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
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/testbed"
	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/host"
)

// A plane is a cluster without a node: etcd, the API server, its controllers and the scheduler, each a process of its own
// that listens on 127.0.0.1 alone.
type plane struct {
	dir, bin   string
	kubeconfig string
	server     string // the API server's URL
	processes  []host.Process
}

// token is what everybody shows to the API server.
const token = "testbed"

// newPlane starts all of it, and waits until pods can be made. It is gone when the test ends.
func newPlane(t *testing.T) *plane {
	t.Helper()
	dir, err := host.NewDir("", "etcd")
	require.NoError(t, err)
	p := &plane{dir: dir, bin: testbed.Require(t, build.Cluster).Cluster}
	p.kubeconfig = p.at("kubeconfig")
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
	p.server = fmt.Sprintf("https://127.0.0.1:%d", api)
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
	p.await(t, func() error { return get(p.server + "/readyz") })
	p.start(t, "kube-controller-manager", "kube-controller-manager",
		flags("kubeconfig", p.kubeconfig), flags("bind-address", "127.0.0.1"), flags("secure-port", controllers), flags("cert-dir", p.at("controllers")),
		flags("leader-elect", false), flags("root-ca-file", p.at("api/apiserver.crt")), flags("service-account-private-key-file", p.at("accounts.key")),
	)
	p.start(t, "kube-scheduler", "kube-scheduler",
		flags("kubeconfig", p.kubeconfig), flags("bind-address", "127.0.0.1"), flags("secure-port", scheduler), flags("cert-dir", p.at("scheduler")),
		flags("leader-elect", false),
	)
	p.await(t, func() error {
		return get(p.server + "/api/v1/namespaces/default/serviceaccounts/default")
	})
	return p
}

func (p *plane) at(name string) string { return filepath.Join(p.dir, name) }

// writeFiles writes who may ask the API server, how to get there, and the key that signs the tokens of pods.
func (p *plane) writeFiles(t *testing.T) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	for name, content := range map[string][]byte{
		"tokens":       []byte(token + `,admin,admin,"system:masters"` + "\n"),
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
contexts:
- name: testbed
  context: {cluster: testbed, user: admin}
`, p.server, token),
	} {
		require.NoError(t, os.WriteFile(p.at(name), content, 0o600))
	}
}

func (p *plane) start(t *testing.T, title, program string, args ...string) {
	t.Helper()
	process := host.NewProcess(title, p.at(title))
	require.NoError(t, process.Start(append([]string{filepath.Join(p.bin, program)}, args...), host.Environ()))
	p.processes = append(p.processes, process)
}

// await waits until try succeeds. It fails at once when one of the processes has ended.
func (p *plane) await(t *testing.T, try func() error) {
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

// get asks the API server, whose certificate is its own.
func get(url string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
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
