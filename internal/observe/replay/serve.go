package replay

import (
	"context"
	"errors"
	"io"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/criproxy/criproxy/codec"
)

// Handler returns the handler for a server that has the codec [codec.Raw] and no services. It answers methods that were
// not recorded with Unimplemented.
func (f *Fixture) Handler() grpc.StreamHandler {
	return func(_ any, ss grpc.ServerStream) error {
		began := time.Now()
		method, _ := grpc.MethodFromServerStream(ss)
		request := &codec.Frame{}
		received := 1
		if err := ss.RecvMsg(request); errors.Is(err, io.EOF) {
			received = 0
		} else if err != nil {
			return err
		}
		c, equal := f.choose(method, request.Bytes())
		if c == nil {
			f.cfg.Report(Played{Method: method, Code: codes.Unimplemented})
			return status.Errorf(codes.Unimplemented, "criproxy: the recording has no call of %s", method)
		}
		err := f.play(ss, c, began, received)
		f.cfg.Report(Played{Method: method, Call: c.ID, Equal: equal, Code: status.Code(err)})
		return err
	}
}

// play answers a call as it was answered in the recording.
func (f *Fixture) play(ss grpc.ServerStream, c *recorded, began time.Time, received int) error {
	if len(c.Header) > 0 {
		if err := ss.SetHeader(pairs(c.Header)); err != nil {
			return err
		}
	}
	for _, m := range c.Replies {
		for i := received; i < len(c.Requests) && c.Requests[i].When < m.When; i++ { // requests that came before this reply
			if ss.RecvMsg(&codec.Frame{}) != nil {
				break
			}
			received++
		}
		if len(c.Replies) > 1 || c.open() {
			if err := f.frontier.reach(ss.Context(), m.When); err != nil { // wait for the changes that were recorded before it
				return status.FromContextError(err).Err()
			}
		}
		f.wait(ss.Context(), c, began, m.When)
		if m.Truncated {
			return status.Errorf(codes.DataLoss, "criproxy: the end of this message was not recorded; record with a larger -flight-recorder")
		}
		if err := ss.SendMsg(codec.NewFrame(m.Payload)); err != nil {
			return err
		}
	}
	if c.open() { // the client ends it
		<-ss.Context().Done()
		return status.FromContextError(ss.Context().Err()).Err()
	}
	for received < len(c.Requests) && ss.RecvMsg(&codec.Frame{}) == nil {
		received++
	}
	f.wait(ss.Context(), c, began, c.Finished)
	ss.SetTrailer(pairs(c.Trailer))
	if len(c.Details) > 0 {
		s := &spb.Status{}
		if proto.Unmarshal(c.Details, s) == nil && s.GetCode() == int32(c.Code) {
			return status.FromProto(s).Err()
		}
	}
	return status.Error(c.Code, c.Message)
}

// wait sleeps as long as the recorded server took, divided by Speed.
func (f *Fixture) wait(ctx context.Context, c *recorded, began time.Time, when time.Duration) {
	if f.cfg.Speed > 0 {
		sleep(ctx, time.Until(began.Add(time.Duration(float64(when-c.Began)/f.cfg.Speed))))
	}
}
