package telemetry

import (
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/drift"
)

// LogMended returns a function that logs, once for each backend, method and field, that invalid
// UTF-8 was replaced.
func LogMended() func(director.Backend, string, string) {
	type place struct{ backend, method, field string }
	var logged sync.Map // of places; the schema bounds their number
	return func(b director.Backend, method, field string) {
		if _, twice := logged.LoadOrStore(place{b.Name, method, field}, true); !twice {
			klog.InfoS("A runtime sends text that is not valid UTF-8. In merged replies criproxy replaces it by U+FFFD, because kubelet could not decode such a reply; find out where the runtime got the text from",
				"backend", b, "method", method, "field", field)
		}
	}
}

// LogMirrored logs a mirrored request that another runtime than the primary has not taken at once.
func LogMirrored(m director.Mirroring) {
	line := []any{"backend", m.Backend, "method", m.Method, "attempts", m.Attempts, "after", m.After.Round(time.Millisecond)}
	switch {
	case m.Again:
		klog.InfoS("A runtime has not taken a request that the primary has taken; criproxy repeats it until the runtime answers", append(line, "err", m.Err)...)
	case m.Err != nil:
		klog.InfoS("A runtime has not taken a request that the primary has taken; criproxy does not repeat it", append(line, "err", m.Err)...)
	case m.Attempts > 1 || m.After > time.Second:
		klog.InfoS("A runtime has taken a request later than the primary", line...)
	}
}

// LogWithheld returns a function that logs, once for each backend, that the credentials of a
// pull were withheld.
func LogWithheld() func(director.Backend, string, string) {
	var logged sync.Map
	return func(b director.Backend, method, name string) {
		if _, twice := logged.LoadOrStore(b.Name, true); !twice {
			klog.InfoS("Credentials are not sent to the runtime: kubelet chose them for the image name with the runtime's prefix, and the name without the prefix may be of another registry; credentials: true in the configuration of the backend sends them",
				"backend", b, "image", name)
		}
	}
}

// LogDrift logs a finding. The caller must call it only once for each.
func LogDrift(f drift.Finding) {
	what := "Seen: an unknown method"
	switch f.Kind {
	case drift.Field:
		what = "Seen: an unknown field"
	case drift.ID:
		what = "Seen: an untranslated field that looks like an id"
	}
	klog.InfoS(what, "where", f.Where, "method", f.Method, "suggest", f.Suggest)
}
