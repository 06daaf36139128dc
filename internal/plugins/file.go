package plugins

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/base/suggest"
)

// DefaultTimeout is how long a plugin may take for an answer.
const DefaultTimeout = 2 * time.Second

const (
	maxTimeout  = time.Minute
	maxFile     = 1 << 20 // bytes
	maxSockPath = 107     // bytes, unix(7)
)

// A File is the content of a plugin's file. It has the keys of KoordRuntimeProxy, and some more.
type File struct {
	// Endpoint is the path of the plugin's socket.
	Endpoint string

	// Fail refuses a call if the plugin does not answer before it, or answers with an error.
	// Without Fail the call goes on without the plugin. At points after calls Fail has no
	// effect: it is too late to refuse.
	Fail bool

	// Hooks are the names of the points at which to ask the plugin.
	Hooks []string

	// Timeout is how long the plugin may take to answer.
	Timeout time.Duration

	// Pod says which pods serve the plugin. The plugin cannot refuse calls about them. Optional:
	// the package finds out which pod serves the plugin when the plugin runs.
	Pod *PodFilter
}

// A PodFilter matches the pods of a namespace that have all of some labels.
type PodFilter struct {
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

// fileKeys are the keys that a file can have. Others are ignored with a warning.
type fileKeys struct {
	Endpoint string          `json:"remote-endpoint"`
	Policy   string          `json:"failure-policy"`
	Hooks    []string        `json:"runtime-hooks"`
	Timeout  json.RawMessage `json:"timeout"`
	Pod      *PodFilter      `json:"pod"`
}

// ParseFile parses the file of a plugin. warnings name likely mistakes that are no errors.
func ParseFile(data []byte) (f *File, warnings []string, err error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil, errEmpty
	}
	var keys fileKeys
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&keys); err != nil {
		return nil, nil, fmt.Errorf("reading JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("reading JSON: something follows the object")
	}
	f = &File{Hooks: keys.Hooks, Timeout: DefaultTimeout, Pod: keys.Pod}
	if f.Endpoint, err = parseEndpoint(keys.Endpoint); err != nil {
		return nil, nil, fmt.Errorf("remote-endpoint: %w", err)
	}
	if f.Timeout, err = parseTimeout(keys.Timeout); err != nil {
		return nil, nil, fmt.Errorf("timeout: %w", err)
	}
	if p := f.Pod; p != nil && (p.Namespace == "" || len(p.Labels) == 0) {
		return nil, nil, errors.New("pod: want a namespace and labels, as in {\"namespace\": \"kube-system\", \"labels\": {\"app\": \"plugin\"}}")
	}
	switch keys.Policy {
	case "Fail":
		f.Fail = true
	case "Ignore", "":
	default:
		warnings = append(warnings, fmt.Sprintf("failure-policy: %q is taken as Ignore; want \"Fail\" or \"Ignore\"", keys.Policy))
	}
	return f, append(warnings, unknownKeys(data)...), nil
}

// errEmpty is the error of a file without content, which may still be written.
var errEmpty = errors.New("the file is empty")

func parseEndpoint(s string) (string, error) {
	path := strings.TrimPrefix(s, "unix://")
	switch {
	case s == "":
		return "", errors.New("is missing; want the absolute path of the plugin's socket")
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("invalid socket %q: want an absolute path", s)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("%q has a zero byte", s)
	}
	path = filepath.Clean(path)
	if len(path) > maxSockPath {
		return "", fmt.Errorf("%q has %d bytes; the path of a unix socket can have at most %d", path, len(path), maxSockPath)
	}
	return path, nil
}

// parseTimeout reads "500ms" or a number of seconds.
func parseTimeout(raw json.RawMessage) (time.Duration, error) {
	var text string
	var seconds float64
	var d time.Duration
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return DefaultTimeout, nil
	case json.Unmarshal(raw, &text) == nil:
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			return 0, fmt.Errorf("invalid time %q: want one such as \"500ms\" or \"2s\"", text)
		}
	case json.Unmarshal(raw, &seconds) == nil:
		if seconds > maxTimeout.Seconds() {
			seconds = maxTimeout.Seconds() + 1 // too long, and does not overflow
		}
		d = time.Duration(seconds * float64(time.Second))
	default:
		return 0, fmt.Errorf("%s is neither a time such as \"2s\" nor a number of seconds", raw)
	}
	if d <= 0 || d > maxTimeout {
		return 0, fmt.Errorf("%s is out of range: want more than 0 and at most %s", raw, maxTimeout)
	}
	return d, nil
}

// unknownKeys returns a warning for each key of a JSON object that a file cannot have.
func unknownKeys(data []byte) []string {
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	known := []string{"remote-endpoint", "failure-policy", "runtime-hooks", "timeout", "pod"}
	var warnings []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		// encoding/json accepts keys in upper or lower case.
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			warnings = append(warnings, fmt.Sprintf("the key %q is ignored%s", key, suggest.Nearest(key, known)))
		}
	}
	return warnings
}
