package transport_test

import (
	"bytes"
	"compress/gzip"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/transport"
)

// echo is a handler that sends each request back.
func echo(_ any, ss grpc.ServerStream) error {
	for {
		var f codec.Frame
		if err := ss.RecvMsg(&f); err != nil {
			if err.Error() == "EOF" {
				return nil
			}
			return err
		}
		if err := ss.SendMsg(&f); err != nil {
			return err
		}
		f.Free()
	}
}

// served returns the listener of a server with the given handler.
func served(t testing.TB, h grpc.StreamHandler) net.Listener {
	return servedAs(t, transport.ServerConfig{Handler: h, Pings: anyPings})
}

// servedAs returns the listener of a server with the given configuration.
func servedAs(t testing.TB, cfg transport.ServerConfig) net.Listener {
	l := listen(t)
	serve(t, l, cfg)
	return l
}

func TestInvalidCallsAreAnswered(t *testing.T) {
	l := served(t, echo)
	with := func(replace ...string) []string {
		fields := []string{":method", "POST", ":scheme", "http", ":path", "/s.S/M", ":authority", "x", "content-type", "application/grpc", "te", "trailers"}
	next:
		for i := 0; i < len(replace); i += 2 {
			for j := 0; j < len(fields); j += 2 {
				if fields[j] == replace[i] {
					fields[j+1] = replace[i+1]
					continue next
				}
			}
			fields = append(fields, replace[i], replace[i+1])
		}
		return fields
	}
	for _, c := range []struct {
		name         string
		fields       []string
		http, status string
	}{
		{"another content type", with("content-type", "application/json"), "415", ""},
		{"a content type that begins like ours", with("content-type", "application/grpcish"), "415", ""},
		{"GET", with(":method", "GET"), "405", "13"},
		{"no authority", with()[:6], "415", ""},
		{"a host in place of an authority", append(append([]string{}, with()[:6]...), "host", "x", "content-type", "application/grpc"), "200", "0"},
		{"neither host nor authority", append(append([]string{}, with()[:6]...), "content-type", "application/grpc"), "400", "13"},
		{"two hosts", with("host", "x", "host2", "", "te", "trailers"), "200", "0"},
		{"no timeout", with("grpc-timeout", "x"), "400", "13"},
		{"a timeout without a unit", with("grpc-timeout", "12"), "400", "13"},
		{"a timeout with nine digits", with("grpc-timeout", "123456789m"), "400", "13"},
		{"a timeout that is over", with("grpc-timeout", "0m"), "200", "4"},
		{"a timeout of all hours", with("grpc-timeout", "99999999H"), "200", "0"},
		{"no base64", with("x-bin", "!"), "400", "13"},
		{"no method", with(":path", "/s.S"), "200", "12"},
		{"no slash", with(":path", "s.S/M"), "200", "12"},
		{"without te", with()[:10], "200", "0"},
		{"a subtype", with("content-type", "application/grpc+proto"), "200", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := rawClient(t, l)
			p.headers(1, true, p.encode(c.fields...))
			require.NoError(t, p.say())
			var status string
			got := map[string]string{}
			require.NotNil(t, p.until(func(f http2.Frame) bool {
				if h, ok := f.(*http2.MetaHeadersFrame); ok {
					for name, v := range fieldsOf(h) {
						got[name] = v
					}
				}
				e, ok := f.(interface{ StreamEnded() bool })
				return ok && f.Header().StreamID == 1 && e.StreamEnded()
			}))
			status = got["grpc-status"]
			assert.Equal(t, c.http, got[":status"], "%v", got)
			assert.Equal(t, c.status, status, "%v", got)
		})
	}
}

func TestMalformedRequestsAreReset(t *testing.T) {
	l := served(t, echo)
	for name, fields := range map[string][]string{
		"upper case":                  {"X-Up", "v"},
		"a pseudo-header at the end":  {"x", "v", ":late", "v"},
		"a pseudo-header of a reply":  {":status", "200"},
		"a header of HTTP/1":          {"connection", "close"},
		"te that is not for HTTP/2":   {"te", "gzip"},
		"a control character":         {"x", "a\x00b"},
		"a new line":                  {"x", "a\nb"},
		"a name that is empty":        {"", "v"},
		"a name that is no token":     {"a b", "v"},
		"a body that is not as long":  {"content-length", "3"},
		"a pseudo-header that is new": {":new", "v"},
	} {
		t.Run(name, func(t *testing.T) {
			p := rawClient(t, l)
			p.headers(1, false, p.request(fields...))
			p.data(1, true, prefixed([]byte("longer than three")))
			require.NoError(t, p.say())
			assert.Equal(t, http2.ErrCodeProtocol, p.reset(1))
			p.call(3, []byte("x")) // the connection is as good as before
			require.NoError(t, p.say())
			assert.Equal(t, "0", p.status(3)["grpc-status"])
		})
	}
}

func TestMetadataReachesTheHandler(t *testing.T) {
	called := make(chan metadata.MD, 1)
	l := served(t, func(_ any, ss grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		called <- md
		return nil
	})
	p := rawClient(t, l)
	p.headers(1, true, p.request("user-agent", "raw", "x-a", "1", "x-a", "2", "x-bin", "AAE", "x-bin", "AAE=,/w==", "grpc-accept-encoding", "gzip"))
	require.NoError(t, p.say())
	assert.Equal(t, "0", p.status(1)["grpc-status"])
	assert.Equal(t, metadata.MD{
		":authority": {"localhost"}, "content-type": {"application/grpc"}, "user-agent": {"raw"}, "grpc-accept-encoding": {"gzip"},
		"x-a": {"1", "2"}, "x-bin": {"\x00\x01", "\x00\x01", "\xff"},
	}, <-called)
}

func TestHeaderListsOverTheLimitAreRefused(t *testing.T) {
	l := servedAs(t, transport.ServerConfig{Handler: echo, MaxHeaders: 8 << 10})
	long := strings.Repeat("v", 1000)
	t.Run("many fields", func(t *testing.T) {
		p := rawClient(t, l)
		var fields []string
		for range 8 {
			fields = append(fields, "x", long)
		}
		p.headers(1, true, p.request(fields...))
		p.call(3, []byte("x"))
		require.NoError(t, p.say())
		st := p.ends(1, 3)
		assert.Equal(t, "431", st[1][":status"])
		assert.Equal(t, "8", st[1]["grpc-status"], st)
		assert.Equal(t, "0", st[3]["grpc-status"], "the HPACK decoder is out of step")
	})
	t.Run("one field", func(t *testing.T) {
		p := rawClient(t, l)
		p.headers(1, true, p.request("x", strings.Repeat(long, 9)))
		p.call(3, []byte("x"))
		require.NoError(t, p.say())
		st := p.ends(1, 3)
		assert.Equal(t, "8", st[1]["grpc-status"])
		assert.Equal(t, "0", st[3]["grpc-status"])
	})
	t.Run("far too long", func(t *testing.T) {
		p := rawClient(t, l)
		p.headers(1, true, p.request("x", strings.Repeat(long, 40)))
		require.NoError(t, p.say())
		code, _ := p.goAway()
		assert.Contains(t, []http2.ErrCode{http2.ErrCodeEnhanceYourCalm, http2.ErrCodeCompression, http2.ErrCodeFrameSize}, code)
	})
	t.Run("an HPACK bomb", func(t *testing.T) { // the same table entry again and again, one byte each
		p := rawClient(t, l)
		first := p.request("x-bomb", long)
		bomb := append(first, bytes.Repeat([]byte{0x80 | 62}, 15_000)...)
		before := spent()
		p.headers(1, true, bomb)
		p.call(3, []byte("x"))
		require.NoError(t, p.say())
		st := p.ends(1, 3)
		assert.Equal(t, "8", st[1]["grpc-status"])
		assert.Equal(t, "0", st[3]["grpc-status"])
		t.Logf("15 MB of header fields in 15 KB: CPU %v, heap +%d KB", spent().minus(before).cpu, spent().minus(before).heap>>10)
		assert.Less(t, spent().minus(before).heap, int64(4<<20))
	})
	t.Run("fields without name and value, CVE-2019-9516", func(t *testing.T) {
		p := rawClient(t, l)
		p.headers(1, true, append(p.request(), bytes.Repeat([]byte{0x40, 0, 0}, 5000)...))
		require.NoError(t, p.say())
		assert.Equal(t, http2.ErrCodeProtocol, p.reset(1))
	})
}

func TestLongMetadataPassesBothWays(t *testing.T) {
	h := func(_ any, ss grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		if err := ss.SetHeader(metadata.MD{"x-back": md["x-there"]}); err != nil {
			return err
		}
		ss.SetTrailer(metadata.MD{"x-end": md["x-there"]})
		return echo(nil, ss)
	}
	for server, s := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
		for client, c := range map[string]end{"ours": ours, "grpc-go": grpcGo} {
			t.Run(client+" to "+server, func(t *testing.T) {
				l := listen(t)
				s.serve(t, l, h)
				long := strings.Repeat("v", 50_000) // more than three frames
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-there", long)
				var header, trailer metadata.MD
				require.NoError(t, c.dial(t, dialer(l)).Invoke(ctx, "/s.S/M", &codec.Frame{}, &codec.Frame{}, grpc.Header(&header), grpc.Trailer(&trailer)))
				assert.Equal(t, []string{long}, header["x-back"])
				assert.Equal(t, []string{long}, trailer["x-end"])
			})
		}
	}
}

func TestMessagesThatCannotBeReceivedFail(t *testing.T) {
	l := servedAs(t, transport.ServerConfig{Handler: echo, MaxMessage: 1000})
	squeezed := func(n int) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(make([]byte, n))
		_ = z.Close()
		m := prefixed(b.Bytes())
		m[0] = 1
		return m
	}
	for _, c := range []struct {
		name, encoding string
		body           []byte
		status         string
	}{
		{"too long", "", prefixed(make([]byte, 1001)), "8"},
		{"as long as it may be", "", prefixed(make([]byte, 1000)), "0"},
		{"half a prefix", "", []byte{0, 0}, "13"},
		{"half a message", "", prefixed(make([]byte, 1000))[:500], "13"},
		{"an unknown flag", "", []byte{2, 0, 0, 0, 0}, "13"},
		{"an unknown compression", "snappy", squeezed(10), "12"},
		{"compressed by nothing", "", squeezed(10), "13"},
		{"compressed", "gzip", squeezed(900), "0"},
		{"too long when it is decompressed", "gzip", squeezed(1001), "8"},
		{"not compressed, as it says", "gzip", []byte{1, 0, 0, 0, 1, 0}, "13"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := rawClient(t, l)
			var more []string
			if c.encoding != "" {
				more = []string{"grpc-encoding", c.encoding}
			}
			p.headers(1, false, p.request(more...))
			p.data(1, true, c.body)
			require.NoError(t, p.say())
			var header map[string]string
			f := p.until(func(f http2.Frame) bool {
				h, ok := f.(*http2.MetaHeadersFrame)
				if ok && header == nil {
					header = fieldsOf(h)
				}
				return ok && h.StreamEnded()
			})
			require.NotNil(t, f)
			st := fieldsOf(f.(*http2.MetaHeadersFrame))
			assert.Equal(t, c.status, st["grpc-status"], st)
			if c.status == "12" {
				assert.Equal(t, "identity,gzip", header["grpc-accept-encoding"])
			}
		})
	}
}

func TestPaddingIsGivenBack(t *testing.T) {
	l := served(t, echo)
	p := rawClient(t, l)
	p.headers(1, false, p.request())
	m := prefixed(make([]byte, 60_000))
	for len(m) > 0 { // with padding, m is longer than all windows
		for range 90 { // with padding, 90 frames are shorter than the smallest window
			n := min(len(m), 10)
			require.NoError(t, p.framer.WriteDataPadded(1, len(m) == n, m[:n], make([]byte, 200)))
			m = m[n:]
			if len(m) == 0 {
				break
			}
		}
		require.NoError(t, p.framer.WritePing(false, [8]byte{1}))
		require.NoError(t, p.say())
		if len(m) > 0 {
			p.until(func(f http2.Frame) bool { _, ok := f.(*http2.PingFrame); return ok }) // the server has read it all
		}
	}
	assert.Equal(t, "0", p.status(1)["grpc-status"])
}
