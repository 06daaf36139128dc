package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// An Option is a setting that has a flag, or that takes effect only at a restart.
type Option struct {
	Key     string            // in the file
	Flag    string            // on the command line; empty if there is none
	Usage   string            // of the flag, with the kind of its value in backquotes
	Restart bool              // a reload does not apply a change
	Value   func(*Config) any // returns a pointer to the field
}

// Options returns all options. The caller must not change them.
func Options() []Option { return options }

var options = []Option{
	{"listen", "listen", "the `PATH` of the socket that kubelet connects to (default " + DefaultListen + ")",
		false, func(c *Config) any { return &c.Listen }},
	{"admin", "admin", "the `PATH` of the socket for criproxy's own commands, which only the user that criproxy runs as can use; none opens no such socket (default beside -listen: " + DefaultAdmin + ")",
		true, func(c *Config) any { return &c.Admin }},
	{"metrics", "metrics", "serve metrics and health checks at `HOST:PORT` as well, to every client that can reach it (default only at the socket of -admin)",
		true, func(c *Config) any { return &c.Metrics }},
	{"tracing", "", "",
		true, func(c *Config) any { return &c.Tracing }},
	{"newPodsTo", "new-pods-to", "make new pods on the runtime called `NAME`, unless a RuntimeClass or annotation sends them elsewhere; this drains the primary (default the primary)",
		false, func(c *Config) any { return &c.NewPodsTo }},
	{"streamUrl", "streamUrl", "add `URL` to URLs of exec, attach and port-forward that a runtime returns without a host; those with a host pass unchanged",
		false, func(c *Config) any { return &c.StreamURL }},
	{"streamPort", "streamPort", "the same as -streamUrl with the address of this node and `PORT` (default 11250)",
		false, func(c *Config) any { return &c.StreamPort }},
	{"ids", "ids", "how clients see ids: `MODE` is prefix, which is NAME__ID, or native, as the runtimes made them (default prefix)",
		true, func(c *Config) any { return &c.IDs }},
	{"listBudget", "list-budget", "`TIME` that a runtime may take for a list before criproxy answers from its cache (default 2s)",
		false, func(c *Config) any { return &c.ListBudget }},
	{"goneAfter", "gone-after", "`TIME` that a runtime may be silent before it counts as gone (default 10s)",
		false, func(c *Config) any { return &c.GoneAfter }},
	{"stateDir", "state-dir", "store the cached answers of the runtimes in `FOLDER`, for a restart while one of them is gone; none stores nothing (default " + DefaultStateDir + ")",
		true, func(c *Config) any { return &c.StateDir }},
	{"dataPath", "data-path", "speak HTTP/2 with clients and runtimes by `PATH`: own, or grpc, which is grpc-go: docs/security.md compares them (default own)",
		true, func(c *Config) any { return &c.DataPath }},
	{"hooks", "hooks", "the `FOLDER` in which plugins register; none turns plugins off (default " + DefaultHooks + ")",
		true, func(c *Config) any { return &c.Hooks }},
	{"hookSkipLabel", "", "",
		true, func(c *Config) any { return &c.HookSkipLabel }},
	{"hookPodResources", "", "",
		true, func(c *Config) any { return &c.HookPodResources }},
	{"maxMessageBytes", "max-message-bytes", "the size of the largest message in either direction, in `BYTES` (default 16777216, which is kubelet's own limit)",
		true, func(c *Config) any { return &c.MaxMessageBytes }},
	{"flightRecorder", "flight-recorder", "record the latest calls in memory of this size, in `BYTES`; -1 records nothing (default 16777216)",
		true, func(c *Config) any { return &c.FlightRecorder }},
	{"unsafeRaw", "unsafe-raw", "record, log and capture secrets as well: credentials, environments, output, tokens",
		true, func(c *Config) any { return &c.UnsafeRaw }},
	{"capture.path", "capture", "write all calls to `FILE`.jsonl, .pcapng (for Wireshark) or .binlog, without secrets",
		true, func(c *Config) any { return &c.Capture.Path }},
	{"capture.maxBytes", "capture-max-bytes", "begin a new file of -capture after `BYTES`; -1 for no limit (default 67108864)",
		true, func(c *Config) any { return &c.Capture.MaxBytes }},
	{"capture.maxFiles", "capture-files", "keep `N` files of -capture, the older ones as FILE.1.jsonl and so on (default 5)",
		true, func(c *Config) any { return &c.Capture.MaxFiles }},
	{"profile", "profile", "the `FILE` that describes the API, if it is not CRI: docs/profile.md",
		false, func(c *Config) any { return &c.Profile }},
	{"proto", "proto", "descriptors of the API, or of a newer CRI: `FILES` that are .proto files or descriptor sets, separated by commas, or reflection, which asks the backends",
		false, func(c *Config) any { return &c.Proto }},
	{"protoPath", "proto-path", "the `FOLDERS` in which to look for .proto files and their imports, separated by commas",
		false, func(c *Config) any { return &c.ProtoPath }},
}

// restartKeys returns the top-level keys of the file whose changes a reload does not apply.
func restartKeys() []string {
	var all []string
	for _, o := range options {
		if top, _, _ := strings.Cut(o.Key, "."); o.Restart && !slices.Contains(all, top) {
			all = append(all, top)
		}
	}
	return all
}

// NeedsRestart names the differences between c and next that take effect only in a process that
// starts with them.
func (c *Config) NeedsRestart(next *Config) []string {
	var all []string
	for _, o := range options {
		was, will := reflect.ValueOf(o.Value(c)).Elem(), reflect.ValueOf(o.Value(next)).Elem()
		if o.Restart && !was.Equal(will) {
			all = append(all, fmt.Sprintf("%s: %s, was %s", o.Key, OrNone(fmt.Sprint(will)), OrNone(fmt.Sprint(was))))
		}
	}
	if !slices.Equal(c.Sources, next.Sources) || !reflect.DeepEqual(c.Rules, next.Rules) {
		all = append(all, "profile, proto, rules: calls follow the new ones, but the recording still names fields and hides secrets by the old ones")
	}
	return all
}
