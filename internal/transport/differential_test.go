package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/criproxy/criproxy/codec"
)

// A script says what the handler of a call does. It is sent in the metadata of the call.
type script struct {
	Read    int // how many requests to read first; -1: all
	Early   bool
	Header  map[string][]string
	Replies []int // sizes
	Rest    bool  // then read the other requests
	Trailer map[string][]string
	Code    codes.Code
	Message string
	Details bool
}

// follow is a handler that follows the script of its call, and reports in its trailer what it has
// seen.
func follow(_ any, ss grpc.ServerStream) error {
	in, _ := metadata.FromIncomingContext(ss.Context())
	var s script
	if err := json.Unmarshal([]byte(in.Get("script-bin")[0]), &s); err != nil {
		return err
	}
	var seen []string
	for key, values := range in {
		if strings.HasPrefix(key, "x-") {
			seen = append(seen, fmt.Sprintf("%s %+q", key, values))
		}
	}
	if len(seen) > 1 {
		seen = []string{fmt.Sprint(len(seen))} // in any order
	}
	if s.Early {
		if err := ss.SendHeader(s.Header); err != nil {
			return err
		}
	} else if err := ss.SetHeader(s.Header); err != nil {
		return err
	}
	read := func(n int) error {
		for ; n != 0; n-- {
			var f codec.Frame
			err := ss.RecvMsg(&f)
			if errors.Is(err, io.EOF) {
				seen = append(seen, "end")
				return nil
			}
			if err != nil {
				return err
			}
			seen = append(seen, sum(&f))
			f.Free()
		}
		return nil
	}
	if err := read(s.Read); err != nil {
		return err
	}
	for i, n := range s.Replies {
		if err := ss.SendMsg(codec.NewFrame(body(n, byte(i)))); err != nil {
			return err
		}
	}
	if s.Rest {
		if err := read(-1); err != nil {
			return err
		}
	}
	trailer := metadata.MD(s.Trailer).Copy()
	trailer.Append("seen", fmt.Sprint(seen))
	ss.SetTrailer(trailer)
	st := status.New(s.Code, s.Message)
	if s.Details && s.Code != codes.OK {
		st, _ = st.WithDetails(wrapperspb.String(s.Message))
	}
	return st.Err()
}

// body returns n bytes that differ from those of other messages.
func body(n int, salt byte) []byte {
	return slices.Clone(noise[int(salt)*4099 : int(salt)*4099+n])
}

var noise = func() []byte {
	b := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}()

func sum(f *codec.Frame) string {
	return fmt.Sprintf("%d:%x", f.Len(), crc32.ChecksumIEEE(f.Bytes()))
}

// A trial says how a client makes a call.
type trial struct {
	unary    bool
	script   script
	sent     metadata.MD
	requests []int
	cancel   int // after this many replies; -1: never
	timeout  time.Duration
}

func (tr trial) String() string {
	return fmt.Sprintf("unary %v, sends %d of %v, cancels %d, timeout %v, script %+v", tr.unary, len(tr.requests), tr.requests, tr.cancel, tr.timeout, tr.script)
}

// An outcome is the result of a call for the client.
type outcome struct {
	Header, Trailer metadata.MD
	Replies         []string
	Status          string
}

func (tr trial) run(cc grpc.ClientConnInterface) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), tr.timeout)
	defer cancel()
	text, _ := json.Marshal(tr.script)
	md := tr.sent.Copy()
	md.Set("script-bin", string(text))
	ctx = metadata.NewOutgoingContext(ctx, md)
	var o outcome
	if tr.unary {
		var f codec.Frame
		err := cc.Invoke(ctx, "/test.Service/Unary", codec.NewFrame(body(tr.requests[0], 1)), &f, grpc.Header(&o.Header), grpc.Trailer(&o.Trailer))
		if err == nil {
			o.Replies = append(o.Replies, sum(&f))
			f.Free()
		}
		o.Status = describe(err)
		if strings.Contains(o.Status, "received another message") {
			o.Header, o.Trailer = nil, nil // grpc-go does not wait for them
		}
		return o
	}
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Service/Stream")
	if err != nil {
		o.Status = describe(err)
		return o
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		for i, n := range tr.requests {
			if cs.SendMsg(codec.NewFrame(body(n, byte(i)))) != nil {
				return
			}
		}
		_ = cs.CloseSend()
	})
	for {
		if len(o.Replies) == tr.cancel {
			cancel()
		}
		var f codec.Frame
		if err = cs.RecvMsg(&f); err != nil {
			break
		}
		o.Replies = append(o.Replies, sum(&f))
		f.Free()
	}
	o.Status = describe(err)
	if tr.cancel >= 0 { // how far it got depends on timing
		o.Replies = append([]string(nil), o.Replies[:min(len(o.Replies), tr.cancel)]...) // nil if it is empty
		if status.Code(err) == codes.Canceled || err == io.EOF || status.Code(err) == tr.script.Code {
			o.Status = "has ended"
		}
		return o
	}
	o.Header, _ = cs.Header()
	o.Trailer = cs.Trailer()
	return o
}

func describe(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return "OK"
	}
	st := status.Convert(err)
	return fmt.Sprintf("%v %q %v", st.Code(), st.Message(), st.Details())
}

// newTrial returns a random trial.
func newTrial(r *rand.Rand) trial {
	size := func() int {
		switch r.IntN(8) {
		case 0:
			return 0
		case 1, 2, 3:
			return r.IntN(100)
		case 4, 5:
			return r.IntN(5000)
		case 6:
			return r.IntN(70_000)
		default:
			return r.IntN(400_000)
		}
	}
	sizes := func(most int) []int {
		var all []int
		for range r.IntN(most + 1) {
			all = append(all, size())
		}
		return all
	}
	md := func(name string) map[string][]string {
		all := map[string][]string{}
		for range r.IntN(3) {
			key := fmt.Sprintf("x-%s-%d", name, r.IntN(3))
			value := strings.Repeat("v", r.IntN(40)) + fmt.Sprint(r.IntN(1000))
			if r.IntN(3) == 0 {
				key += "-bin"
				value = string(body(r.IntN(30), byte(r.IntN(256))))
			}
			all[key] = append(all[key], value)
		}
		return all
	}
	tr := trial{unary: r.IntN(2) == 0, sent: md("sent"), cancel: -1, timeout: patience}
	tr.script = script{Read: -1, Early: r.IntN(4) == 0, Header: md("header"), Trailer: md("trailer")}
	if r.IntN(3) == 0 {
		tr.script.Code = codes.Code(r.IntN(17))
		tr.script.Message = []string{"", "plain", "50% of \t \u00fcmlaut\r\n", strings.Repeat("long ", 500)}[r.IntN(4)]
		tr.script.Details = r.IntN(2) == 0
	}
	if tr.unary {
		tr.requests = []int{size()}
		if r.IntN(10) > 0 {
			tr.script.Replies = []int{size()}
		} else {
			tr.script.Replies = sizes(2)
		}
		return tr
	}
	tr.requests, tr.script.Replies = sizes(6), sizes(6)
	switch r.IntN(4) {
	case 0:
		tr.script.Read = r.IntN(len(tr.requests) + 1)
		tr.script.Rest = true
	case 1:
		tr.cancel = r.IntN(4)
	}
	return tr
}

var (
	seed  = flag.Uint64("seed", 0, "of random calls; 0: any")
	calls = flag.Int("calls", 300, "how many random calls")
)

// TestDifferential makes random calls through all pairs of grpc-go's ends and ours, with and
// without a mangler in between that splits frames and adds others. All outcomes are the same.
func TestDifferential(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	ends := map[string]end{"ours": ours, "grpc-go": grpcGo}
	conns := map[string]grpc.ClientConnInterface{}
	for server, s := range ends {
		l := listen(t)
		s.serve(t, l, follow)
		for client, c := range ends {
			conns[client+" to "+server] = c.dial(t, dialer(l))
			conns[client+" to "+server+", mangled"] = c.dial(t, mangled(dialer(l), *seed))
		}
	}
	reference := conns["grpc-go to grpc-go"]
	random := rand.New(rand.NewPCG(*seed, 0))
	for range *calls {
		tr := newTrial(random)
		want := tr.run(reference)
		var all sync.WaitGroup
		for name, cc := range conns {
			all.Go(func() {
				got := tr.run(cc)
				assert.Equal(t, want, got, "%s: %v", name, tr)
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
	}
}
