package director

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// elsewhere reports whether the backends are asked one after another for what a method looks up, which the schema does not
// have.
func (t *table) elsewhere(name string) bool {
	return len(t.backends) > 1 && slices.Contains(t.lookups, name)
}

// lookUp asks one backend after another until one has what the call asks for. If none has, the client gets the error of the
// primary, as if it were alone.
func (t *table) lookUp(ctx context.Context, name string, args, reply any, opts []grpc.CallOption) error {
	err := t.backends[0].Conn.Invoke(ctx, name, args, reply, opts...)
	if err == nil {
		return nil
	}
	for _, b := range t.backends[1:] {
		var header, trailer metadata.MD // not the client's: the primary's are there
		if ctx.Err() == nil && b.Conn.Invoke(ctx, name, args, reply, withMetadata(opts, &header, &trailer)...) == nil {
			give(opts, header, trailer)
			return nil
		}
	}
	return err
}
