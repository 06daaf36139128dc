package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
)

// koordFlags are the five flags of KoordRuntimeProxy, so that its unit file starts criproxy.
type koordFlags struct {
	endpoint, backend, mode, skipKey, skipValue string
}

// koordFlag is one of them, with the default of KoordRuntimeProxy.
type koordFlag struct {
	name     string
	value    *string
	standard string
	usage    string
}

func (k *koordFlags) all() []koordFlag {
	const as = "KoordRuntimeProxy's name for "
	return []koordFlag{
		{"koord-runtimeproxy-endpoint", &k.endpoint, "/var/run/koord-runtimeproxy/runtimeproxy.sock", as + "-listen `PATH`"},
		{"remote-runtime-service-endpoint", &k.backend, "/var/run/containerd/containerd.sock", as + "-connect `PATH`"},
		{"backend-runtime-mode", &k.mode, "Containerd", "as KoordRuntimeProxy has it; the only `MODE` is Containerd, which is any CRI runtime"},
		{"runtime-hook-server-key", &k.skipKey, "runtimeproxy.koordinator.sh/skip-hookserver", "the `KEY` of the label of pods that no plugin is asked about"},
		{"runtime-hook-server-val", &k.skipValue, "true", "and its `VALUE`"},
	}
}

func (k *koordFlags) register(fs *flag.FlagSet) {
	for _, f := range k.all() {
		fs.StringVar(f.value, f.name, "", f.usage)
	}
}

// given reports whether the command line has one of the flags.
func (k *koordFlags) given(given map[string]bool) bool {
	return slices.ContainsFunc(k.all(), func(f koordFlag) bool { return given[f.name] })
}

// apply puts the flags into c. If one of them is given, the others have the defaults of
// KoordRuntimeProxy, unless c has other values.
func (k *koordFlags) apply(c *config.Config, given map[string]bool) error {
	if !k.given(given) {
		return nil
	}
	for _, f := range k.all() {
		if !given[f.name] {
			*f.value = f.standard
		}
	}
	for ours, theirs := range map[string]string{"connect": "remote-runtime-service-endpoint", "listen": "koord-runtimeproxy-endpoint"} {
		if given[ours] && given[theirs] {
			return fmt.Errorf("-%s and -%s say the same thing; use one of them", ours, theirs)
		}
	}
	switch {
	case k.mode == "Docker":
		return errors.New("-backend-runtime-mode Docker: there is no dockershim any more that would speak HTTP through here; start cri-dockerd, use -remote-runtime-service-endpoint /run/cri-dockerd.sock without this flag, and plugins are asked about its calls as well")
	case k.mode != "Containerd":
		return fmt.Errorf("-backend-runtime-mode %s: the only mode is Containerd, which is any CRI runtime; leave the flag out", k.mode)
	}
	if c.Listen == "" || given["koord-runtimeproxy-endpoint"] {
		c.Listen = k.endpoint
		if err := os.MkdirAll(filepath.Dir(k.endpoint), 0o755); err != nil { // as it does
			return fmt.Errorf("making the folder of -koord-runtimeproxy-endpoint: %w", err)
		}
	}
	if len(c.Backends) == 0 {
		c.Backends = []config.Backend{{Address: k.backend}}
	} else if given["remote-runtime-service-endpoint"] {
		primary := 0
		for i, b := range c.Backends {
			if b.Name == "" {
				primary = i
			}
		}
		c.Backends[primary].Address = k.backend
	}
	if given["runtime-hook-server-key"] || given["runtime-hook-server-val"] {
		if strings.Contains(k.skipKey, "=") {
			return fmt.Errorf("-runtime-hook-server-key %s: is no key of a label", k.skipKey)
		}
		c.HookSkipLabel = k.skipKey + "=" + k.skipValue
	}
	return nil
}
