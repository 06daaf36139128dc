package config

import "path/filepath"

// TLS secures connections. criproxy reads the files again for each new connection. It uses a changed file from the next
// connection on, and ignores a broken one until it is corrected.
type TLS struct {
	// CA is a file with the certificates of the authorities that sign the other side's certificate. Default for a
	// backend: the authorities that the system trusts. Default for a listener: clients need no certificate.
	CA string `yaml:"ca"`

	// Cert and Key are the files of criproxy's own certificate, with its chain, and of its key. Default for a backend:
	// criproxy presents no certificate.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`

	// ServerName is the name in a backend's certificate. Default: the host of its address.
	ServerName string `yaml:"serverName"`
}

// check calls fail for each mistake in t, the value of tls under the key at.
func (t *TLS) check(at string, listener bool, fail func(string, ...any)) {
	if t == nil {
		return
	}
	for _, f := range []struct{ key, path string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			fail("%s.tls.%s: invalid path %q: want an absolute one", at, f.key, f.path)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		fail("%s.tls: has only one of cert and key; want both or neither", at)
	}
	if listener && t.Cert == "" {
		fail("%s.tls: has no cert; clients cannot verify a server without one", at)
	}
	if listener && t.ServerName != "" {
		fail("%s.tls.serverName: is for backends only; leave it out", at)
	}
}
