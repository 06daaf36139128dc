package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// Whoever makes the call recovers from its panic. A call that stays among those under way makes its method late, and a backend
// silent that nobody calls.
func TestAPanicEndsOnlyItsCall(t *testing.T) {
	for name, call := range map[string]func(*testing.T, *watched) error{
		"List": func(t *testing.T, w *watched) error { _, err := w.list(t, ""); return err },
		"Get":  func(t *testing.T, w *watched) error { _, err := w.get(t, "a"); return err },
		"Bind": func(t *testing.T, w *watched) error { return w.bind(t.Context(), "a") },
	} {
		t.Run(name, func(t *testing.T) {
			inNoTime(t, func(t *testing.T, n *near) {
				w := n.watch(t, func(c *settings) { c.Interval, c.Spec.Lists[0].Every = time.Second, time.Hour })
				w.until(t, backend.Up)
				n.library.with(func() { n.fault = only(muxtest.Method(name), func(context.Context, string) error { panic("a bug") }) })
				assert.Panics(t, func() { _ = call(t, w) })
				n.library.with(func() { n.fault = nil })
				time.Sleep(time.Minute)
				assert.Empty(t, w.states)
				require.NoError(t, call(t, w))
			}, "a")
		})
	}
}
