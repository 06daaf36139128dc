package config

import "path/filepath"

// TLS is how a connection is secured. Its files are read for each new connection: a changed file
// counts from the next connection on, and a broken file is ignored until it is mended.
type TLS struct {
	// CA is a file with the certificates of the authorities that sign the other side's
	// certificate. For a backend, optional: those that the system trusts. For a listener,
	// optional: clients need no certificate.
	CA string `yaml:"ca"`

	// Cert and Key are the files of criproxy's own certificate, with its chain, and of its key.
	// For a backend, optional: criproxy presents none.
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
		fail("%s.tls: has no cert; clients cannot verify a server without one", at)
	}
	if listener && t.ServerName != "" {
		fail("%s.tls.serverName: is for backends", at)
	}
}
