package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// One runtime under two names listed each pod twice with one uid, and criproxy as its own backend called itself all the
// time. See issue 40.
func TestOneSocketIsNotTwoThings(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketDir(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "run"), 0o700))
	require.NoError(t, os.Symlink("run", filepath.Join(dir, "varrun")))
	run, varrun := filepath.Join(dir, "run")+"/", filepath.Join(dir, "varrun")+"/"
	for want, change := range map[string]func(*Config){
		"backends[1]: " + varrun + "a.sock is already the address of backends[0]": func(c *Config) { c.Backends[1].Address = varrun + "a.sock" },
		"backends[1]: " + varrun + "a.sock is already":                            func(c *Config) { c.Backends[1].Addresses = []string{varrun + "a.sock"} },
		"backends[1]: " + varrun + "c.sock is also the socket of listen":          func(c *Config) { c.Backends[1].Address = varrun + "c.sock" },
		"backends[1]: /" + run + "c.sock is also the socket of listen":            func(c *Config) { c.Backends[1].Address = "/" + run + "c.sock" },
		"backends[1]: " + varrun + "adm.sock is also the admin socket":            func(c *Config) { c.Backends[1].Address = varrun + "adm.sock" },
		"admin: " + varrun + "c.sock is also the socket of listen":                func(c *Config) { c.Admin = varrun + "c.sock" },
		"listeners[0]: " + varrun + "c.sock is the socket of listen; write":       func(c *Config) { c.Listeners = []Listener{{Path: varrun + "c.sock"}} },
		"listeners[0]: " + varrun + "adm.sock is the admin socket already":        func(c *Config) { c.Listeners = []Listener{{Path: varrun + "adm.sock"}} },
		"listeners[0]: " + varrun + "b.sock is the socket of backends[1]":         func(c *Config) { c.Listeners = []Listener{{Path: varrun + "b.sock"}} },
	} {
		c := &Config{Listen: run + "c.sock", Admin: run + "adm.sock", Backends: []Backend{{Address: run + "a.sock"}, {Name: "b.io", Address: run + "b.sock"}}}
		change(c)
		assert.ErrorContains(t, c.Check(), want)
	}
}
