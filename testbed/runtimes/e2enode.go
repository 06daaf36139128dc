package runtimes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// PushE2ENode stores the images that Kubernetes' tests of a node name, under registry.k8s.io, for a mirror. The images
// agnhost and nonewprivs hold the programs of these names, from a folder, and the machine's busybox; the others hold only
// busybox.
func (r *Registry) PushE2ENode(programs string) error {
	busybox, err := Busybox()
	if err != nil {
		return err
	}
	shell, err := busyboxLayer(busybox)
	if err != nil {
		return err
	}
	agnhost, err := os.ReadFile(filepath.Join(programs, "agnhost"))
	if err != nil {
		return fmt.Errorf("testbed: reading agnhost: %w", err)
	}
	nonewprivs, err := os.ReadFile(filepath.Join(programs, "nonewprivs"))
	if err != nil {
		return fmt.Errorf("testbed: reading nonewprivs: %w", err)
	}
	certificate, key, err := selfSigned("localhost")
	if err != nil {
		return err
	}
	host, err := layer(map[string]file{
		"/agnhost":       {Content: string(agnhost), Mode: 0o755},
		"/agnhost-2":     {Link: "agnhost"},
		"/localhost.crt": {Content: certificate, Mode: 0o644},
		"/localhost.key": {Content: key, Mode: 0o644},
		"/bin/bash":      {Content: "#!/bin/sh\nexec sh \"$@\"\n", Mode: 0o755},
		// The specs use curl only to fetch a page.
		"/usr/bin/curl": {Content: "#!/bin/sh\nfor url; do :; done\nexec wget -q -O - \"$url\"\n", Mode: 0o755},
	})
	if err != nil {
		return err
	}
	kitten, err := layer(plain(map[string]string{"/data.json": `{"image": "kitten.jpg"}` + "\n"}, 0o644))
	if err != nil {
		return err
	}
	privileges, err := layer(map[string]file{"/usr/local/bin/nnp": {Content: string(nonewprivs), Mode: 0o4755}})
	if err != nil {
		return err
	}
	pause, err := newImage(imageSpec{App: r.config.App, Cmd: []string{"pause"}})
	if err != nil {
		return err
	}
	if err := r.Push("pause:3.10.2", pause); err != nil {
		return err
	}
	entry := []string{"/agnhost"}
	for name, of := range map[string]struct {
		config v1.Config
		layers []v1.Layer
	}{
		"agnhost:2.63.0":          {v1.Config{Entrypoint: entry, Cmd: []string{"pause"}}, []v1.Layer{host}},
		"busybox:1.37.0-1":        {v1.Config{Cmd: []string{"sh"}}, nil},
		"glibc-dns-testing:2.0.0": {v1.Config{Cmd: []string{"sh"}}, nil},
		"ipc-utils:1.4":           {v1.Config{Cmd: []string{"sh"}}, nil},
		"kitten:1.8":              {v1.Config{Entrypoint: entry, Cmd: []string{"test-webserver"}}, []v1.Layer{host, kitten}},
		"nginx:1.15-4":            {v1.Config{Cmd: []string{"serve", "80"}}, nil},
		"nginx:1.27-0":            {v1.Config{Cmd: []string{"serve", "80"}, Labels: map[string]string{"version": "1.27"}}, nil},
		"nonewprivs:1.4":          {v1.Config{Cmd: []string{"nnp"}}, []v1.Layer{privileges}},
		"nonroot:1.5":             {v1.Config{Cmd: []string{"sh"}, User: "1234"}, nil},
	} {
		of.config.Env = shellEnv
		image, err := assemble(of.config, append([]v1.Layer{shell}, of.layers...)...)
		if err != nil {
			return err
		}
		if err := r.Push("e2e-test-images/"+name, image); err != nil {
			return err
		}
	}
	return nil
}

// selfSigned makes a certificate for a name, valid for a day, and its key, as PEM.
func selfSigned(name string) (certificate, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
	return certificate, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}
