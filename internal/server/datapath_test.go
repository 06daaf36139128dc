package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/testing/untested"
)

// heard is all that a client hears of a call.
type heard struct {
	Replies         []string
	Header, Trailer metadata.MD
	Code, Message   string
	Details         []*anypb.Any
}

// A script says what a scripted backend answers to a call, and how its client behaves. It travels as the name in the request.
type script struct {
	Stream          bool   // of a method that the profile does not describe, both ways
	Path            string // prefix of the backend; a stream goes to the primary
	More            int    // further requests of a stream
	Waits           bool   // the backend answers when the client has half-closed
	Last            bool   // the client half-closes when it has received everything
	Hangs           bool   // the backend begins, and answers when the call has ended
	Times           bool   // the client has a time-out
	Header, Trailer metadata.MD
	Early           bool  // the header comes before everything else
	Replies         []int // sizes
	Code            codes.Code
	Message, Detail string
	Pad             string
}

// randomScripts returns scripts of a seed, and those that must not be missing.
func randomScripts(seed uint64) []script {
	r := rand.New(rand.NewPCG(seed, 0))
	text := func() string {
		return []string{"", "plain", "é\n\"%", "a: b, c", strings.Repeat("long ", 100)}[r.IntN(5)]
	}
	md := func() metadata.MD {
		all := metadata.MD{}
		for range r.IntN(3) {
			all.Append([]string{"x-one", "x-two", "x-blob-bin"}[r.IntN(3)], []string{"v", "w, x", "\x00\x01"}[r.IntN(2)])
		}
		return all
	}
	large := strings.Repeat("x", 17<<20)
	failed := metadata.Pairs("x-one", "of a failed call")
	all := []script{
		{Hangs: true}, {Hangs: true, Stream: true}, {Hangs: true, Times: true}, {Hangs: true, Times: true, Stream: true},
		{Pad: large}, {Pad: large, Stream: true},
		{Header: failed, Early: true, Code: codes.NotFound}, {Header: failed, Early: true, Code: codes.NotFound, Stream: true}, {Header: failed, Code: codes.NotFound, Stream: true},
	}
	for range 40 {
		s := script{
			Stream: r.IntN(2) == 0, Header: md(), Trailer: md(), Early: r.IntN(2) == 0,
			Code: codes.Code(r.IntN(17) * r.IntN(2)), Message: text(), Pad: strings.Repeat("y", r.IntN(2)*r.IntN(3<<20)),
		}
		if s.Code != codes.OK {
			s.Detail = text()
		}
		if s.Stream {
			s.More, s.Waits, s.Last = r.IntN(3), r.IntN(2) == 0, r.IntN(2) == 0
			for range r.IntN(4) {
				s.Replies = append(s.Replies, r.IntN(2)*r.IntN(2<<20)+1)
			}
		} else if s.Path = []string{"", "beta.io__"}[r.IntN(2)]; s.Code == codes.OK {
			s.Replies = []int{1 + r.IntN(2<<20)}
		}
		all = append(all, s)
	}
	return all
}

// play is the handler of a scripted backend.
func play(ss grpc.ServerStream, begun chan<- struct{}) error {
	first, request, s := &codec.Frame{}, &runtimeapi.StopContainerRequest{}, script{}
	if err := ss.RecvMsg(first); err != nil {
		return err
	}
	if proto.Unmarshal(first.Bytes(), request) != nil || json.Unmarshal([]byte(request.ContainerId), &s) != nil {
		return ss.SendMsg(&codec.Frame{}) // a call of criproxy's own
	}
	if s.Early {
		if err := ss.SendHeader(s.Header); err != nil {
			return err
		}
	} else if err := ss.SetHeader(s.Header); err != nil {
		return err
	}
	ss.SetTrailer(s.Trailer)
	if s.Hangs {
		begun <- struct{}{}
		<-ss.Context().Done()
		return ss.Context().Err()
	}
	for s.Waits && ss.RecvMsg(&codec.Frame{}) == nil {
	}
	for _, size := range s.Replies {
		if err := ss.SendMsg(codec.NewFrame(protowire.AppendString([]byte("\x7a"), strings.Repeat("z", size)))); err != nil { // an unknown field
			return err
		}
	}
	st := &spb.Status{Code: int32(s.Code), Message: s.Message}
	if s.Detail != "" {
		st.Details = []*anypb.Any{{TypeUrl: "type.googleapis.com/x", Value: []byte(s.Detail)}}
	}
	return status.ErrorProto(st)
}

// playing makes the call of a script.
func (n *node) playing(s script, begun <-chan struct{}) (h heard) {
	n.Helper()
	ctx, cancel := context.WithCancel(n.ctx())
	if s.Times {
		ctx, cancel = context.WithTimeout(n.ctx(), 500*time.Millisecond)
	}
	defer cancel()
	method := "/runtime.v1.RuntimeService/StopContainer"
	if s.Stream {
		method = "/of.nobody.Service/Call"
	}
	cs, err := n.cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(codec.Raw))
	require.NoError(n, err)
	name, err := json.Marshal(s)
	require.NoError(n, err)
	_ = cs.SendMsg(&runtimeapi.StopContainerRequest{ContainerId: s.Path + string(name)}) // fails if the call has ended
	for range s.More {
		_ = cs.SendMsg(&codec.Frame{})
	}
	if !s.Last || s.Waits {
		require.NoError(n, cs.CloseSend())
	}
	if s.Hangs {
		<-begun
		if !s.Times {
			cancel()
		}
	}
	for err = nil; err == nil; {
		var f codec.Frame
		if err = cs.RecvMsg(&f); err == nil {
			h.Replies = append(h.Replies, string(f.Bytes()))
		}
	}
	h.Header, _ = cs.Header()
	h.Trailer = cs.Trailer()
	if st := status.Convert(err); !errors.Is(err, io.EOF) {
		h.Code, h.Message, h.Details = st.Code().String(), st.Message(), st.Proto().GetDetails()
	}
	return h
}

// recordedEnds returns how the calls of clients ended, as they are recorded, when all have ended.
func (n *node) recordedEnds(calls int) (ends []string) {
	n.Helper()
	testkit.Eventually(n, "all calls have ended", func() bool {
		data, _ := n.proxy.record.Snapshot()
		r, err := capture.NewReader(bytes.NewReader(data))
		require.NoError(n, err)
		byCall := map[uint64]string{}
		var ev capture.Event
		for r.Next(&ev) == nil {
			if ev.Kind == capture.End && ev.Leg == 0 && !ev.Own {
				byCall[ev.Call] = ev.Code.String() + ": " + ev.Message
			}
		}
		ends = nil
		for _, call := range slices.Sorted(maps.Keys(byCall)) {
			ends = append(ends, byCall[call])
		}
		return len(ends) == calls
	})
	return ends
}

var pathSeed = flag.Uint64("pathseed", 1, "of TestBothDataPathsAnswerAlikeWhateverHappens")

// A call past its deadline used to be Canceled on one path. grpc-go's path lost the headers of failed calls, and had other
// words for a request that is too long.
func TestBothDataPathsAnswerAlikeWhateverHappens(t *testing.T) {
	untested.TakesLong(t)
	t.Parallel()
	scripts := randomScripts(*pathSeed)
	tell := func(path string) (all []heard, ends []string) {
		n := newNode(t, func(c *config.Config) { c.DataPath = path }, machineConfig{absent: true}, machineConfig{backend: config.Backend{Name: "beta.io"}, absent: true})
		begun := make(chan struct{}, 1)
		for i, b := range n.cfg.Backends {
			muxtest.Serve(t, b.Address, func(_ string, ss grpc.ServerStream) error { return play(ss, begun) })
			n.isUp(i)
		}
		before := len(n.recordedEnds(0))
		for _, s := range scripts {
			all = append(all, n.playing(s, begun))
		}
		return all, n.recordedEnds(before + len(scripts))
	}
	own, ownEnds := tell(config.OwnPath)
	other, otherEnds := tell(config.GRPCPath)
	for i, s := range scripts {
		s.Pad = fmt.Sprint(len(s.Pad))
		if s.Times { // whoever notices first says so in its words: the client, criproxy or the backend
			own[i], other[i] = heard{Code: own[i].Code}, heard{Code: other[i].Code}
			for _, end := range []*string{&ownEnds[i], &otherEnds[i]} {
				// On a busy machine the client's own end comes long before criproxy's timer, and is Canceled then.
				code, _, _ := strings.Cut(*end, ":")
				assert.Contains(t, []string{"DeadlineExceeded", "Canceled"}, code)
				*end = "a deadline passed"
			}
		}
		for _, h := range []*heard{&own[i], &other[i]} {
			for j, r := range h.Replies {
				h.Replies[j] = fmt.Sprintf("%d bytes, %x", len(r), sha256.Sum256([]byte(r)))
			}
		}
		assert.Equal(t, own[i], other[i], "-pathseed %d: call %d: %+v", *pathSeed, i, s)
		assert.Equal(t, ownEnds[i], otherEnds[i], "-pathseed %d: as recorded: call %d: %+v", *pathSeed, i, s)
	}
}
