package config

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Export says which calls go to a store that speaks OpenTelemetry's protocol, and where it is. docs/fleet.md describes
// the records.
type Export struct {
	// URL is where the store, or a collector in front of it, accepts logs. Without a path, such as
	// http://127.0.0.1:4317, criproxy sends OTLP over gRPC. With a path, such as
	// http://127.0.0.1:4318/v1/logs, it sends OTLP over HTTP. Default: nothing is sent.
	URL string `yaml:"url"`

	// Headers are sent with each request, such as authorization. A value @FILE is the content of that file, which
	// criproxy reads for each request. Optional.
	Headers Headers `yaml:"headers"`

	// TLS secures the connection to an https URL. Default: the authorities that the system trusts, and no certificate.
	TLS *TLS `yaml:"tls"`

	// Node is the name of this node in Kubernetes, k8s.node.name in all records. Default: the name of the host.
	Node string `yaml:"node"`

	// Method, Backend, Client, Status, Namespace and Slower select calls, as the flags of criproxy tail do; method: "*"
	// selects all. Calls that they leave out are counted. Default: calls that fail, that take at least a second, or
	// that change something, but of those in Quiet only calls that fail or take at least a second.
	Method    string        `yaml:"method"`
	Backend   string        `yaml:"backend"`
	Client    string        `yaml:"client"`
	Status    string        `yaml:"status"`
	Namespace string        `yaml:"namespace"`
	Slower    time.Duration `yaml:"slower"`

	// Quiet are patterns of methods that the default selection treats as if they only read. Default: ExecSync, with
	// which kubelet probes containers.
	Quiet string `yaml:"quiet"`

	// Bodies sends the messages of calls as well, without secrets. Each has at most 64 KiB. Optional.
	Bodies bool `yaml:"bodies"`
}

// Headers are headers of requests. Their values may be secret, and are not shown.
type Headers map[string]string

// MarshalJSON shows the names only.
func (h Headers) MarshalJSON() ([]byte, error) {
	shown := map[string]string{}
	for name := range h {
		shown[name] = "hidden"
	}
	return json.Marshal(shown)
}

// DefaultQuiet are the methods that change nothing, although they could.
const DefaultQuiet = "ExecSync"

// GRPC reports whether the store accepts OTLP over gRPC.
func (e *Export) GRPC() bool {
	u, err := url.Parse(e.URL)
	return err == nil && strings.Trim(u.Path, "/") == ""
}

func (c *Config) checkExport(fail func(format string, args ...any)) {
	e := &c.Export
	if e.URL == "" {
		if e.Method+e.Backend+e.Client+e.Status+e.Namespace+e.Quiet+e.Node != "" || e.Slower != 0 || e.Bodies || e.TLS != nil || e.Headers != nil {
			fail("export: has no url; want that of a store or collector, such as http://127.0.0.1:4317")
		}
		return
	}
	if e.Quiet == "" {
		e.Quiet = DefaultQuiet
	}
	u, _ := url.Parse(e.URL)
	switch {
	case !isHTTP(e.URL):
		fail("export.url: %q: want http://HOST:PORT for OTLP over gRPC, or http://HOST:PORT/v1/logs for OTLP over HTTP; or https", e.URL)
	case u.User != nil:
		fail("export.url: holds a user or a password, which status would show; send them in export.headers: {authorization: @FILE}")
	case u.Scheme == "http" && e.TLS != nil:
		fail("export.tls: the URL begins with http; want https, or no tls")
	}
	e.TLS.check("export", false, fail)
	for name, value := range e.Headers {
		if file, ok := strings.CutPrefix(value, "@"); ok && !filepath.IsAbs(file) {
			fail("export.headers.%s: %q: want @ and an absolute path", name, value)
		}
	}
	if e.Slower < 0 {
		fail("export.slower: %s: want a time such as 1s", e.Slower)
	}
	if c.FlightRecorder == -1 {
		fail("export: nothing is recorded, because flightRecorder is -1; leave flightRecorder out")
	}
	if e.Bodies && c.UnsafeRaw {
		fail("export.bodies: with unsafeRaw, messages have their secrets, which criproxy does not send; leave one of both out")
	}
}

// warnings returns warnings about settings that work, but have unexpected consequences.
func (e *Export) warnings() []string {
	u, err := url.Parse(e.URL)
	if err != nil || e.URL == "" {
		return nil
	}
	var all []string
	if e.GRPC() && u.Port() == "4318" {
		all = append(all, "export.url: port 4318 is usually that of OTLP over HTTP, and a URL without a path means gRPC: "+strings.TrimSuffix(e.URL, "/")+"/v1/logs?")
	}
	if host := u.Hostname(); u.Scheme == "http" && host != "localhost" && !strings.HasPrefix(host, "127.") && host != "::1" {
		all = append(all, "export.url: names of pods and images go to "+host+" without encryption; use https, or a collector on this node")
	}
	return all
}
