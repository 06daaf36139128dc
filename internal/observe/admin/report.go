package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/plugins"
)

// Report describes the state of a running criproxy. Its JSON is stable.
type Report struct {
	Version   string         `json:"version"`
	PID       int            `json:"pid"`
	Started   time.Time      `json:"started"`
	DataPath  string         `json:"dataPath,omitempty"` // "own" or "grpc"
	Ready     bool           `json:"ready"`              // the primary is up, and clients can connect
	Listeners []Listener     `json:"listeners"`
	Admin     string         `json:"admin,omitempty"`
	Backends  []Backend      `json:"backends"` // the primary first
	Hooks     *plugins.State `json:"hooks,omitempty"`
	Errors    []CallError    `json:"errors"` // that clients got, the latest first
	Recorder  *Recorder      `json:"recorder,omitempty"`
	Export    *Export        `json:"export,omitempty"` // missing if nothing is exported
	StaysFor  []LongCall     `json:"staysFor,omitempty"`
	Panics    uint64         `json:"panics"` // that did not end the process; each is in the log
	Config    Config         `json:"config"`
}

// Listener is a socket that clients connect to. Its JSON is stable.
type Listener struct {
	Path    string              `json:"path"`
	Mode    string              `json:"mode,omitempty"`  // octal; missing if the file is gone
	Owner   string              `json:"owner,omitempty"` // USER:GROUP
	Access  []config.AccessRule `json:"access,omitempty"`
	Refused int64               `json:"refused"`         // calls, by the access list
	Lost    int64               `json:"lost"`            // how often the file was found to be gone
	Error   string              `json:"error,omitempty"` // why no client can connect

	Connections Connections `json:"connections"`
}

// Backend is a runtime. Its JSON is stable. How it is doing goes from package to package:
//
//	backend.State        decides; internal/server hears of each change, logs it (stack.go), and hands it on to
//	telemetry.Condition  which keeps the history: for events and recordings, and for
//	BackendHealth        which needs no call: for health and readiness, and metrics say the same
//	Backend              which also has what the runtime answers (server/report.go): for status, the page and doctor
type Backend struct {
	Name       string        `json:"name"` // "primary" if it has none
	Address    string        `json:"address"`
	State      string        `json:"state"` // "up", "slow", "gone", or "connecting": not yet known
	Since      time.Time     `json:"since"`
	Error      string        `json:"error,omitempty"`
	Policy     string        `json:"policy,omitempty"`
	Outages    []Outage      `json:"outages,omitempty"`    // the latest first
	Runtime    string        `json:"runtime,omitempty"`    // "containerd v2.4.2", if known
	API        []string      `json:"api,omitempty"`        // packages of CRI, the one in use first
	Remembered uint64        `json:"remembered"`           // answers from the cache to clients, since this process began
	NeverSeen  bool          `json:"neverSeen,omitempty"`  // it has answered no list since the node booted, and does not now
	LastKnown  bool          `json:"lastKnown"`            // the numbers below come from the cache
	Pods       *int          `json:"pods,omitempty"`       // missing if not known
	PodIDs     []string      `json:"podIds,omitempty"`     // those that clients see; only if it is not up
	Containers *int          `json:"containers,omitempty"` // likewise
	Images     *int          `json:"images,omitempty"`     // likewise
	Took       time.Duration `json:"tookNs"`               // to list the containers
}

// Outage is a time in which a backend was slow, or gone. If it was slow first and then gone, these are two. Its JSON is
// stable.
type Outage struct {
	State      string    `json:"state"` // "slow" or "gone"
	From       time.Time `json:"from"`
	To         time.Time `json:"to,omitzero"` // missing if it is not over
	Error      string    `json:"error,omitempty"`
	Pods       *int      `json:"pods,omitempty"`       // that the backend had when it began; missing if not known
	Containers *int      `json:"containers,omitempty"` // likewise
}

// Recorder is the flight recorder. Its JSON is stable.
type Recorder struct {
	Events  uint64    `json:"events"`           // since it began
	Oldest  time.Time `json:"oldest,omitzero"`  // from when on all events are in memory
	Notable time.Time `json:"notable,omitzero"` // from when on those of calls are that failed, were slow or changed something
}

// Export is what goes to a store of logs. Its JSON is stable.
type Export struct {
	URL     string            `json:"url"`
	Sent    uint64            `json:"sent"`             // records that the store has taken, since this process began
	Queued  int               `json:"queued"`           // records that wait
	Lost    map[string]uint64 `json:"lost,omitempty"`   // records that no store gets, by why: full, refused, stopped
	Failing time.Time         `json:"failing,omitzero"` // since when the store cannot be reached; missing if it can
	Error   string            `json:"error,omitempty"`  // the latest; missing after a success
}

// CallError is an error that clients got from a method, once or more often. Its JSON is stable.
type CallError struct {
	Time    time.Time `json:"time"` // of the latest
	Method  string    `json:"method"`
	Backend string    `json:"backend,omitempty"` // that returned the error, or that the error is about
	Code    string    `json:"code"`
	Message string    `json:"message"` // of the latest
	Count   int       `json:"count"`
}

// Config describes the configuration and its reloads. Its JSON is stable.
type Config struct {
	File         string            `json:"file,omitempty"`
	ID           string            `json:"id,omitempty"`           // of the text of the file in use: the first 8 digits that sha256sum prints
	Flags        map[string]string `json:"flags,omitempty"`        // that take precedence over the file, by their names
	Loaded       time.Time         `json:"loaded"`                 // when the configuration in use was loaded
	Reloads      int               `json:"reloads"`                // successful reloads
	Failures     int               `json:"failures"`               // failed reloads
	Failed       time.Time         `json:"failed,omitzero"`        // when the latest reload failed; missing if it succeeded
	Error        string            `json:"error,omitempty"`        // why the latest reload failed
	NeedsRestart []string          `json:"needsRestart,omitempty"` // changes that wait for a restart
}

// Version is the answer to GET /version. Its JSON is stable.
type Version struct {
	Version  string     `json:"version"`
	PID      int        `json:"pid"`
	StaysFor []LongCall `json:"staysFor,omitempty"` // with the processes that have handed over to this one
}

// LongCall is a call whose client waits so long that a process that has handed over, or the backends of before a reload,
// stay for it. Its JSON is stable.
type LongCall struct {
	PID    int       `json:"pid"` // the process that stays
	Method string    `json:"method"`
	ID     string    `json:"id,omitempty"` // what it is about
	Client string    `json:"client"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"` // the deadline of the client
}

func (c *LongCall) String() string {
	about := ""
	if c.ID != "" {
		about = " of " + c.ID
	}
	return fmt.Sprintf("%s%s by %s, since %s, until %s", c.Method, about, c.Client, c.Since.Local().Format(time.DateTime), c.Until.Local().Format(time.DateTime))
}

// Failing reports whether the backend is up, but has failed a call for the report. Error says which.
func (b *Backend) Failing() bool { return b.State == backend.Up.String() && b.Error != "" }

// Wrong says all that is wrong: the trouble with runtimes, those that are up and fail calls, a configuration that was refused,
// and plugins that are down or whose files have mistakes. The dot of the page shows the worst of the same. It is empty if
// nothing is wrong.
func (r *Report) Wrong() string {
	var all []string
	if trouble := r.Trouble(); trouble != "" {
		all = append(all, trouble)
	}
	for _, b := range r.Backends {
		if b.Failing() {
			all = append(all, "calls to "+b.Name+" fail")
		}
	}
	if r.Config.Error != "" {
		all = append(all, "the configuration was refused")
	}
	return strings.Join(append(all, r.PluginTrouble()...), ", ")
}

// PluginTrouble says what is wrong with each plugin that is down or whose file has a mistake.
func (r *Report) PluginTrouble() (all []string) {
	if r.Hooks == nil {
		return nil
	}
	for _, p := range r.Hooks.Plugins {
		switch {
		case p.State != plugins.StateReady:
			all = append(all, "plugin "+p.Name+" is "+p.State)
		case p.Error != "":
			all = append(all, "the file of plugin "+p.Name+" was refused")
		}
	}
	return all
}

// Trouble says what keeps runtimes from answering calls as usual: the proxy is not ready, or a backend
// is slow or gone. It is empty if nothing is wrong.
func (r *Report) Trouble() string {
	if !r.Ready && len(r.Listeners) > 0 && r.Listeners[0].Error != "" {
		return "no client can connect"
	}
	var all []string
	for i, b := range r.Backends {
		switch {
		case i == 0 && b.State != backend.Slow.String() && !r.Ready:
			all = append(all, "the primary is "+b.State)
		case b.State != backend.Up.String():
			all = append(all, b.Name+" is "+b.State)
		}
	}
	return strings.Join(all, ", ")
}

// Worse is the trouble of r without the runtimes that were in the same trouble, or gone, in a report from before.
func (r *Report) Worse(before *Report) string {
	worse := *r
	worse.Backends = nil
	for _, b := range r.Backends {
		was := slices.IndexFunc(before.Backends, func(was Backend) bool { return was.Name == b.Name })
		if was >= 0 && (before.Backends[was].State == b.State || before.Backends[was].State == backend.Gone.String()) {
			b.State = backend.Up.String()
		}
		worse.Backends = append(worse.Backends, b)
	}
	return worse.Trouble()
}
