package limits

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/testkit"
)

// A list of 4 messages of which 2 come late.
func TestAPromiseIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = director.StreamWindow
		m := newHolder()
		m.total, m.maxMessage = 64*window, 16*window
		m.free = semaphore.NewWeighted(m.total)
		m.lists(8 * window)
		h := m.call()
		require.NoError(t, h.begin(t.Context()))
		assert.EqualValues(t, 8*window, m.taken.Load())
		time.Sleep(2 * lullTime)
		assert.EqualValues(t, window, m.taken.Load(), "a runtime may send that much unasked")
		require.NoError(t, h.room(t.Context()))
		assert.EqualValues(t, 8*window, m.taken.Load(), "one answers")
		time.Sleep(2 * lullTime)
		assert.EqualValues(t, 8*window, m.taken.Load(), "it is still coming")
		h.arrived(4 * window)
		time.Sleep(2 * lullTime)
		assert.EqualValues(t, 5*window, m.taken.Load(), "the other one hangs")
		require.NoError(t, h.room(t.Context()))
		h.arrived(5 * window)
		assert.EqualValues(t, 9*window, m.taken.Load(), "more than was expected")
		h.sends(9 * window)
		assert.EqualValues(t, 9*window, m.taken.Load())
		h.done()
		m.isFree(t)
	})
}

// A request to a runtime may go on after the client has left or has its answer.
func TestRepliesOfACallThatIsOverNeedNoRoom(t *testing.T) {
	m := newHolder()
	m.lists(unknownSize)
	h := m.call()
	h.done()
	require.True(t, m.free.TryAcquire(m.total))
	require.NoError(t, h.room(t.Context()))
	h.arrived(large)
	m.free.Release(m.total)
	m.isFree(t)
}

// A call that waits for room is made as a stream. Nobody is to notice.
func TestACallInRoomIsAsAnyOther(t *testing.T) {
	reply := codec.NewFrame(bytes.Repeat([]byte{0x0a, 0x01, 'x'}, 1<<20))
	l, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "r.sock"))
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.Raw), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		ss.SetTrailer(metadata.Pairs("after", "b"))
		if err := ss.RecvMsg(&codec.Frame{}); err != nil {
			return err
		}
		switch md.Get("do")[0] {
		case "answer":
			return errors.Join(ss.SetHeader(metadata.Pairs("before", "a")), ss.SendMsg(reply))
		case "fail":
			return status.Error(codes.NotFound, "there is none")
		case "fail late":
			return errors.Join(ss.SendMsg(reply), status.Error(codes.DataLoss, "it is wrong"))
		case "answer twice":
			return errors.Join(ss.SendMsg(reply), ss.SendMsg(reply))
		}
		return nil // and no reply
	}))
	go server.Serve(l) // ends with the test
	t.Cleanup(server.Stop)
	conn, err := director.NewConn(director.ConnConfig{Name: "beta.io", Address: l.Addr().String()})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // nothing is left to be done
	c := NewConn(conn, "beta.io", 1)
	call := func(do string, counted bool) (f *codec.Frame, header, trailer metadata.MD, err error) {
		m := newHolder()
		m.maxMessage = 4 * large
		m.who.Socket = &Socket{}
		m.who.Socket.Main.Store(true)
		m.lists(unknownSize)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "do", do)
		h := m.call()
		if counted {
			ctx = context.WithValue(ctx, reservationKey{}, h)
		}
		m.total = 16 * large
		m.free = semaphore.NewWeighted(m.total)
		f = &codec.Frame{}
		err = c.Invoke(ctx, "/a.B/C", &codec.Frame{}, f, grpc.Header(&header), grpc.Trailer(&trailer))
		h.done()
		m.isFree(t)
		assert.Zero(t, c.Calls.N.Load())
		return f, header, trailer, err
	}
	for _, do := range []string{"answer", "fail", "fail late"} {
		f, header, trailer, err := call(do, true)
		plain, plainHeader, plainTrailer, plainErr := call(do, false)
		assert.Equal(t, status.Convert(plainErr).Proto().String(), status.Convert(err).Proto().String(), do)
		assert.Equal(t, plainHeader, header, do)
		assert.Equal(t, plainTrailer, trailer, do)
		if plainErr == nil {
			assert.True(t, bytes.Equal(plain.Bytes(), f.Bytes()), do)
		}
	}
	_, _, _, err = call("answer twice", true)
	testkit.AssertCode(t, codes.Internal, err)
	_, _, _, err = call("nothing", true)
	testkit.AssertCode(t, codes.Internal, err)
}
