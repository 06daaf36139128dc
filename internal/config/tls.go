package config

import "path/filepath"

// TLS is how a connection is secured. Its files are read for each new connection:
// one that has changed counts from the next connection on, and one that is broken not
// until it is well again.
type TLS struct {
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

// check calls fail for each mistake in t, which stands at the key at.
func (t *TLS) check(at string, listener bool, fail func(string, ...any)) {
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
}
