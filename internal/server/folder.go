package server

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/config"
)

// nameOf returns the name of a backend in the log, in status and in files: that of the primary, which has no prefix, is "primary".
func nameOf(b config.Backend) string { return director.Backend{Name: b.Name}.String() }

// addressOf returns all addresses of b as one text. No other runtime has the same.
func addressOf(b config.Backend) string {
	return strings.Join(b.AllAddresses(), ",")
}

// places returns the backends of a configuration, for the Set.
func places(cfg *config.Config) []Place {
	var all []Place
	for _, b := range cfg.Backends {
		all = append(all, Place{Name: nameOf(b), Address: addressOf(b)})
	}
	return all
}

// folder returns the folder for the caches. A proxy that only shows calls has none: the folder may be that of another one.
func (p *Proxy) folder(cfg *config.Config) Folder {
	switch {
	case cfg.StateDir == "", p.shows:
		return Folder{}
	case p.machine.Boot != "":
		return Folder{Path: cfg.StateDir, Boot: p.machine.Boot}
	}
	return Folder{Path: cfg.StateDir, Boot: startOfNode(runFolder)}
}

// caches reports whether the backends of a configuration have caches. A single runtime has
// none: if it is gone, so is the node. A profile that names nothing to keep makes none either.
func caches(cfg *config.Config, p *director.Profile) bool {
	return !single(cfg) && len(p.Known.Lists)+len(p.Known.Replies) > 0
}

// single reports whether a configuration has one runtime and asks for nothing that needs a cache: a policy is about what a cache
// says, and native ids are found in it.
func single(cfg *config.Config) bool {
	return len(cfg.Backends) == 1 && cfg.Backends[0].Policy == "" && cfg.IDs != config.NativeIDs
}

// runFolder is empty after each start of the node, even if the node is a container and the boot id
// is that of its machine: Filesystem Hierarchy Standard 3.0, section 3.15.
const runFolder = "/run"

// startOfNode returns a word that changes with each start of the node. The first process that
// asks for the word writes it to a file in folder. If that fails, the word is empty.
func startOfNode(folder string) string {
	path := filepath.Join(folder, "criproxy.boot")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, err = f.WriteString(rand.Text())
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(path) // it may have half a word
		}
	}
	word, _ := os.ReadFile(path)
	return string(word)
}
