package server

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/rude"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// differences are all that the data paths do otherwise, in the order of the table in docs/security.md.
var differences = []struct {
	what      string // the first cell of its row
	own, grpc string // what probe finds
	probe     func(t *testing.T, path string) string
}{
	{muxtest.MemoryFirst, "taken", "free", probeMemory},
	{"a client that stalls in the middle of a message", "8", "0", probeStall},
	{"a flood of frames that cost the client nothing", "disconnected", "answered", probeFlood},
	{"a header field of a request that is not printable", "passes", "dropped", probeOdd},
	{"a request header of more than 64 KiB", "8", "reset: FRAME_SIZE_ERROR", probeLongRequest},
	{"a reply header or trailer of more than 1 MiB", "NotFound, cut", "NotFound", probeLongReply},
	{"a reply header or trailer that is longer than the client accepts", "NotFound, cut", "Internal", probeSmallClient},
	{"replies to a client that compresses its requests", "", "gzip", probeCompressed},
	{muxtest.HeaderFirst, "early", "nothing yet", probeEarlyHeader},
	{"the error for a message that is too long", "criproxy", "grpc-go", probeLongMessage},
}

// Everything else is equal: see TestBothDataPathsAnswerAlikeWhateverHappens, and make grpc-path.
func TestTheDataPathsDifferInThis(t *testing.T) {
	t.Parallel()
	var listed, rows []string
	for _, d := range differences {
		listed = append(listed, d.what)
		t.Run(d.what, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, d.own, d.probe(t, config.OwnPath), config.OwnPath)
			assert.Equal(t, d.grpc, d.probe(t, config.GRPCPath), config.GRPCPath)
		})
	}
	docs, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(docs), "\n## The other data path\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+?) \|`).FindAllStringSubmatch(section, -1) {
		rows = append(rows, row[1])
	}
	assert.Equal(t, listed, rows)
}

func probeMemory(t *testing.T, path string) string {
	n := behind(t, path, &rudeRuntime{})
	_, err := rude.Dial(t, n.cfg.Listen).Begin(runtimeService+"Version", 8<<20, make([]byte, 1000))
	require.NoError(t, err)
	if taken(n) >= 8<<20 {
		return "taken"
	}
	return "free"
}

// serveOn serves handler on a data path, and returns the socket.
func serveOn(t *testing.T, path string, cfg transport.ServerConfig) (socket string) {
	socket = filepath.Join(testkit.SocketDir(t), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	s, ended := dataPaths[path].newServer(cfg), make(chan error, 1)
	go func() { ended <- s.Serve(l, nil) }()
	t.Cleanup(func() {
		s.Stop()
		<-ended // ErrServerStopped, or nil if the listener was closed first
	})
	return socket
}

func probeStall(t *testing.T, path string) string {
	socket := serveOn(t, path, transport.ServerConfig{StallTimeout: 100 * time.Millisecond, Handler: func(_ any, ss grpc.ServerStream) error {
		return ss.RecvMsg(&codec.Frame{})
	}})
	end, err := rude.Dial(t, socket).Begin("/a/B", 20_000, make([]byte, 10_000))
	require.NoError(t, err)
	time.Sleep(time.Second) // longer than two looks at the call, each after StallTimeout
	m, err := end(make([]byte, 10_000))
	require.NoError(t, err)
	return strings.Join(m.Get("grpc-status"), " ")
}

func probeFlood(t *testing.T, path string) string {
	nc, err := net.Dial("unix", serveOn(t, path, transport.ServerConfig{Handler: func(any, grpc.ServerStream) error { return nil }}))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(testkit.Patience)))
	const frames = 100_000
	go func() {
		w := bufio.NewWriter(nc)
		_, _ = w.WriteString(http2.ClientPreface) // Flush returns the error, here and below, and reading fails, too
		framer := http2.NewFramer(w, nil)
		for range frames {
			_ = framer.WriteSettings()
		}
		_ = w.Flush()
	}()
	framer := http2.NewFramer(nil, nc)
	for answers := 0; answers < frames; {
		f, err := framer.ReadFrame()
		if _, away := f.(*http2.GoAwayFrame); away || err != nil {
			return "disconnected"
		}
		if f, ok := f.(*http2.SettingsFrame); ok && f.IsAck() {
			answers++
		}
	}
	return "answered"
}

func probeOdd(t *testing.T, path string) string {
	got := make(chan *rude.Message, 10)
	n := behind(t, path, &rudeRuntime{answer: func(method string, request *rude.Message) *rude.Message {
		if method == runtimeService+"StopContainer" {
			got <- request
		}
		return nil
	}})
	body, err := proto.Marshal(&runtimeapi.StopContainerRequest{ContainerId: "c"})
	require.NoError(t, err)
	c := rude.Dial(t, n.cfg.Listen)
	_, err = c.Call(runtimeService+"StopContainer", body) // the first call also asks which version the runtime speaks
	require.NoError(t, err)
	<-got
	_, err = c.Call(runtimeService+"StopContainer", body, odd...)
	require.NoError(t, err)
	request, passed := <-got, 0
	for _, f := range odd {
		if strings.Join(request.Get(f.Name), " ") == f.Value {
			passed++
		}
	}
	switch lost := lossesOf(t, n, "request", "bytes"); {
	case passed == len(odd) && lost == 0:
		return "passes"
	case passed == 0 && lost == float64(len(odd)):
		return "dropped"
	default:
		t.Errorf("%d fields passed, %v are counted as lost", passed, lost)
		return ""
	}
}

func probeLongRequest(t *testing.T, path string) string {
	n := behind(t, path, &rudeRuntime{})
	long := strings.Repeat("x", 30_000)
	m, err := rude.Dial(t, n.cfg.Listen).Call(runtimeService+"Version", nil, rude.Fields("x-one", long, "x-two", long, "x-three", long)...)
	require.NoError(t, err)
	if m.Reset != nil {
		return m.Reset.Error()
	}
	return strings.Join(m.Get("grpc-status"), " ")
}

// failsWith makes a call that fails with a text of this length.
func failsWith(t *testing.T, path string, length int, client ...grpc.DialOption) string {
	r := &rudeRuntime{}
	r.answer = func(method string, _ *rude.Message) *rude.Message {
		if method != runtimeService+"ContainerStatus" {
			return nil
		}
		return r.fails("5", strings.Repeat("x", length))
	}
	n := behind(t, path, r)
	n.connect(client...)
	_, err := n.ContainerStatus(n.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: "c"})
	said := status.Code(err).String()
	if strings.HasSuffix(status.Convert(err).Message(), transport.CutMark) {
		said += ", cut"
	}
	return said
}

func probeLongReply(t *testing.T, path string) string { return failsWith(t, path, 3_000_000) }

func probeSmallClient(t *testing.T, path string) string {
	return failsWith(t, path, 20_000, grpc.WithMaxHeaderListSize(16<<10)) // as gRPC's C core
}

func probeCompressed(t *testing.T, path string) string {
	n := behind(t, path, &rudeRuntime{})
	m, err := rude.Dial(t, n.cfg.Listen).Call(runtimeService+"Version", nil, rude.Fields("grpc-encoding", "gzip", "grpc-accept-encoding", "gzip")...)
	require.NoError(t, err)
	require.Equal(t, []string{"0"}, m.Get("grpc-status"))
	return strings.Join(m.Get("grpc-encoding"), " ")
}

func probeEarlyHeader(t *testing.T, path string) string {
	const method = "/of.nobody.Service/Call"
	release := make(chan struct{})
	n := newNode(t, func(c *config.Config) {
		c.DataPath = path
		muxtest.Serve(t, c.Backends[0].Address, func(called string, ss grpc.ServerStream) error {
			if called != method {
				return ss.SendMsg(&codec.Frame{}) // a call of criproxy's own
			}
			if err := ss.SendHeader(metadata.Pairs("x-header", "early")); err != nil {
				return err
			}
			<-release
			return nil
		})
	}, machineConfig{absent: true})
	defer close(release)
	cs, err := n.cc.NewStream(n.ctx(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(codec.Raw))
	require.NoError(t, err)
	require.NoError(t, cs.SendMsg(&codec.Frame{}))
	got := make(chan metadata.MD, 1)
	go func() {
		header, _ := cs.Header() // without one, the header says so
		got <- header
	}()
	wait := testkit.Patience
	if path == config.GRPCPath {
		wait = 300 * time.Millisecond // it does not come before a message
	}
	select {
	case header := <-got:
		return strings.Join(header["x-header"], " ")
	case <-time.After(wait):
		return "nothing yet"
	}
}

func probeLongMessage(t *testing.T, path string) string {
	n := newNode(t, func(c *config.Config) { c.DataPath, c.MaxMessageBytes = path, 1<<20 })
	_, err := n.Version(n.ctx(), &runtimeapi.VersionRequest{Version: strings.Repeat("x", 3<<20)})
	switch text := status.Convert(err).Message(); {
	case strings.Contains(text, "raise -max-message-bytes"):
		return "criproxy"
	case strings.HasPrefix(text, "grpc: received message larger than max"):
		return "grpc-go"
	default:
		return text
	}
}
