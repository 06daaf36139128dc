package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc/credentials"
	"k8s.io/klog/v2"
)

// TLSConfig is how a connection is secured. Its files are read for each new connection:
// one that has changed counts from the next connection on, and one that is broken not
// until it is well again.
type TLSConfig struct {
	// CA is a file with the certificates of those who vouch for the other side. Of a
	// backend, optional: those that the system trusts. Of a listener, optional: clients
	// need no certificate.
	CA string `yaml:"ca"`

	// Cert and Key are the files of our own certificate, and those who vouch for it, and
	// of its key. Of a backend, optional: we show none.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`

	// ServerName is the name in a backend's certificate. Optional: the host of its address.
	ServerName string `yaml:"serverName"`
}

// check tells fail what is wrong with t, which stands at the key at.
func (t *TLSConfig) check(at string, listener bool, fail func(string, ...any)) {
	if t == nil {
		return
	}
	for _, f := range []struct{ key, path string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			fail("%s.tls.%s: %q is no absolute path", at, f.key, f.path)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		fail("%s.tls: has one of cert and key; want both, or none", at)
	}
	if listener && t.Cert == "" {
		fail("%s.tls: has no cert; clients want to know who they talk to", at)
	}
	if listener && t.ServerName != "" {
		fail("%s.tls.serverName: is for backends", at)
	}
	if _, err := newKeyring(*t).load(); err != nil {
		fail("%s.tls: %w", at, err)
	}
}

// keyring are the files of a TLSConfig.
type keyring struct {
	files TLSConfig

	mu     sync.Mutex
	good   *material // what was read last without a mistake
	failed string    // the mistake that was logged, empty if there is none
}

// material is what the files hold.
type material struct {
	own []tls.Certificate
	ca  *x509.CertPool // nil if there is no such file
}

func newKeyring(t TLSConfig) *keyring { return &keyring{files: t} }

// load reads the files. If they have a mistake now, what they held before counts.
func (k *keyring) load() (*material, error) {
	m, err := k.files.read()
	good, news := k.take(m, err)
	if good == nil {
		return nil, err
	}
	if news { // not under the lock: every connection needs it
		klog.ErrorS(err, "Certificates cannot be read; those from before are still in use")
	}
	return good, nil
}

// take returns what counts after the files were read, and whether there is a mistake in
// them that has not been logged.
func (k *keyring) take(m *material, err error) (good *material, news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.good, k.failed = m, ""
		return m, false
	}
	news = k.failed != err.Error()
	if k.good != nil {
		k.failed = err.Error()
	}
	return k.good, news
}

func (t TLSConfig) read() (*material, error) {
	m := &material{}
	if t.Cert != "" {
		own, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("reading cert %s and key %s: %w", t.Cert, t.Key, err)
		}
		m.own = []tls.Certificate{own}
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("reading ca: %w", err)
		}
		m.ca = x509.NewCertPool()
		if !m.ca.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("reading ca %s: there is no certificate in it; want PEM", t.CA)
		}
	}
	return m, nil
}

// tlsCredentials secure connections by files.
type tlsCredentials struct {
	keys *keyring
	name string // of the server, for clients
}

func newTLS(t *TLSConfig) credentials.TransportCredentials {
	if t == nil {
		return nil
	}
	return &tlsCredentials{newKeyring(*t), t.ServerName}
}

// ClientHandshake is for gRPC.
func (c *tlsCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	m, err := c.keys.load()
	if err != nil {
		return nil, nil, err
	}
	if c.name != "" {
		authority = c.name
	}
	return credentials.NewTLS(&tls.Config{
		RootCAs: m.ca, Certificates: m.own, ServerName: c.name, MinVersion: tls.VersionTLS12,
	}).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake is for gRPC.
func (c *tlsCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	m, err := c.keys.load()
	if err != nil {
		return nil, nil, err
	}
	cfg := &tls.Config{Certificates: m.own, ClientCAs: m.ca, MinVersion: tls.VersionTLS12}
	if m.ca != nil {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(cfg).ServerHandshake(conn)
}

// Info is for gRPC.
func (c *tlsCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone is for gRPC.
func (c *tlsCredentials) Clone() credentials.TransportCredentials {
	return &tlsCredentials{c.keys, c.name}
}

// OverrideServerName is for gRPC, which no longer calls it.
func (c *tlsCredentials) OverrideServerName(string) error { return errors.ErrUnsupported }
