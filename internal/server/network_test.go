package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server/listen"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// An authority vouches for certificates.
type authority struct {
	testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t, cert, key}
}

// write makes a certificate for 127.0.0.1 and writes the files of a TLSConfig, whose CA is this authority.
func (a *authority) write(files config.TLS, name string) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(a, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a, err)
	for file, block := range map[string]*pem.Block{
		files.CA: {Type: "CERTIFICATE", Bytes: a.cert.Raw}, files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: private},
	} {
		require.NoError(a, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
}

func tlsFiles(dir, name string) config.TLS {
	at := func(what string) string { return filepath.Join(dir, name+"-"+what+".pem") }
	return config.TLS{CA: at("ca"), Cert: at("cert"), Key: at("key")}
}

func listenTCP(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	return l
}

// healthConfig is a configuration for the API of health checks.
func healthConfig(t testing.TB, dir string, backends ...config.Backend) *config.Config {
	t.Helper()
	profile := filepath.Join(dir, "health.yaml")
	require.NoError(t, os.WriteFile(profile, []byte(healthProfile), 0o600))
	return &config.Config{Listen: filepath.Join(dir, "front.sock"), Admin: "none", StateDir: "none", Profile: profile, Backends: backends}
}

func checkHealth(t testing.TB, cc *grpc.ClientConn, service string) error {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	return err
}

// keepListener is a listener whose connections can be cut.
type keepListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (k *keepListener) Accept() (net.Conn, error) {
	c, err := k.Listener.Accept()
	if err == nil {
		k.mu.Lock()
		k.conns = append(k.conns, c)
		k.mu.Unlock()
	}
	return c, err
}

// cut closes all connections, and returns how many there were.
func (k *keepListener) cut() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.conns)
	for _, c := range k.conns {
		c.Close()
	}
	k.conns = nil
	return n
}

func TestMutualTLSOnBothSidesFollowsItsFiles(t *testing.T) {
	dir := testkit.SocketDir(t)
	server, ours, client := tlsFiles(dir, "server"), tlsFiles(dir, "ours"), tlsFiles(dir, "client")
	first := newAuthority(t, "first")
	for name, files := range map[string]config.TLS{"server": server, "criproxy": ours, "client": client} {
		first.write(files, name)
	}
	backend := &keepListener{Listener: listenTCP(t, "127.0.0.1:0")}
	serveHealth(t, backend, "one", grpc.Creds(listen.NewCredentials(&server)))
	spare := listenTCP(t, "127.0.0.1:0")
	front := spare.Addr().String()
	spare.Close()
	cfg := healthConfig(t, dir, config.Backend{Address: backend.Addr().String(), TLS: &ours})
	cfg.Listeners = []config.Listener{{Path: front, TLS: &ours, Access: []config.AccessRule{{Methods: []string{"/grpc.health.v1.Health/*"}}}}}
	require.NoError(t, Check(cfg))
	p, err := New(cfg, Options{})
	require.NoError(t, err)
	require.NoError(t, p.Open(nil))
	runUntilEnd(t, p)

	cc := connectTo(t, front, grpc.WithTransportCredentials(listen.NewCredentials(&client)))
	require.NoError(t, checkHealth(t, cc, "one"))
	assert.NoError(t, checkHealth(t, connectTo(t, "unix:"+cfg.Listen), "one"), "the socket needs no certificate")

	// A client without a certificate is refused.
	pool := x509.NewCertPool()
	pool.AddCert(first.cert)
	bare := connectTo(t, front, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	_, err = healthpb.NewHealthClient(bare).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "one"})
	assert.Equal(t, codes.Unavailable, status.Code(err))

	// New certificates of a new authority count from the next connection on, without a reload.
	second := newAuthority(t, "second")
	for name, files := range map[string]config.TLS{"server": server, "criproxy": ours, "client": client} {
		second.write(files, name)
	}
	require.NoError(t, checkHealth(t, cc, "one"), "connections stay")
	require.Positive(t, backend.cut())
	testkit.Eventually(t, "the backend is reached with the new certificates", func() bool {
		ctx := t.Context()
		_, err := healthpb.NewHealthClient(connectTo(t, "unix:"+cfg.Listen)).Check(ctx, &healthpb.HealthCheckRequest{Service: "one"})
		return err == nil
	})
	require.NoError(t, checkHealth(t, connectTo(t, front, grpc.WithTransportCredentials(listen.NewCredentials(&client))), "one"))
	old := connectTo(t, front, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	_, err = healthpb.NewHealthClient(old).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "one"})
	assert.ErrorContains(t, err, "certificate signed by unknown authority")

	// Broken files change nothing.
	require.NoError(t, os.WriteFile(ours.Cert, []byte("half a fi"), 0o600))
	require.Positive(t, backend.cut())
	testkit.Eventually(t, "the backend is reached with the certificates from before", func() bool {
		_, err := healthpb.NewHealthClient(connectTo(t, "unix:"+cfg.Listen)).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "one"})
		return err == nil
	})
}

func TestABackendWithAStrangeCertificateGetsNoCalls(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketDir(t)
	server, ours := tlsFiles(dir, "server"), tlsFiles(dir, "ours")
	newAuthority(t, "its").write(server, "server")
	newAuthority(t, "ours").write(ours, "criproxy")
	backend := listenTCP(t, "127.0.0.1:0")
	serveHealth(t, backend, "one", grpc.Creds(listen.NewCredentials(&config.TLS{Cert: server.Cert, Key: server.Key})))
	cfg := healthConfig(t, dir, config.Backend{Address: backend.Addr().String(), TLS: &config.TLS{CA: ours.CA}})
	startProxy(t, cfg)
	testkit.Eventually(t, "the call fails, and says why", func() bool {
		_, err := healthpb.NewHealthClient(connectTo(t, "unix:"+cfg.Listen)).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "one"})
		return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "unknown authority")
	})
}

func TestEqualServersBehindOneNameAreBalancedByGRPC(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketDir(t)
	files := tlsFiles(dir, "all")
	newAuthority(t, "all").write(files, "server")
	for name, make := range map[string]func(i int) (net.Listener, []grpc.ServerOption){
		"sockets": func(i int) (net.Listener, []grpc.ServerOption) {
			l, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf("%d.sock", i)))
			require.NoError(t, err)
			return l, nil
		},
		"TLS": func(int) (net.Listener, []grpc.ServerOption) {
			return listenTCP(t, "127.0.0.1:0"), []grpc.ServerOption{grpc.Creds(listen.NewCredentials(&files))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var addresses []string
			var servers []*keepListener
			for i, service := range []string{"one", "two", "three"} { // each server knows only its own service
				l, opts := make(i)
				servers = append(servers, &keepListener{Listener: l})
				serveHealth(t, servers[i], service, opts...)
				addresses = append(addresses, l.Addr().String())
			}
			b := config.Backend{Address: addresses[0], Addresses: addresses[1:]}
			if name == "TLS" {
				b.TLS = &files
			}
			own := t.TempDir()
			cfg := healthConfig(t, own, b)
			cfg.Listen = filepath.Join(dir, name+".sock")
			startProxy(t, cfg)
			cc := connectTo(t, "unix:"+cfg.Listen)
			answers := func(n int) int {
				found := 0
				for range n {
					_, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "one"})
					if err == nil {
						found++
					}
				}
				return found
			}
			require.Error(t, checkHealth(t, cc, "none of them"), "a server answers")
			testkit.Eventually(t, "each gets one call in three", func() bool { return answers(30) == 10 })

			servers[0].Listener.Close()
			servers[0].cut()
			testkit.Eventually(t, "the others go on", func() bool {
				_, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "two"})
				return err == nil
			})
			testkit.Eventually(t, "no call waits for the one that is gone", func() bool {
				for range 12 {
					_, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "two"})
					if c := status.Code(err); c != codes.OK && c != codes.NotFound {
						return false
					}
				}
				return true
			})
		})
	}
}

func TestAServerIsFoundByDNS(t *testing.T) {
	t.Parallel()
	if _, err := net.LookupHost("localhost"); err != nil {
		untested.Skip(t, fmt.Errorf("%w: add localhost to /etc/hosts", err))
	}
	dir := testkit.SocketDir(t)
	files := tlsFiles(dir, "all")
	newAuthority(t, "all").write(files, "server")
	l := listenTCP(t, "127.0.0.1:0")
	serveHealth(t, l, "one", grpc.Creds(listen.NewCredentials(&files)))
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	secured := files
	secured.ServerName = "127.0.0.1"
	cfg := healthConfig(t, dir, config.Backend{Address: "dns:///localhost:" + port, TLS: &secured})
	startProxy(t, cfg)
	assert.NoError(t, checkHealth(t, connectTo(t, "unix:"+cfg.Listen), "one"))
}

func TestAddressesThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := tlsFiles(dir, "x")
	newAuthority(t, "x").write(files, "x")
	for want, change := range map[string]func(c *config.Config){
		`backends[0]: invalid address "nowhere": want the absolute path of a socket, HOST:PORT, dns:///HOST:PORT or vsock:CID:PORT`: func(c *config.Config) { c.Backends[0].Address = "nowhere" },
		`backends[0]: 10.0.0.1:99 is on a network and needs tls: {ca: FILE}`:                                                        func(c *config.Config) { c.Backends[0].Address = "10.0.0.1:99" },
		`backends[0]: invalid address "vsock:2:port": want vsock:CID:PORT, two numbers`:                                             func(c *config.Config) { c.Backends[0].Address = "vsock:2:port" },
		`backends[0].balance: invalid policy "fair": want round_robin, pick_first or least_request_experimental`:                    func(c *config.Config) { c.Backends[0].Balance = "fair" },
		`backends[0].tls: has only one of cert and key; want both or neither`:                                                       func(c *config.Config) { c.Backends[0].TLS = &config.TLS{CA: files.CA, Cert: files.Cert} },
		`backends[0].tls.ca: invalid path "ca.pem": want an absolute one`:                                                           func(c *config.Config) { c.Backends[0].TLS = &config.TLS{CA: "ca.pem"} },
		`listeners[0]: 10.0.0.1:99 is on a network and needs tls: {cert: FILE, key: FILE}`:                                          func(c *config.Config) { c.Listeners = []config.Listener{{Path: "10.0.0.1:99"}} },
		`listeners[0].tls: has no cert; clients cannot verify a server without one`: func(c *config.Config) {
			c.Listeners = []config.Listener{{Path: "10.0.0.1:99", TLS: &config.TLS{CA: files.CA}}}
		},
		`listeners[0]: 10.0.0.1:99 is not a file, so it cannot have an owner or mode; leave them out`: func(c *config.Config) {
			c.Listeners = []config.Listener{{Path: "10.0.0.1:99", Mode: "0600", TLS: &files}}
		},
		`listeners[0]: vsock:3:99 does not show the user of a client, which uids and gids need; leave them out, and require certificates with tls.ca`: func(c *config.Config) {
			c.Listeners = []config.Listener{{Path: "vsock:3:99", Access: []config.AccessRule{{UIDs: []uint32{0}}}}}
		},
	} {
		c := &config.Config{Listen: "/run/x.sock", Backends: []config.Backend{{Address: "/run/y.sock"}}}
		change(c)
		err := Check(c)
		assert.ErrorContains(t, err, want)
	}
	c := &config.Config{Listen: "/run/x.sock", Backends: []config.Backend{{Address: "vsock:2:1024"}}, Listeners: []config.Listener{{Path: "vsock:4294967295:99"}}}
	assert.NoError(t, Check(c), "vsock needs no TLS: there is no network between a machine and its host")
}
