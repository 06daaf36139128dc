package transport

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// A receiver that always has a few messages to receive never emptied the inbox, which therefore grew with
// each message.
func TestOldMessagesLeaveTheListOfAStream(t *testing.T) {
	const messages = 100_000
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s"))
	require.NoError(t, err)
	most := make(chan int, 1)
	srv := NewServer(ServerConfig{Handler: func(_ any, ss grpc.ServerStream) error {
		s := &ss.(*serverStream).stream
		room := 0
		for range messages - 10 {
			for waiting := 0; waiting < 3; {
				s.conn.mu.Lock()
				waiting = len(s.inbox) - s.first
				room = max(room, cap(s.inbox))
				s.conn.mu.Unlock()
				runtime.Gosched()
			}
			if err := ss.RecvMsg(&codec.Frame{}); err != nil {
				return err
			}
		}
		most <- room
		return nil
	}})
	defer srv.Stop()
	go func() { assert.NoError(t, srv.Serve(l, nil)) }()
	client := NewClient(ClientConfig{Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
	}})
	defer client.Close()
	cs, err := client.Open(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s.S/M", nil)
	require.NoError(t, err)
	for range messages {
		if cs.Send(codec.NewFrame(make([]byte, 100))) != nil {
			break // the handler has received enough
		}
	}
	assert.Less(t, <-most, 4*wideWindow/(100+prefixLen), "the list is longer than the window allows")
}
