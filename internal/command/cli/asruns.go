package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/server"
)

// overriding returns the flags on the command line that take precedence over the file: name → value.
func (f *Flags) overriding(fs *flag.FlagSet) map[string]string {
	all := map[string]string{}
	for name := range f.given {
		if !slices.Contains([]string{"config", "log-format", "apiserver"}, name) && !IsKlog(name) {
			all[name] = fs.Lookup(name).Value.String()
		}
	}
	return all
}

// asRuns completes a command line that does not say what to examine: it adds the flags, and the file, of the criproxy
// that runs. To a command line with only the file of that criproxy it adds the flags, which take precedence over the
// file there. It returns what it has added, for people. It fails if several criproxys run, and nothing says which one to
// examine. If they name an admin socket, and nothing else to examine, absent is why the criproxy there does not answer.
func (f *Flags) asRuns(ctx context.Context, fs *flag.FlagSet) (string, error) {
	if f.given["connect"] || f.given["profile"] || f.koord.given(f.given) {
		return "", nil
	}
	asked := f.typed.Admin
	if asked == "" && f.given["listen"] {
		asked = config.AdminBeside(f.typed.Listen)
	}
	_, missing := os.Stat(f.fallback)
	hasFile := f.given["config"] || missing == nil // which says what to examine
	path, err := adminSocket(ctx, asked)
	if err != nil {
		if hasFile {
			return "", nil
		}
		return "", err
	}
	if admin.IsRemote(path) {
		return "", nil // it does not run here
	}
	running, err := askOne[admin.Report](ctx, path, "status", server.AskTimeout)
	if err != nil {
		if !hasFile && path != "none" && (path == f.typed.Admin || path == os.Getenv(adminVariable)) {
			f.absent = err
		}
		return "", nil
	}
	file := fileOf(&running)
	if f.given["config"] && f.config != "-" && !sameFile(f.config, file) { // what comes from standard input is to take its place
		return "", nil
	}
	f.running = path
	var added []string
	add := func(name, value string) {
		if !f.given[name] && fs.Lookup(name) != nil && fs.Set(name, value) == nil {
			f.given[name] = true
			added = append(added, "-"+name+" "+value)
		}
	}
	if file != "" {
		add("config", file)
	}
	for _, name := range slices.Sorted(maps.Keys(running.Config.Flags)) {
		add(name, running.Config.Flags[name])
	}
	if len(added) == 1 && file == config.DefaultConfig {
		return "", nil // as without a criproxy that runs
	}
	return strings.Join(added, " "), nil
}

// sayAsRuns shows what asRuns has added.
func sayAsRuns(out *show.Screen, added string) {
	if added != "" {
		out.Say(0, "This is examined as the criproxy that runs was started, with %s", added)
		out.Gap()
	}
}

// configOf returns what settings say of sockets and backends, and of what doctor examines besides.
func configOf(s config.Settings) *config.Config {
	read := func(key string, to any) {
		if text, ok := s[key]; ok {
			_ = json.Unmarshal([]byte(text), to) // Settings has encoded it
		}
	}
	list := func(key string) []string {
		var all []string
		for i := 0; s[fmt.Sprintf("%s[%d]", key, i)] != ""; i++ {
			all = append(all, "")
			read(fmt.Sprintf("%s[%d]", key, i), &all[i])
		}
		return all
	}
	c := &config.Config{Proto: list("proto"), ProtoPath: list("protoPath")}
	read("listen", &c.Listen)
	read("tracing", &c.Tracing)
	read("profile", &c.Profile)
	read("rules", &c.Rules)
	read("ids", &c.IDs)
	read("stateDir", &c.StateDir)
	read("hooks", &c.Hooks)
	for _, key := range slices.Sorted(maps.Keys(s)) {
		item, what, _ := strings.Cut(key, "].")
		switch {
		case strings.HasPrefix(item, "listeners[") && what == "path":
			var l config.Listener
			read(key, &l.Path)
			c.Listeners = append(c.Listeners, l)
		case strings.HasPrefix(item, "backends[") && what == "address":
			b := config.Backend{Addresses: list(item + "].addresses")}
			read(item+"].name", &b.Name)
			read(key, &b.Address)
			c.Backends = append(c.Backends, b)
		}
	}
	return c
}

// fileOf returns the path of the configuration file of the criproxy that runs, empty if there is none.
func fileOf(running *admin.Report) string {
	if running.Config.File == "" {
		return ""
	}
	return inFolder(fmt.Sprintf("/proc/%d/cwd", running.PID), running.Config.File)
}

// sameFile reports whether two paths lead to one file.
func sameFile(a, b string) bool {
	one, failed := os.Stat(a)
	other, err := os.Stat(b)
	return cmp.Or(failed, err) == nil && os.SameFile(one, other)
}
