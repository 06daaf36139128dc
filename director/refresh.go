package director

import (
	"context"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

// refreshUntil calls refresh for n backends at once. It returns when found reports true after one of them, so that a
// backend that hangs does not hold up a call for another one; else when all have returned. It does not wait for the others,
// which end with ctx.
func refreshUntil(ctx context.Context, panics recovery.Hook, n int, refresh func(ctx context.Context, backend int), found func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the others
	refreshed := make(chan struct{}, n)
	for i := range n {
		go func() {
			defer func() { refreshed <- struct{}{} }()
			_ = panics.Run("finding a name", func() { refresh(ctx, i) }) // the hook reports a panic; the name is then not found
		}()
	}
	for range n {
		if <-refreshed; found() {
			return
		}
	}
}
