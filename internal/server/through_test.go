package server

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/rude"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

var (
	throughSeed  = flag.Uint64("through-seed", 1, "the first seed of TestWhatWorksDirectlyWorksThroughTheProxy")
	throughCalls = flag.Int("through-calls", 60, "its calls, for each method, data path and number of runtimes")
)

// A whim is a call and what a rude runtime answers, which follow from a seed. The runtime finds it by its number, in the
// field x-whim of the request.
type whim struct {
	method  *codec.Method
	id      protoreflect.FieldDescriptor // of the request, where it names a sandbox or a container
	request []byte                       // without that field
	header  metadata.MD
	reply   *rude.Message

	// How netHTTP sends the request.
	piece   int    // length of each DATA frame; zero: one frame, and content-length
	timeout string // as it stands in grpc-timeout; "": there is none
}

// newWhim returns the whim of a seed.
func newWhim(m *codec.Method, seed uint64) *whim {
	r := rand.New(rand.NewPCG(seed, uint64(len(m.Name))))
	w := &whim{method: m, header: metadata.MD{}, request: muxtest.Random(r, m.Input)}
	for _, name := range []protoreflect.Name{"pod_sandbox_id", "container_id"} {
		if fd := m.Input.Fields().ByName(name); fd != nil {
			w.id, w.request = fd, without(w.request, fd.Number())
			break
		}
	}
	for i := range r.IntN(3) {
		w.header.Append("x-client-"+strconv.Itoa(i), strings.Repeat("v", r.IntN(2000)))
		w.header.Append("x-client-bin", string(randomBytes(r, 0, 100)))
	}
	w.reply = &rude.Message{Header: rude.Fields(":status", "200", "content-type", "application/grpc")}
	for range r.IntN(4) {
		w.reply.Header = append(w.reply.Header, oddField(r))
	}
	for range r.IntN(3) {
		w.reply.Trailer = append(w.reply.Trailer, oddField(r))
	}
	code := 0
	if r.IntN(2) == 0 {
		code = 1 + r.IntN(20) // more than there are
	}
	switch {
	case m.ServerStreams:
		for range r.IntN(5) {
			w.reply.Bodies = append(w.reply.Bodies, muxtest.Random(r, m.Output))
		}
	case code == 0 || r.IntN(4) == 0:
		w.reply.Bodies = [][]byte{muxtest.Random(r, m.Output)}
	}
	if r.IntN(4) == 0 { // in frames of any length, but not in so many that they look like a flood
		w.reply.Piece = 1 + r.IntN(40) + len(slices.Concat(w.reply.Bodies...))/20
	}
	w.reply.Trailer = append(w.reply.Trailer, rude.Fields("grpc-status", strconv.Itoa(code))...)
	if code != 0 {
		w.fail(r, code)
	}
	if r.IntN(2) == 0 {
		w.piece = 1 + r.IntN(40) + len(w.request)/20
	}
	w.timeout = []string{"", "99999999u", "100000m", "00000100S", "9M", "99999999H"}[r.IntN(6)]
	return w
}

// fail adds what describes an error, and sometimes makes the reply one without a header.
func (w *whim) fail(r *rand.Rand, code int) {
	if r.IntN(8) > 0 {
		w.reply.Trailer = append(w.reply.Trailer, rude.Fields("grpc-message", oddText(r))...)
	}
	if r.IntN(3) == 0 {
		s, err := status.New(codes.Code(code), "as the details say").WithDetails(durationpb.New(time.Duration(r.Int64())))
		if err != nil {
			panic(err)
		}
		b, err := proto.Marshal(s.Proto())
		if err != nil {
			panic(err)
		}
		w.reply.Trailer = append(w.reply.Trailer, rude.Fields("grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(b))...)
	}
	if w.reply.Bodies == nil && r.IntN(2) == 0 {
		w.reply.Trailer, w.reply.Header = append(w.reply.Header, w.reply.Trailer...), nil
	}
}

// hopFields describe one connection or message; what they say directly is of no use behind a proxy.
var hopFields = []string{"content-length", "date", "trailer"}

func oddField(r *rand.Rand) rude.Field {
	switch r.IntN(5) {
	case 0:
		return rude.Field{Name: hopFields[r.IntN(len(hopFields))], Value: strconv.Itoa(r.IntN(100))}
	case 1:
		return rude.Field{Name: "x-runtime-bin", Value: base64.RawStdEncoding.EncodeToString(randomBytes(r, 0, 60))}
	case 2:
		return rude.Field{Name: "x!#$&*+^|~" + strconv.Itoa(r.IntN(3)), Value: "v"}
	case 3:
		return rude.Field{Name: "x-long", Value: strings.Repeat("l", anyLength(r, 20_000))}
	default:
		return rude.Field{Name: "x-odd-" + strconv.Itoa(r.IntN(3)), Value: "o" + string(randomBytes(r, 0x80, 30)) + "\tz"}
	}
}

// oddText returns a text of an error as runtimes write it: escaped well, escaped badly, or not at all.
func oddText(r *rand.Rand) string {
	switch r.IntN(6) {
	case 0:
		return ""
	case 1:
		return "rpc error: code = Unknown desc = 50%% of %41%zz%"
	case 2:
		return "f\xc3\xbcr \xff"
	case 3:
		return "%E2%82%AC%00%0A%FF"
	case 4:
		return strings.Repeat("a long text. ", anyLength(r, 16_000))
	default:
		return "no such container"
	}
}

// anyLength returns a number below most, of any order of magnitude: long ones take nearly all the time.
func anyLength(r *rand.Rand, most int) int { return r.IntN(1 + r.IntN(1+r.IntN(most))) }

// randomBytes returns fewer than n bytes that are least or larger.
func randomBytes(r *rand.Rand, least, n int) []byte {
	b := make([]byte, r.IntN(n))
	for i := range b {
		b[i] = byte(least + r.IntN(256-least))
	}
	return b
}

// without returns a message without one of its fields.
func without(b []byte, field protowire.Number) []byte {
	var rest []byte
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		if num != field {
			rest = append(rest, b[:n]...)
		}
		b = b[n:]
	}
	return rest
}

// An outcome is what one of the two sides of a call got.
type outcome struct {
	code            codes.Code
	text            string
	details         []any
	header, trailer metadata.MD
	replies         []string
	request         []byte // as the runtime got it
	fields          metadata.MD
}

// differs says in what another outcome differs; it returns "" if they are equal.
func (o outcome) differs(other outcome) string {
	type fields map[string][]string // metadata.MD does not print its values
	for _, one := range []struct {
		what        string
		want, other any
	}{
		{"code", o.code, other.code}, {"text", o.text, other.text}, {"details", o.details, other.details},
		{"header", fields(o.header), fields(other.header)}, {"trailer", fields(o.trailer), fields(other.trailer)}, {"replies", o.replies, other.replies},
		{"request", o.request, other.request}, {"metadata of the request", fields(o.fields), fields(other.fields)},
	} {
		if !assert.ObjectsAreEqual(one.want, one.other) {
			return fmt.Sprintf("%s: directly %.500q, through the proxy %.500q", one.what, fmt.Sprint(one.want), fmt.Sprint(one.other))
		}
	}
	return ""
}

// A capricious is a runtime that answers calls as their whims say, and keeps what it got of them.
type capricious struct {
	sync.Mutex
	whims map[string]*whim
	got   map[string]*rude.Message
}

func (c *capricious) answer(_ string, request *rude.Message) *rude.Message {
	number := request.Get("x-whim")
	if len(number) == 0 {
		return nil
	}
	c.Lock()
	defer c.Unlock()
	c.got[number[0]] = request
	return c.whims[number[0]].reply
}

// A client makes the call of a whim, and returns what it gets and the error of the call.
type client func(ctx context.Context, w *whim, md metadata.MD, request []byte) (outcome, error)

// grpcGo is the client of grpc-go.
func grpcGo(t *testing.T, socket string) client {
	cc := testkit.Dialed(t, socket)
	return func(ctx context.Context, w *whim, md metadata.MD, request []byte) (outcome, error) {
		var s outcome
		err := s.hear(metadata.NewOutgoingContext(ctx, md), cc, w.method, codec.NewFrame(request))
		return s, err
	}
}

// call makes the call of a whim, with an id in its request.
func (c *capricious) call(t *testing.T, by client, number string, id string) outcome {
	w := c.whims[number]
	request := w.request
	if w.id != nil {
		request = protowire.AppendString(protowire.AppendTag(request[:len(request):len(request)], w.id.Number(), protowire.BytesType), id)
	}
	md := w.header.Copy()
	md.Set("x-whim", number)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	s, err := by(ctx, w, md, request)
	as, is := status.FromError(err)
	require.True(t, is, "%s: not a reply of gRPC: %v", number, err)
	s.code, s.text, s.details = as.Code(), string([]rune(as.Message())), as.Details() // each byte that is not UTF-8 becomes U+FFFD
	s.header, s.trailer = metadata.Join(s.header), metadata.Join(s.trailer)           // nil becomes empty
	for _, name := range append(hopFields, "content-type") {
		delete(s.header, name)
		delete(s.trailer, name)
	}
	c.Lock()
	defer c.Unlock()
	got := c.got[number]
	if got == nil {
		return s
	}
	delete(c.got, number)
	s.fields = metadata.MD{}
	for _, f := range got.Header {
		switch f.Name {
		case "content-type", "grpc-timeout", "user-agent":
		default:
			if !strings.HasPrefix(f.Name, ":") && !transport.Hop(f.Name) {
				s.fields.Append(f.Name, f.Value)
			}
		}
	}
	if len(got.Bodies) == 1 {
		s.request = got.Bodies[0]
	}
	return s
}

// hear makes a call and keeps its replies and metadata. It returns the error of the call.
func (s *outcome) hear(ctx context.Context, cc *grpc.ClientConn, m *codec.Method, request *codec.Frame) error {
	var reply codec.Frame
	if m.Unary() {
		err := cc.Invoke(ctx, m.Name, request, &reply, grpc.Header(&s.header), grpc.Trailer(&s.trailer))
		if err == nil {
			s.replies = []string{string(reply.Bytes())}
		}
		return err
	}
	cs, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, m.Name)
	if err != nil {
		return err
	}
	if err := cs.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := cs.CloseSend(); err != nil {
		return err
	}
	for err = cs.RecvMsg(&reply); err == nil; err = cs.RecvMsg(&reply) {
		s.replies = append(s.replies, string(reply.Bytes()))
	}
	s.header, _ = cs.Header() // its error is that of the call
	s.trailer = cs.Trailer()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// bare takes the name of the second runtime off all strings of a message.
func bare(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) protoreflect.Value {
			if fd.Kind() != protoreflect.StringKind {
				return v
			}
			return protoreflect.ValueOfString(strings.TrimPrefix(strings.TrimPrefix(v.String(), "beta.io__"), "beta.io/"))
		}
		switch {
		case fd.IsMap():
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				bare(v.List().Get(i).Message())
			}
		case fd.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, one(v.List().Get(i)))
			}
		case fd.Message() != nil:
			bare(v.Message())
		default:
			m.Set(fd, one(v))
		}
		return true
	})
}

// equalReplies reports whether two replies are equal but for the name of the second runtime before ids.
func equalReplies(md protoreflect.MessageDescriptor, direct, through []byte) bool {
	a, b := dynamicpb.NewMessage(md), dynamicpb.NewMessage(md)
	if proto.Unmarshal(direct, a) != nil {
		return true // it has text that is not UTF-8; TestTextThatIsNoUTF8SpoilsNoMergedReply
	}
	if proto.Unmarshal(through, b) != nil {
		return false
	}
	bare(a)
	bare(b)
	return proto.Equal(a, b)
}

// TestWhatWorksDirectlyWorksThroughTheProxy makes each call of CRI, with a request and replies in the forms that the
// wire allows, directly and through the proxy: the client gets the same code, text, details, metadata and messages, and the
// runtime the same request. With two runtimes only calls on a sandbox or a container are compared: the others have one
// answer of two.
func TestWhatWorksDirectlyWorksThroughTheProxy(t *testing.T) {
	t.Parallel()
	calls := *throughCalls
	if testing.Short() {
		calls = 3
	}
	onEachPath(t, func(t *testing.T, start func(*rudeRuntime) (*node, string)) {
		c := &capricious{whims: map[string]*whim{}, got: map[string]*rude.Message{}}
		n, prefix := start(&rudeRuntime{answer: c.answer})
		last := n.cfg.Backends[len(n.cfg.Backends)-1].Address
		for name, dial := range map[string]func(*testing.T, string) client{"grpc-go": grpcGo, "net/http": netHTTP} {
			direct, through := dial(t, last), dial(t, n.cfg.Listen)
			for _, m := range criMethods() {
				for i := range calls {
					seed := *throughSeed + uint64(i)
					w := newWhim(m, seed)
					if prefix != "" && w.id == nil {
						break
					}
					if name == "net/http" { // which believes it
						is := func(f rude.Field) bool { return f.Name == "content-length" }
						w.reply.Header, w.reply.Trailer = slices.DeleteFunc(w.reply.Header, is), slices.DeleteFunc(w.reply.Trailer, is)
					}
					if differs := c.compare(t, w, fmt.Sprint(m.Name, " ", seed), direct, through, prefix); differs != "" {
						t.Fatalf("%s by %s: -through-seed %d: %s", m.Name, name, seed, differs)
					}
				}
			}
		}
	})
}

// compare makes the call of a whim directly and through the proxy, and says in what the outcomes differ; it returns "" if
// they are equal.
func (c *capricious) compare(t *testing.T, w *whim, number string, direct, through client, prefix string) string {
	c.Lock()
	c.whims[number] = w
	c.Unlock()
	want, got := c.call(t, direct, number, "c"), c.call(t, through, number, prefix+"c")
	if w.method.Output.Fields().ByName("url") != nil && len(want.replies) == len(got.replies) {
		got.replies = want.replies // a random URL that has no host gets one
	}
	if prefix != "" && len(want.replies) == 1 && len(got.replies) == 1 && equalReplies(w.method.Output, []byte(want.replies[0]), []byte(got.replies[0])) {
		got.replies = want.replies
	}
	if prefix != "" && strings.Contains(got.text, "belong to different backends") {
		return "" // a random target_id is a name of the primary
	}
	if len(got.fields[transport.ViaField]) == 1 {
		delete(got.fields, transport.ViaField) // what the proxy adds
	}
	return want.differs(got)
}

// criMethods returns the methods of CRI v1.
func criMethods() []*codec.Method {
	var all []*codec.Method
	for _, m := range codec.LinkedIn().Methods() {
		if strings.HasPrefix(m.Name, "/runtime.v1.") {
			all = append(all, m)
		}
	}
	return all
}
