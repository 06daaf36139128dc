// Package config is what can be configured, as plain data: Parse reads the text of a file,
// Check completes it with the defaults and finds mistakes, Settings.Changes and NeedsRestart
// compare two configurations. Nothing here opens a socket, listens or logs.
package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/strict"
)

// DefaultListen is the socket that kubelet connects to.
const DefaultListen = "/run/criproxy.sock"

// DefaultConfig is the file that criproxy reads if it exists, and the command line names neither
// another one nor runtimes.
const DefaultConfig = "/etc/criproxy/config.yaml"

// DefaultAdmin is the admin socket beside DefaultListen.
const DefaultAdmin = "/run/criproxy.admin.sock"

// maxSocketPath is the longest path that a unix socket can have, unix(7).
const maxSocketPath = 107

// Config is everything that can be configured. The file and the command line set the same
// fields; the command line takes precedence. The zero value, completed by Check, has the
// defaults.
type Config struct {
	// Listen is the path of the socket that kubelet, crictl and other clients
	// connect to. Optional: /run/criproxy.sock.
	Listen string `yaml:"listen"`

	// Listeners are further sockets, for clients that may do less, and the particulars of the
	// main one. Optional.
	Listeners []Listener `yaml:"listeners"`

	// Admin is the path of the socket for criproxy's own commands, which only the user that it
	// runs as can use. Optional: beside Listen, with "admin" before the ending; "none" opens no
	// such socket.
	Admin string `yaml:"admin"`

	// Metrics is an address, HOST:PORT, at which /metrics, /healthz and /readyz are served over
	// TCP as well, to every client that can reach it. Optional: they are served only at the
	// admin socket.
	Metrics string `yaml:"metrics"`

	// Tracing is the URL of an OpenTelemetry collector, OTLP over gRPC, that gets a span of each
	// leg of a call, such as http://127.0.0.1:4317. Optional: the environment's
	// OTEL_EXPORTER_OTLP_ENDPOINT; without either there are no spans.
	Tracing string `yaml:"tracing"`

	// Backends are the runtimes. The one without a name is the primary, or the first if all have
	// names: it gets every call that nothing directs elsewhere.
	Backends []Backend `yaml:"backends"`

	// Profile is a file that describes the API, if it is another one than CRI; see
	// docs/profile.md. Optional.
	Profile string `yaml:"profile"`

	// Proto are descriptors of the API: .proto files, descriptor sets that protoc has written
	// with --descriptor_set_out, or such a set as text in a .txtpb, or "reflection", which asks
	// the backends. With them criproxy knows a newer CRI than it is built with. Optional.
	Proto []string `yaml:"proto"`

	// ProtoPath are the folders that names of .proto files, and their imports, are relative to.
	// Optional.
	ProtoPath []string `yaml:"protoPath"`

	// Rules are additions to the rules of the profile, or of cri.yaml, for newer descriptors.
	// They take precedence over those of the profile. Optional.
	Rules *director.Profile `yaml:"rules"`

	// NewPodsTo is the name of the runtime that gets the new pods which neither their
	// RuntimeClass nor an annotation directs elsewhere. Existing pods stay where they are, and
	// pods of a RuntimeClass that no runtime maps go to the primary. This drains one runtime
	// while another one takes over. Optional: the primary.
	NewPodsTo string `yaml:"newPodsTo"`

	// StreamURL completes the URLs of exec, attach and port-forward that a
	// runtime returns without a host. URLs with a host pass as they are.
	// Optional: http://ADDRESS:PORT with the address of this node and StreamPort.
	StreamURL string `yaml:"streamUrl"`

	// StreamPort is the port for StreamURL, where that is not set. Optional: 11250.
	StreamPort int `yaml:"streamPort"`

	// IDs is how ids look to clients: "prefix", with the name of their runtime before them, or
	// "native", as the runtimes made them, which log collectors and monitoring may need.
	// Optional: prefix.
	IDs string `yaml:"ids"`

	// ListBudget is how long a runtime may take for a list, or a status, before it counts as
	// slow and memory answers in its place. Optional: 2s. It should stay well below the 3
	// minutes after which kubelet gives up the node.
	ListBudget time.Duration `yaml:"listBudget"`

	// GoneAfter is how long a runtime that accepts connections may stay silent before it counts
	// as gone. Optional: 10s.
	GoneAfter time.Duration `yaml:"goneAfter"`

	// EventInterval is how often criproxy compares the lists of a runtime without events, for
	// clients that want events. A container that is made and removed between two comparisons yields none.
	// Optional: 1s.
	EventInterval time.Duration `yaml:"eventInterval"`

	// StateDir is the folder in which criproxy keeps what it knows of the runtimes, so that a
	// restart of criproxy during an outage changes nothing. Optional: /var/lib/criproxy; "none"
	// keeps nothing.
	StateDir string `yaml:"stateDir"`

	// FlightRecorder is the memory, in bytes, in which the latest calls are recorded,
	// for criproxy tail and dump, for the log, and for Capture. Optional: 8 MiB; -1
	// records nothing.
	FlightRecorder int `yaml:"flightRecorder"`

	// Capture is a file to which all calls are written. Optional.
	Capture Capture `yaml:"capture"`

	// UnsafeRaw records secrets as well: credentials of registries, environment variables, the
	// output of commands, tokens. Optional.
	UnsafeRaw bool `yaml:"unsafeRaw"`

	// Hooks is the folder in which plugins register that may change or refuse calls. Optional:
	// /etc/runtime/hookserver.d, or none with Profile; "none" turns plugins off.
	Hooks string `yaml:"hooks"`

	// HookSkipLabel is the label, as KEY=VALUE, of pods whose calls no plugin gets. Optional:
	// runtimeproxy.koordinator.sh/skip-hookserver=true.
	HookSkipLabel string `yaml:"hookSkipLabel"`

	// HookPodResources heeds the resources that plugins answer before a pod is made. KoordRuntimeProxy
	// ignores them: koordlet answers a CPU quota of -1 for some pods, and a runtime that sizes a virtual machine
	// after the pod's resources would heed that. Optional.
	HookPodResources bool `yaml:"hookPodResources"`

	// MaxMessageBytes is the size of the largest message, either way. Optional: 16 MiB, which is
	// kubelet's own limit.
	MaxMessageBytes int `yaml:"maxMessageBytes"`

	// NoBackends allows a configuration without runtimes, to which nothing is connected.
	NoBackends bool `yaml:"-"`

	// Sources are the contents of the files of Profile and Proto when the configuration was
	// read: by these, a reload sees that a file has changed.
	Sources []string `yaml:"-"`

	unread error         // what of the file could not be read
	places strict.Places // where the settings stand in it

	// BuiltIn replaces the descriptors of CRI that this program has, in tests of what an
	// older or newer criproxy does. Nil leaves them.
	BuiltIn *codec.Schema `yaml:"-"`
}

// Capture is a file of calls. docs/capture.md describes it.
type Capture struct {
	// Path is the file. The ending of its name determines the format: .jsonl, .pcapng or
	// .binlog.
	Path string `yaml:"path"`

	// MaxBytes is the size at which a new file begins. Optional: 64 MiB; -1 for no limit.
	MaxBytes int64 `yaml:"maxBytes"`

	// MaxFiles is how many files are kept, this one and older ones, which have a number before
	// the ending. Optional: 5.
	MaxFiles int `yaml:"maxFiles"`
}

// Backend is one of the runtimes.
type Backend struct {
	// Name stands before the ids and images of this runtime: NAME__ID and NAME/IMAGE. Pods whose
	// annotation kubernetes.io/target-runtime is NAME go to it. It should have a dot, so that
	// kubelet takes it for a registry of its own, and no dash. Empty for the primary.
	Name string `yaml:"name"`

	// Address is the path of its socket; HOST:PORT, or dns:///HOST:PORT for all servers of that
	// name in DNS, which take TLS; or vsock:CID:PORT.
	Address string `yaml:"address"`

	// Addresses are those of further servers, each equal to the one at Address. Optional.
	Addresses []string `yaml:"addresses"`

	// Balance is gRPC's policy for choosing among several servers: round_robin, pick_first
	// or least_request_experimental. Optional: round_robin.
	Balance string `yaml:"balance"`

	// TLS is how the connection is secured. Optional for sockets and vsock.
	TLS *TLS `yaml:"tls"`

	// Handlers are the RuntimeClass handlers whose pods go to this runtime, each
	// with the name that the handler has there; "" is its default. Optional.
	Handlers map[string]string `yaml:"handlers"`

	// Maps are tables for other kinds of names that a profile maps: kind → front name → name at
	// this backend. Optional.
	Maps map[string]map[string]string `yaml:"maps"`

	// Policy is what lists show while the runtime is down: "last-known", its pods as they were;
	// "fail", nothing of any runtime, which stops the whole node; "skip", no pods of it, which
	// kubelet then kills. Optional: last-known.
	Policy string `yaml:"policy"`

	// Required makes lists wait up to 10s for a runtime that this node has never seen, and then
	// fail. Otherwise lists leave it out. Optional.
	Required bool `yaml:"required"`

	// Credentials are sent along with pulls whose prefix is removed. kubelet chose them for the
	// name with the prefix. Optional: they are withheld.
	Credentials bool `yaml:"credentials"`

	// MaxCalls is how many calls of clients may be under way at once, streams of events among
	// them. One more is ResourceExhausted. Half of them are reserved for clients of the main
	// socket. Optional: 4096.
	MaxCalls int `yaml:"maxCalls"`
}

const (
	PrefixIDs = "prefix"
	NativeIDs = "native"
)

// DefaultStateDir is where criproxy keeps what it knows of the runtimes.
const DefaultStateDir = "/var/lib/criproxy"

// DefaultHooks is the folder in which plugins register, KoordRuntimeProxy's.
const DefaultHooks = "/etc/runtime/hookserver.d"

// defaultHookSkipLabel is the label of pods that no plugin is asked about.
const defaultHookSkipLabel = "runtimeproxy.koordinator.sh/skip-hookserver=true"

// Parse reads the text of a file into c, also the rest of one with mistakes. Check reports them
// again, together with those that it finds itself.
func (c *Config) Parse(file string, data []byte) error {
	if err := strict.UnmarshalRest(data, c); err != nil {
		c.Fail(PrefixLines(file, err))
	}
	c.places = strict.PlacesIn(data).In(file)
	if c.Rules != nil {
		c.Rules.From(file, strict.PlacesIn(data).Below("rules"))
	}
	return c.unread
}

// Fail has Check report a mistake that was found before it.
func (c *Config) Fail(err error) { c.unread = errors.Join(c.unread, err) }

// Override notes that a setting, by its key, is not that of the file.
func (c *Config) Override(key string) {
	for path := range c.places {
		if path == key || strings.HasPrefix(path, key+"[") || strings.HasPrefix(path, key+".") {
			delete(c.places, path)
		}
	}
}

// mistakes returns what could not be read, and what Check has found, with places. It leaves out
// that something is missing where something could not be read.
func (c *Config) mistakes(found []error) error {
	errs := []error{c.unread}
	for _, err := range found {
		path, place := c.places.Find(err.Error())
		if c.unread != nil && isMissing.MatchString(err.Error()) && (path == "" || strings.Contains(c.unread.Error(), path)) {
			continue
		}
		if place != "" {
			err = fmt.Errorf("%s: %w", place, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isMissing finds mistakes that follow from others.
var isMissing = regexp.MustCompile(`^no runtime to connect to| has no |: is empty, and`)

// minRecorder is the least memory in which something can be recorded.
const minRecorder = 64 << 10

// PrefixLines puts a file before each line of err, of which those with a place in it begin with
// that.
func PrefixLines(file string, err error) error {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if line == "" || line[0] < '0' || line[0] > '9' {
			line = " " + line
		}
		lines[i] = file + ":" + line
	}
	return errors.New(strings.Join(lines, "\n"))
}
