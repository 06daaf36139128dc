// Package config holds the settings of criproxy as plain data. Parse reads the text of a file, Check fills in the
// defaults and finds mistakes, Settings.Changes and NeedsRestart compare two configurations. The package opens no
// socket and logs nothing.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/strict"
	"github.com/criproxy/criproxy/internal/profile"
)

// DefaultListen is the socket that kubelet connects to.
const DefaultListen = "/run/criproxy.sock"

// DefaultConfig is the file that criproxy reads if it exists and the command line names neither another file nor any
// runtimes.
const DefaultConfig = "/etc/criproxy/config.yaml"

// DefaultAdmin is the admin socket beside DefaultListen.
const DefaultAdmin = "/run/criproxy.admin.sock"

// maxSocketPath is the longest path that a unix socket can have, unix(7).
const maxSocketPath = 107

// Config has all settings. The file and the command line set the same fields; the command line takes precedence. Check
// fills in the defaults of fields that are zero.
type Config struct {
	// Listen is the path of the socket that kubelet, crictl and other clients
	// connect to. Default: /run/criproxy.sock.
	Listen string `yaml:"listen"`

	// Listeners are further sockets, for clients that may make fewer calls. Optional.
	Listeners []Listener `yaml:"listeners"`

	// Admin is the path of the socket for criproxy's own commands. Only the user that criproxy runs as can use it.
	// "none" opens no such socket. Default: the path of Listen with ".admin" before its ending.
	Admin string `yaml:"admin"`

	// Metrics is an address, HOST:PORT, at which /metrics, /healthz and /readyz are served over TCP as well, to every
	// client that can reach it. Default: criproxy serves them only at the admin socket.
	Metrics string `yaml:"metrics"`

	// Tracing is the URL of an OpenTelemetry collector that accepts OTLP over gRPC, such as http://127.0.0.1:4317. It
	// gets a span for each leg of a call. Default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT
	// in the environment. Without any of these there are no spans.
	Tracing string `yaml:"tracing"`

	// Export sends calls and changes of conditions to a store that accepts logs by OpenTelemetry's protocol; see
	// docs/fleet.md. Optional.
	Export Export `yaml:"export"`

	// Backends are the runtimes. The one without a name is the primary, or the first if all have
	// names: it gets every call that nothing directs elsewhere.
	Backends []Backend `yaml:"backends"`

	// Profile is a file that describes the API, if it is not CRI; see docs/profile.md. Optional.
	Profile string `yaml:"profile"`

	// Proto are descriptors of the API: .proto files, descriptor sets of protoc, or such a set as text in a .txtpb, or
	// "reflection", which asks the backends. With them criproxy knows a newer CRI than the one it is built with.
	// Optional.
	Proto []string `yaml:"proto"`

	// ProtoPath are the folders in which criproxy looks for the .proto files and their imports. Optional.
	ProtoPath []string `yaml:"protoPath"`

	// Rules are additions to the rules of the profile, or of cri.yaml, over which they take precedence. Optional.
	Rules *profile.Profile `yaml:"rules"`

	// NewPodsTo is the name of the runtime that gets new pods, unless their RuntimeClass or an annotation directs them
	// elsewhere. Pods of a RuntimeClass that no runtime maps go to the primary. Use it to drain one runtime while
	// another one takes over. Default: the primary.
	NewPodsTo string `yaml:"newPodsTo"`

	// StreamURL completes the URLs of exec, attach and port-forward that a
	// runtime returns without a host. URLs with a host pass as they are.
	// Default: http://ADDRESS:PORT with the address of this node's default route and StreamPort.
	StreamURL string `yaml:"streamUrl"`

	// StreamPort is the port in the default of StreamURL. Default: 11250.
	StreamPort int `yaml:"streamPort"`

	// IDs is how clients see ids: "prefix", with the name of the runtime before them, or "native", as the runtimes made
	// them. Log collectors and monitoring may need "native". Default: prefix.
	IDs string `yaml:"ids"`

	// ListBudget is how long a runtime may take for a list or a status. After that it counts as slow, and criproxy
	// answers from its cache. Keep it well below 3 minutes: without a list for so long, kubelet reports the node as not
	// ready. Default: 2s.
	ListBudget time.Duration `yaml:"listBudget"`

	// GoneAfter is how long a runtime that accepts connections may stay silent before it counts as gone. A new
	// connection must be answered within 5s. With a single runtime calls still go to it; docs/operations.md says what
	// they get. Default: 10s.
	GoneAfter time.Duration `yaml:"goneAfter"`

	// EventInterval is how often criproxy compares the lists of a runtime that has no events, to make events for
	// clients that want them. A container that is made and removed between two comparisons yields no event. Default:
	// 1s.
	EventInterval time.Duration `yaml:"eventInterval"`

	// StateDir is the folder in which criproxy stores the cached answers of the runtimes, so that it can restart
	// during an outage and still answer, and the latest calls, errors and changes, so that they survive a crash and a
	// reboot. With a single runtime criproxy makes no folder, and uses it if it exists. The folder belongs to one API,
	// and to one process, which locks it: any other reads and stores nothing there, and logs whose folder it is. "none"
	// stores nothing. Default: /var/lib/criproxy.
	StateDir string `yaml:"stateDir"`

	// FlightRecorder is the size, in bytes, of the memory in which criproxy records the latest calls, for criproxy tail
	// and dump, for the log, and for Capture. -1 records nothing. Default: 16 MiB.
	FlightRecorder int `yaml:"flightRecorder"`

	// Capture is a file to which all calls are written. Optional.
	Capture Capture `yaml:"capture"`

	// UnsafeRaw records secrets as well: credentials of registries, environment variables, the
	// output of commands, tokens. Optional.
	UnsafeRaw bool `yaml:"unsafeRaw"`

	// DataPath is the HTTP/2 that criproxy speaks with clients and runtimes: "own", criproxy's own, or "grpc", that of
	// grpc-go; docs/security.md compares them. Default: own.
	DataPath string `yaml:"dataPath"`

	// Hooks is the folder in which plugins register; a plugin may change or refuse calls. "none" turns plugins off.
	// Default: /etc/runtime/hookserver.d, or none with Profile.
	Hooks string `yaml:"hooks"`

	// HookSkipLabel is a label, as KEY=VALUE. criproxy asks no plugin about pods with it. Default:
	// runtimeproxy.koordinator.sh/skip-hookserver=true.
	HookSkipLabel string `yaml:"hookSkipLabel"`

	// HookPodResources makes criproxy use the resources that plugins answer before a pod is made, which
	// KoordRuntimeProxy ignores. Optional.
	HookPodResources bool `yaml:"hookPodResources"`

	// MaxMessageBytes is the size of the largest message, either way. Default: 16 MiB, which is
	// kubelet's own limit.
	MaxMessageBytes int `yaml:"maxMessageBytes"`

	// NoBackends allows a configuration without runtimes.
	NoBackends bool `yaml:"-"`

	// Sources are the contents of the files of Profile and Proto when the configuration was read. A reload compares
	// them to see whether a file has changed.
	Sources []string `yaml:"-"`

	file   string        // that was read; empty if there is none
	id     string        // of its text
	unread error         // mistakes from reading the file; Check reports them
	places strict.Places // where the settings stand in the file

	// BuiltIn replaces the program's own descriptors of CRI, in tests of what an older or newer criproxy does. Nil
	// leaves them.
	BuiltIn *codec.Schema `yaml:"-"`
}

// Capture is a file of calls. docs/capture.md describes it.
type Capture struct {
	// Path is the file. The ending of its name determines the format: .jsonl, .pcapng or
	// .binlog. With .zst after it, as in calls.jsonl.zst, the file is compressed.
	Path string `yaml:"path"`

	// MaxBytes is the size at which a new file begins. Default: 64 MiB; -1 for no limit.
	MaxBytes int64 `yaml:"maxBytes"`

	// MaxFiles is how many files criproxy keeps, the current one included. Older ones have a number before the ending.
	// Default: 5.
	MaxFiles int `yaml:"maxFiles"`
}

// Backend is one of the runtimes.
type Backend struct {
	// Name stands before the ids and images of this runtime: NAME__ID and NAME/IMAGE. Pods whose annotation
	// kubernetes.io/target-runtime is NAME go to this runtime. Choose a name with a dot, so that kubelet does not take
	// the images for those of Docker Hub, and without a dash. Empty for the primary.
	Name string `yaml:"name"`

	// Address is one of these: the path of the runtime's socket; HOST:PORT, or dns:///HOST:PORT for all servers of that
	// name in DNS, both of which need TLS; or vsock:CID:PORT.
	Address string `yaml:"address"`

	// Addresses are further servers that are interchangeable with the one at Address. Optional.
	Addresses []string `yaml:"addresses"`

	// Balance is gRPC's policy for choosing among several servers: round_robin, pick_first
	// or least_request_experimental. Default: round_robin.
	Balance string `yaml:"balance"`

	// TLS secures the connection. Optional for sockets and vsock.
	TLS *TLS `yaml:"tls"`

	// Handlers are the RuntimeClass handlers whose pods go to this runtime. The value is the name of the handler in the
	// runtime; "" is the runtime's default handler. Optional.
	Handlers map[string]string `yaml:"handlers"`

	// Maps are tables for other kinds of names that a profile maps: kind → front name → name at
	// this backend. Optional.
	Maps map[string]map[string]string `yaml:"maps"`

	// Policy is what lists show while the runtime is gone. "last-known" shows its pods as they were. "fail" fails the
	// lists, which stops the whole node. "skip" leaves out its pods, which kubelet then kills. Default: last-known.
	Policy string `yaml:"policy"`

	// Required makes lists wait up to GoneAfter for a runtime that was not seen since this node booted, and then fail
	// with Unavailable. Otherwise lists leave it out while no process listens at its socket. Optional.
	Required bool `yaml:"required"`

	// Credentials makes criproxy send credentials along with a pull when it removes the prefix of the image, for which
	// kubelet chose them. Default: criproxy withholds them.
	Credentials bool `yaml:"credentials"`

	// MaxCalls is how many calls of clients, including streams of events, may be under way to this runtime at once.
	// Further calls fail with ResourceExhausted. Half of the number is reserved for clients of the main socket.
	// Default: 4096.
	MaxCalls int `yaml:"maxCalls"`
}

// The data paths.
const (
	OwnPath  = "own"
	GRPCPath = "grpc"
)

// DefaultDataPath is the data path of a configuration without one. Tests are also built with grpc.
var DefaultDataPath = OwnPath

const (
	PrefixIDs = "prefix"
	NativeIDs = "native"
)

// DefaultStateDir is where criproxy stores the cached answers of the runtimes.
const DefaultStateDir = "/var/lib/criproxy"

// DefaultHooks is the folder in which plugins register, KoordRuntimeProxy's.
const DefaultHooks = "/etc/runtime/hookserver.d"

// defaultHookSkipLabel is the label of pods that no plugin is asked about.
const defaultHookSkipLabel = "runtimeproxy.koordinator.sh/skip-hookserver=true"

// Parse reads the text of a file into c. If the text has mistakes, it still reads the rest. Check reports these
// mistakes again, together with those that it finds itself.
func (c *Config) Parse(file string, data []byte) error {
	sum := sha256.Sum256(data)
	c.id, c.file = hex.EncodeToString(sum[:4]), file
	if err := strict.UnmarshalRest(data, c); err != nil {
		c.Fail(PrefixLines(file, err))
	}
	c.places = strict.PlacesIn(data).In(file)
	if c.Rules != nil {
		c.Rules.From(file, strict.PlacesIn(data).Below("rules"))
	}
	return c.unread
}

// ID tells the text of a file from others: the first digits that sha256sum prints. It is empty if no file was read.
func (c *Config) ID() string { return c.id }

// Fail makes Check report err, a mistake that the caller has found.
func (c *Config) Fail(err error) { c.unread = errors.Join(c.unread, err) }

// Override notes that the value of the setting key does not come from the file, so that errors about it name no place
// in the file.
func (c *Config) Override(key string) {
	for path := range c.places {
		if path == key || strings.HasPrefix(path, key+"[") || strings.HasPrefix(path, key+".") {
			delete(c.places, path)
		}
	}
}

// mistakes joins the mistakes from reading the file and those in found, with their places. It leaves out errors about
// missing settings that could follow from a mistake in the file.
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
var isMissing = regexp.MustCompile(`no runtime to connect to| has no |: is empty, and`)

// minRecorder is the least memory in which something can be recorded.
const minRecorder = 64 << 10

// PrefixLines puts the name of a file before each line of err. Lines may begin with a place in that file, as
// LINE:COLUMN.
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
