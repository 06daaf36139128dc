package director

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// elsewhere reports whether the profile names a method, which the schema does not have, as one that
// looks an object up: the director then asks one backend after another for it.
func (t *table) elsewhere(name string) bool {
	return len(t.backends) > 1 && slices.Contains(t.lookups, name)
}

// lookUp asks one backend after another until one has the object that the call asks for. If none
// has it, the client gets the error of the primary, as if the primary were alone.
func (t *table) lookUp(ctx context.Context, name string, args, reply any, opts []grpc.CallOption) error {
	err := t.backends[0].Conn.Invoke(ctx, name, args, reply, opts...)
	if err == nil {
		return nil
	}
	for _, b := range t.backends[1:] {
		var header, trailer metadata.MD // the client's variables hold those of the primary
		if ctx.Err() == nil && b.Conn.Invoke(ctx, name, args, reply, withMetadata(opts, &header, &trailer)...) == nil {
			give(opts, header, trailer)
			return nil
		}
	}
	return err
}
