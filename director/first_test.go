package director_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// The client of a call that goes from backend to backend gets the header and trailer that belong to its answer.
func TestTheClientGetsTheHeaderOfItsAnswer(t *testing.T) {
	profile := muxtest.LibraryProfile(t, "Tidy: {all: concat, missing: skip}", "Version: {first: version}")
	for name, test := range map[string]struct {
		answers  []string // versions; empty for a reply without one, "fails" for a failure
		from     string   // whose header and trailer the client gets
		version  string
		failures codes.Code
	}{
		"the first has it":                    {[]string{"1", "2", ""}, "a", "1", codes.OK},
		"the second has it":                   {[]string{"", "2", ""}, "b", "2", codes.OK},
		"the first fails, the second has it":  {[]string{"fails", "2", ""}, "b", "2", codes.OK},
		"the second fails, the third has it":  {[]string{"", "fails", "3"}, "c", "3", codes.OK},
		"none has it":                         {[]string{"", "", ""}, "a", "", codes.OK},
		"the second fails, none else has it":  {[]string{"", "fails", ""}, "b", "", codes.Internal},
		"the first fails first, then another": {[]string{"fails", "", "fails"}, "a", "", codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			var handlers []muxtest.Handler
			for i, answer := range test.answers {
				who := metadata.Pairs("library", string(rune('a'+i)))
				handlers = append(handlers, muxtest.Unary(func(ctx context.Context, _ string, _ *codec.Frame) (*codec.Frame, error) {
					grpc.SetHeader(ctx, who)
					grpc.SetTrailer(ctx, who)
					if answer == "fails" {
						return nil, status.Error(codes.Internal, "no")
					}
					return muxtest.Bytes("VersionResponse", `version: "`+answer+`"`), nil
				}))
			}
			cc := muxtest.Mux(t, director.Config{Profile: profile}, handlers...)
			var header, trailer metadata.MD
			reply := &codec.Frame{}
			err := cc.Invoke(t.Context(), muxtest.Method("Version"), codec.NewFrame(nil), reply, grpc.Header(&header), grpc.Trailer(&trailer))
			assert.Equal(t, test.failures, status.Code(err))
			assert.Equal(t, muxtest.Bytes("VersionResponse", `version: "`+test.version+`"`).Bytes(), reply.Bytes())
			assert.Equal(t, []string{test.from}, header["library"])
			assert.Equal(t, []string{test.from}, trailer["library"])
		})
	}
}
