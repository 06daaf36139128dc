package director

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
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
	header, trailer := codec.MetadataOf(opts)
	for _, b := range t.backends[1:] {
		var itsHeader, itsTrailer metadata.MD // not the client's: the primary's are there
		its := append(withoutMetadata(opts), grpc.Header(&itsHeader), grpc.Trailer(&itsTrailer))
		if ctx.Err() != nil || b.Conn.Invoke(ctx, name, args, reply, its...) != nil {
			continue
		}
		if header != nil {
			*header = itsHeader
		}
		if trailer != nil {
			*trailer = itsTrailer
		}
		return nil
	}
	return err
}
