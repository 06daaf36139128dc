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
	var logged sync.Map // of places: as many as the schema has
	return func(b director.Backend, method, field string) {
		if _, twice := logged.LoadOrStore(place{b.Name, method, field}, true); !twice {
			klog.InfoS("A runtime sends text that is not valid UTF-8. In merged replies criproxy puts U+FFFD in its place, because kubelet could decode nothing of them otherwise; look where the runtime got that text from",
				"backend", b, "method", method, "field", field)
		}
	}
}

// LogMirrored logs what becomes of a request that another runtime than the primary gets behind the
// scenes, unless it takes it at once.
func LogMirrored(m director.Mirroring) {
	line := []any{"backend", m.Backend, "method", m.Method, "attempts", m.Attempts, "after", m.After.Round(time.Millisecond)}
	switch {
	case m.Again:
		klog.InfoS("A runtime has not taken a request that the primary has; criproxy repeats it until the runtime answers", append(line, "err", m.Err)...)
	case m.Err != nil:
		klog.InfoS("A runtime will not get a request that the primary has got: another attempt would fail as well", append(line, "err", m.Err)...)
	case m.Attempts > 1 || m.After > time.Second:
		klog.InfoS("A runtime has taken a request late that the primary took before", line...)
	}
}

// LogWithheld returns a function that logs, once for each backend, that the credentials of a
// pull were withheld.
func LogWithheld() func(director.Backend, string, string) {
	var logged sync.Map
	return func(b director.Backend, method, name string) {
		if _, twice := logged.LoadOrStore(b.Name, true); !twice {
			klog.InfoS("Credentials are not sent along: kubelet chose them for the image name with the runtime's prefix, and the registry of the rest of the name may be another one; credentials: true in the configuration of the backend sends them",
				"backend", b, "image", name)
		}
	}
}

// LogDrift logs a finding. The caller calls it once for each.
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
