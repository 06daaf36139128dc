package director_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

// A hearer is a backend that notes its requests, and answers them as a test says.
type hearer struct {
	heard  chan string
	mu     sync.Mutex
	answer func(ctx context.Context) error
}

func newHearer(answer func(ctx context.Context) error) *hearer {
	return &hearer{heard: make(chan string, 100), answer: answer}
}

func (h *hearer) answers(answer func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

func (h *hearer) handle(method string, stream grpc.ServerStream) error {
	return muxtest.Unary(func(ctx context.Context, _ string, request *codec.Frame) (*codec.Frame, error) {
		h.mu.Lock()
		answer := h.answer
		h.mu.Unlock()
		h.heard <- string(request.Bytes())
		if err := answer(ctx); err != nil {
			return nil, err
		}
		return codec.NewFrame(nil), nil
	})(method, stream)
}

func well(context.Context) error { return nil }

func badly(code codes.Code) func(context.Context) error {
	return func(context.Context) error { return status.Error(code, "no") }
}

// until hangs until release is closed, even if the call ends before.
func until(release <-chan struct{}) func(context.Context) error {
	return func(context.Context) error { <-release; return nil }
}

// mirroring mirrors Tidy, and passes on what the director reports.
func mirroring(t *testing.T) (director.Config, <-chan director.Mirroring) {
	reports := make(chan director.Mirroring, 100)
	return director.Config{
		Profile:  muxtest.LibraryProfile(t, "Tidy: {all: concat, missing: skip}", "Tidy: {all: mirror}"),
		Schema:   muxtest.Library,
		Mirrored: func(m director.Mirroring) { reports <- m },
	}, reports
}

// tidy is a field that the schema lacks, by which the test distinguishes requests.
func tidy(what string) string { return "\n" + string(rune(len(what))) + what }

func doTidy(t *testing.T, cc grpc.ClientConnInterface, what string, opts ...grpc.CallOption) error {
	t.Helper()
	return cc.Invoke(t.Context(), muxtest.Method("Tidy"), codec.NewFrame([]byte(tidy(what))), &codec.Frame{}, opts...)
}

func TestAFrozenMirrorDelaysNothing(t *testing.T) {
	cfg, reports := mirroring(t)
	release := make(chan struct{})
	first, second, third := newHearer(well), newHearer(until(release)), newHearer(well)
	cc := muxtest.Mux(t, cfg, first.handle, second.handle, third.handle)
	require.NoError(t, doTidy(t, cc, "a"))
	assert.Equal(t, tidy("a"), <-first.heard)
	assert.Equal(t, tidy("a"), <-third.heard)
	assert.Equal(t, "gamma.io", (<-reports).Backend.Name)
	assert.Equal(t, tidy("a"), <-second.heard)
	close(release)
	report := <-reports
	assert.Equal(t, "beta.io", report.Backend.Name)
	assert.NoError(t, report.Err)
	assert.Equal(t, 1, report.Attempts)
}

func TestAMirroredCallIsThePrimarysAlone(t *testing.T) {
	for _, code := range []codes.Code{codes.OK, codes.Unimplemented, codes.Internal} {
		cfg, reports := mirroring(t)
		second := newHearer(badly(codes.InvalidArgument))
		sent := make(chan metadata.MD, 1)
		cc := muxtest.Mux(t, cfg, func(_ string, stream grpc.ServerStream) error {
			stream.SetTrailer(metadata.Pairs("x-trailer", "primary"))
			if err := stream.SetHeader(metadata.Pairs("header", "primary")); err != nil || code != codes.OK {
				return status.Error(code, "mine")
			}
			return stream.SendMsg(codec.NewFrame([]byte("\n\xff"))) // malformed
		}, func(method string, stream grpc.ServerStream) error {
			md, _ := metadata.FromIncomingContext(stream.Context())
			sent <- md
			return second.handle(method, stream)
		})
		var header, trailer metadata.MD
		reply := &codec.Frame{}
		ctx := metadata.AppendToOutgoingContext(t.Context(), "key", "value")
		err := cc.Invoke(ctx, muxtest.Method("Tidy"), codec.NewFrame([]byte(tidy("a"))), reply, grpc.Header(&header), grpc.Trailer(&trailer))
		assert.Equal(t, code, status.Code(err))
		if code == codes.OK {
			assert.Equal(t, "\n\xff", string(reply.Bytes()))
		} else {
			assert.Equal(t, "mine", status.Convert(err).Message())
		}
		assert.Equal(t, []string{"primary"}, header["header"])
		assert.Equal(t, []string{"primary"}, trailer["x-trailer"])
		assert.Equal(t, tidy("a"), <-second.heard)
		assert.Equal(t, []string{"value"}, (<-sent)["key"])
		report := <-reports
		assert.Equal(t, codes.InvalidArgument, status.Code(report.Err))
		assert.False(t, report.Again, "the next attempt would fail as well")
	}
}

func TestAMirroredRequestIsRepeatedUntilAnswered(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unknown, codes.Internal} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			cfg, reports := mirroring(t)
			second := newHearer(badly(code))
			cc := muxtest.Mux(t, cfg, newHearer(well).handle, second.handle)
			require.NoError(t, doTidy(t, cc, "a"))
			report := <-reports
			assert.Equal(t, code, status.Code(report.Err))
			require.True(t, report.Again)
			<-second.heard
			<-second.heard
			second.answers(well)
			report = <-reports
			assert.NoError(t, report.Err)
			assert.GreaterOrEqual(t, report.Attempts, 2)
		})
	}
}

func TestTheNewestRequestIsMirrored(t *testing.T) {
	cfg, reports := mirroring(t)
	release := make(chan struct{})
	second := newHearer(until(release))
	cc := muxtest.Mux(t, cfg, newHearer(well).handle, second.handle)
	require.NoError(t, doTidy(t, cc, "a"))
	assert.Equal(t, tidy("a"), <-second.heard)
	for _, what := range []string{"b", "c", "d"} {
		require.NoError(t, doTidy(t, cc, what))
	}
	close(release)
	assert.Equal(t, tidy("d"), <-second.heard, "after the first one, which it has begun")
	assert.NoError(t, (<-reports).Err)
	assert.NoError(t, (<-reports).Err)
	require.NoError(t, doTidy(t, cc, "e"))
	assert.Equal(t, tidy("e"), <-second.heard)
}

// mirrorTo makes a backend of a hearer.
func mirrorTo(t *testing.T, dir, name string, h *hearer) director.Backend {
	return muxtest.Backend(t, filepath.Join(dir, "s"+name), name, h.handle)
}

func TestAReloadTakesMirrorsAlong(t *testing.T) {
	dir := muxtest.Dir(t)
	release := make(chan struct{})
	hangs, fails, next := newHearer(func(ctx context.Context) error { <-ctx.Done(); close(release); return ctx.Err() }), newHearer(badly(codes.Unavailable)), newHearer(well)
	cfg, reports := mirroring(t)
	cfg.Backends = []director.Backend{mirrorTo(t, dir, "", newHearer(well)), mirrorTo(t, dir, "beta.io", hangs), mirrorTo(t, dir, "gamma.io", fails)}
	d := muxtest.New(t, cfg)
	defer d.Close()
	require.NoError(t, doTidy(t, d, "a"))
	<-hangs.heard
	<-fails.heard
	assert.True(t, (<-reports).Again)

	moved := mirrorTo(t, muxtest.Dir(t), "beta.io", next)
	cfg.Backends = []director.Backend{cfg.Backends[0], moved, cfg.Backends[2]}
	require.NoError(t, d.Reload(cfg))
	<-release // the call on the old connection ends
	assert.Equal(t, tidy("a"), <-next.heard, "by the connection that its backend has now")
	report := <-reports
	assert.Equal(t, "beta.io", report.Backend.Name)
	assert.NoError(t, report.Err)

	fails.answers(well)
	report = <-reports
	assert.Equal(t, "gamma.io", report.Backend.Name, "which has stayed")
	assert.NoError(t, report.Err)
}

func TestARemovedBackendGetsNoMoreRequests(t *testing.T) {
	dir := muxtest.Dir(t)
	ended := make(chan struct{})
	hangs := newHearer(func(ctx context.Context) error { <-ctx.Done(); close(ended); return ctx.Err() })
	cfg, reports := mirroring(t)
	cfg.Backends = []director.Backend{mirrorTo(t, dir, "", newHearer(well)), mirrorTo(t, dir, "beta.io", hangs)}
	d := muxtest.New(t, cfg)
	defer d.Close()
	require.NoError(t, doTidy(t, d, "a"))
	<-hangs.heard
	both := cfg.Backends
	cfg.Backends = both[:1]
	require.NoError(t, d.Reload(cfg))
	<-ended
	hangs.answers(well)
	cfg.Backends = both
	require.NoError(t, d.Reload(cfg))
	require.NoError(t, doTidy(t, d, "b"))
	assert.Equal(t, tidy("b"), <-hangs.heard)
	assert.NoError(t, (<-reports).Err)
}

func TestCloseEndsMirroring(t *testing.T) {
	dir := muxtest.Dir(t)
	hangs := newHearer(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	fails := newHearer(badly(codes.Unavailable))
	cfg, reports := mirroring(t)
	cfg.Backends = []director.Backend{mirrorTo(t, dir, "", newHearer(well)), mirrorTo(t, dir, "beta.io", hangs), mirrorTo(t, dir, "gamma.io", fails)}
	d := muxtest.New(t, cfg)
	require.NoError(t, doTidy(t, d, "a"))
	<-hangs.heard
	assert.True(t, (<-reports).Again)
	d.Close()
	for range 2 {
		report := <-reports
		assert.Error(t, report.Err)
		assert.False(t, report.Again)
	}
	require.NoError(t, doTidy(t, d, "b"), "calls go on")
	d.Close()
	assert.Empty(t, hangs.heard)
}
