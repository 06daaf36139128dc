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

// koordFlags are the five flags of KoordRuntimeProxy, with which its unit file can start criproxy.
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
		{"backend-runtime-mode", &k.mode, "Containerd", "accepted for KoordRuntimeProxy's command lines; the only `MODE` is Containerd, which stands for any CRI runtime"},
		{"runtime-hook-server-key", &k.skipKey, "runtimeproxy.koordinator.sh/skip-hookserver", "the `KEY` of a label; criproxy asks no plugin about pods that have it"},
		{"runtime-hook-server-val", &k.skipValue, "true", "the `VALUE` of that label"},
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
			return fmt.Errorf("-%s and -%s set the same thing; use only one of them", ours, theirs)
		}
	}
	switch {
	case k.mode == "Docker":
		return errors.New("-backend-runtime-mode Docker: criproxy does not speak Docker's HTTP; start cri-dockerd, and use -remote-runtime-service-endpoint /run/cri-dockerd.sock without this flag: plugins are then asked about its calls as well")
	case k.mode != "Containerd":
		return fmt.Errorf("-backend-runtime-mode %s: the only mode is Containerd, which stands for any CRI runtime; leave the flag out", k.mode)
	}
	if c.Listen == "" || given["koord-runtimeproxy-endpoint"] {
		c.Listen = k.endpoint
		if err := os.MkdirAll(filepath.Dir(k.endpoint), 0o755); err != nil { // as KoordRuntimeProxy does
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
			return fmt.Errorf("-runtime-hook-server-key %s: the key of a label cannot contain =", k.skipKey)
		}
		c.HookSkipLabel = k.skipKey + "=" + k.skipValue
	}
	return nil
}
