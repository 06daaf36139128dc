package main

import (
	"sync"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/director"
)

// logMended returns what logs, once for each backend, method and field, that text which is
// no UTF-8 was replaced.
func logMended() func(director.Backend, string, string) {
	type place struct{ backend, method, field string }
	var told sync.Map // of places: as many as the schema has
	return func(b director.Backend, method, field string) {
		if _, twice := told.LoadOrStore(place{b.Name, method, field}, true); !twice {
			klog.InfoS("A runtime sends text that is not valid UTF-8. In merged replies criproxy puts U+FFFD in its place, because kubelet could decode nothing of them otherwise; look where the runtime got that text from",
				"backend", b, "method", method, "field", field)
		}
	}
}
