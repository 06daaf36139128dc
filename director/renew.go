package director

import (
	"context"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// renewUntil calls renew for n backends at once. It returns when found reports true after one of them, so that a
// backend that hangs does not hold up a call for another one; else when all have returned.
func renewUntil(ctx context.Context, panics recovery.Hook, n int, renew func(ctx context.Context, backend int), found func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the others
	renewed := make(chan struct{}, n)
	for i := range n {
		go func() {
			defer func() { renewed <- struct{}{} }()
			_ = panics.Run("finding a name", func() { renew(ctx, i) }) // the hook reports a panic; the name is then not found
		}()
	}
	for range n {
		if <-renewed; found() {
			return
		}
	}
}
