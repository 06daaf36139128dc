// This file secures connections with certificates from files. It reads the files for each
// connection, so that a change of a file takes effect with the next connection.

package listen

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/credentials"
	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/config"
)

// CheckCerts returns the mistakes in the certificate files of cfg.
func CheckCerts(cfg *config.Config) error {
	var errs []error
	try := func(t *config.TLS, at string) {
		if t == nil {
			return
		}
		if _, err := NewKeyring(*t).load(); err != nil {
			errs = append(errs, fmt.Errorf("%s.tls: %w", at, err))
		}
	}
	for i, l := range cfg.Listeners {
		try(l.TLS, fmt.Sprintf("listeners[%d]", i))
	}
	for i, b := range cfg.Backends {
		try(b.TLS, fmt.Sprintf("backends[%d]", i))
	}
	try(cfg.Export.TLS, "export")
	return errors.Join(errs...)
}

// keyring reads the files of a config.TLS, and keeps their latest valid content: while somebody replaces the files, one by one,
// connections are secured as before. It is safe for concurrent use.
type keyring struct {
	files config.TLS

	mu     sync.Mutex
	good   *material // latest valid content
	failed string    // the error that was logged last; empty after a success
}

// material is the content of the files. It does not change.
type material struct {
	own []tls.Certificate
	ca  *x509.CertPool // nil if there is no such file
}

// NewKeyring returns a keyring that has read nothing yet.
func NewKeyring(t config.TLS) *keyring { return &keyring{files: t} }

// load reads the files. If that fails, it returns their latest valid content, if there is one.
func (k *keyring) load() (*material, error) {
	m, err := readKeys(k.files)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		k.good, k.failed = m, ""
	case k.good == nil:
		return nil, err
	case k.failed != err.Error():
		k.failed = err.Error()
		go klog.ErrorS(err, "Certificates cannot be read; the previous ones are still in use") // no connection waits for the log
	}
	return k.good, nil
}

// readKeys reads the files once.
func readKeys(t config.TLS) (*material, error) {
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
			return nil, fmt.Errorf("reading ca %s: it has no certificate; want PEM", t.CA)
		}
	}
	return m, nil
}

// Credentials secure connections with the certificates of a config.TLS. They are safe for concurrent use, and each connection
// uses the files as they are when it is made.
type Credentials struct {
	Keys *keyring
	name string // of the server, for clients
}

// NewCredentials returns the credentials for t, or nil, for an unsecured connection, if t is nil.
func NewCredentials(t *config.TLS) credentials.TransportCredentials {
	if t == nil {
		return nil
	}
	return &Credentials{NewKeyring(*t), t.ServerName}
}

// ClientHandshake implements [credentials.TransportCredentials].
func (c *Credentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	if c.name != "" {
		authority = c.name
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// Dial opens a secured connection, for a client that does not speak gRPC.
func (c *Credentials) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	cfg, err := c.client()
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{Config: cfg}).DialContext(ctx, network, address)
}

// client returns the settings for the client's end of a connection.
func (c *Credentials) client() (*tls.Config, error) {
	m, err := c.Keys.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: m.ca, Certificates: m.own, ServerName: c.name, MinVersion: tls.VersionTLS12}, nil
}

// ServerHandshake implements [credentials.TransportCredentials].
func (c *Credentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	m, err := c.Keys.load()
	if err != nil {
		return nil, nil, err
	}
	cfg := &tls.Config{Certificates: m.own, ClientCAs: m.ca, MinVersion: tls.VersionTLS12}
	if m.ca != nil {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(cfg).ServerHandshake(conn)
}

// Info implements [credentials.TransportCredentials].
func (c *Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements [credentials.TransportCredentials].
func (c *Credentials) Clone() credentials.TransportCredentials {
	return &Credentials{c.Keys, c.name}
}

// OverrideServerName implements [credentials.TransportCredentials]. gRPC no longer calls it.
func (c *Credentials) OverrideServerName(string) error { return errors.ErrUnsupported }
