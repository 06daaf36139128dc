package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
)

// koordFlags are the five flags of KoordRuntimeProxy, so that its unit file starts criproxy.
type koordFlags struct {
	endpoint, backend, mode, skipKey, skipValue string
}

// koordDefaults are the defaults of KoordRuntimeProxy.
var koordDefaults = koordFlags{
	endpoint:  "/var/run/koord-runtimeproxy/runtimeproxy.sock",
	backend:   "/var/run/containerd/containerd.sock",
	mode:      "Containerd",
	skipKey:   "runtimeproxy.koordinator.sh/skip-hookserver",
	skipValue: "true",
}

func (k *koordFlags) register(fs *flag.FlagSet) {
	const as = "KoordRuntimeProxy's name for "
	fs.StringVar(&k.endpoint, "koord-runtimeproxy-endpoint", "", as+"-listen `PATH`")
	fs.StringVar(&k.backend, "remote-runtime-service-endpoint", "", as+"-connect `PATH`")
	fs.StringVar(&k.mode, "backend-runtime-mode", "", "as KoordRuntimeProxy has it; the only `MODE` is Containerd, which is any CRI runtime")
	fs.StringVar(&k.skipKey, "runtime-hook-server-key", "", "the `KEY` of the label of pods that no plugin is asked about")
	fs.StringVar(&k.skipValue, "runtime-hook-server-val", "", "and its `VALUE`")
}

// names are the flags, and where they go.
func (k *koordFlags) names() map[string]*string {
	return map[string]*string{
		"koord-runtimeproxy-endpoint":     &k.endpoint,
		"remote-runtime-service-endpoint": &k.backend,
		"backend-runtime-mode":            &k.mode,
		"runtime-hook-server-key":         &k.skipKey,
		"runtime-hook-server-val":         &k.skipValue,
	}
}

// apply puts the flags into c. If one of them is given, the others have the defaults of
// KoordRuntimeProxy, unless c has other values.
func (k *koordFlags) apply(c *config.Config, given map[string]bool) error {
	any := false
	defaults := koordDefaults
	for name, value := range k.names() {
		any = any || given[name]
		if !given[name] {
			*value = *defaults.names()[name]
		}
	}
	if !any {
		return nil
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
