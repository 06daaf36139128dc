package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/testbed/proxy"
)

// A witness notes each call as its client sees it. The calls carry their numbers, so that they can be found in a recording.
type witness struct {
	mu    sync.Mutex
	calls []witnessed // :: number
}

type witnessed struct {
	method   string
	code     codes.Code
	from, to time.Time // to is zero while the call is under way
	sure     bool      // criproxy has ended the call, and not its client or the end of the connection
}

// intercept is an interceptor for a client.
func (w *witness) intercept(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	w.mu.Lock()
	number := len(w.calls)
	w.calls = append(w.calls, witnessed{method: method, from: time.Now()})
	w.mu.Unlock()
	err := invoke(metadata.AppendToOutgoingContext(ctx, "witness", strconv.Itoa(number)), method, request, reply, cc, opts...)
	w.mu.Lock()
	defer w.mu.Unlock()
	call := &w.calls[number]
	call.code, call.to = status.Code(err), time.Now()
	unsure := []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded}
	call.sure = !slices.Contains(unsure, call.code) || strings.HasPrefix(status.Convert(err).Message(), "criproxy: ")
	return err
}

// seen returns the calls so far.
func (w *witness) seen() []witnessed {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

// forget leaves out the calls so far, because their times are not by the clock of now: whether the recording should have them
// cannot be said.
func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.calls {
		w.calls[i].sure = false
	}
}

// clockStep is how far the clock of an event, which counts from the beginning of its call, may be off.
const clockStep = 50 * time.Millisecond

// compare returns an error unless a recording has each of the calls once, as its client saw it, and at the time when it made the
// call. A call may be missing only if it began before the recording reaches back to, or where the recording says that events
// are missing. compare returns how many calls it has compared.
func compare(seen []witnessed, recording *capture.Reader, reach time.Time) (compared int, err error) {
	recorded, number := map[int]*witnessed{}, map[uint64]int{}
	var errs []error
	var gaps [][2]time.Time
	var last time.Time
	for {
		var ev capture.Event
		if err := recording.Next(&ev); err == io.EOF {
			break
		} else if err != nil {
			return 0, err
		}
		switch {
		case ev.Kind == capture.Missed:
			gaps = append(gaps, [2]time.Time{last, ev.Time})
		case ev.Kind == capture.Changed && !ev.Change.Missing.IsZero(): // the process before was killed
			gaps = append(gaps, [2]time.Time{ev.Change.Missing, ev.Change.Time})
		}
		last = ev.Time
		n, known := number[ev.Call]
		switch md := ev.Metadata.Get("witness"); {
		case ev.Leg > 0:
		case ev.Kind == capture.Start && len(md) == 1:
			n, _ = strconv.Atoi(md[0])
			if recorded[n] != nil {
				errs = append(errs, fmt.Errorf("call %d is there twice", n))
			}
			number[ev.Call], recorded[n] = n, &witnessed{method: ev.Method, from: ev.Time}
		case ev.Kind == capture.End && known:
			recorded[n].code, recorded[n].to = ev.Code, ev.Time
		}
	}
	for n, saw := range seen {
		missing := saw.from.Before(reach) || slices.ContainsFunc(gaps, func(g [2]time.Time) bool {
			return saw.from.Add(-clockStep).Before(g[1]) && saw.to.Add(clockStep).After(g[0])
		})
		switch is := recorded[n]; {
		case !saw.sure || missing && (is == nil || is.to.IsZero()):
		case is == nil:
			errs = append(errs, fmt.Errorf("call %d, %s, from %s, is not there", n, saw.method, saw.from))
		case is.method != saw.method || is.code != saw.code:
			errs = append(errs, fmt.Errorf("call %d is %s with %s, and was %s with %s", n, is.method, is.code, saw.method, saw.code))
		case is.from.Before(saw.from.Add(-clockStep)) || is.to.After(saw.to.Add(clockStep)) || is.to.IsZero():
			errs = append(errs, fmt.Errorf("call %d was from %s to %s, and is from %s to %s", n, saw.from, saw.to, is.from, is.to))
		default:
			compared++
		}
	}
	return compared, errors.Join(errs...)
}

// evidence compares what criproxy has recorded with what the clients saw so far, and returns how many calls it has compared.
func (w *world) evidence() (compared int) {
	w.Helper()
	seen := w.witness.seen()
	w.eventually("the recording has what clients saw", func() error { // the end of a call may be recorded after its client has the answer
		var report admin.Report
		if err := proxy.AskJSON(w.Context(), w.proxy.Admin(), "/status", &report); err != nil {
			return err
		}
		answer, err := proxy.Ask(w.Context(), w.proxy.Admin(), "/events?blocks=1")
		if err != nil {
			return err
		}
		recording, err := capture.NewReader(bytes.NewReader(answer))
		if err != nil {
			return err
		}
		compared, err = compare(seen, recording, report.Recorder.Oldest)
		return err
	})
	return compared
}

// handOver makes another process take over. It has at least half of the calls that could be compared before.
func handOver(w *world, _ int) {
	before := w.evidence()
	gone, err := w.proxy.HandOver(w.Context())
	w.require(err)
	w.eventually("the old process to be gone", func() error {
		if !gone() {
			return errors.New("it is there")
		}
		return nil
	})
	if after := w.evidence(); 2*after < before {
		w.require(fmt.Errorf("after a handover the recorder has %d calls, and %d before", after, before))
	}
}

func TestAWitnessNoticesWhatIsNotRecordedAsItWas(t *testing.T) {
	began := time.Now()
	enc := capture.NewEncoder(capture.Binlog, nil)
	file := enc.Begin(nil, &capture.FileHeader{})
	for n := range 3 {
		call := capture.Event{Call: uint64(n + 1), Method: "/a/B", Time: began.Add(time.Duration(n) * time.Second)}
		call.Kind, call.Metadata = capture.Start, metadata.Pairs("witness", strconv.Itoa(n))
		file = enc.Append(file, &call)
		call.Kind, call.Metadata = capture.End, nil
		file = enc.Append(file, &call)
	}
	compared := func(change func(seen []witnessed) []witnessed) (int, error) {
		var seen []witnessed
		for n := range 3 {
			at := began.Add(time.Duration(n) * time.Second)
			seen = append(seen, witnessed{method: "/a/B", from: at, to: at, sure: true})
		}
		recording, err := capture.NewReader(bytes.NewReader(file))
		require.NoError(t, err)
		return compare(change(seen), recording, began)
	}
	n, err := compared(func(seen []witnessed) []witnessed { return seen })
	require.NoError(t, err)
	require.Equal(t, 3, n)
	_, err = compared(func(seen []witnessed) []witnessed {
		seen[0].code = codes.Aborted
		seen[1].to = seen[1].from.Add(-time.Hour)
		return append(seen, witnessed{method: "none", sure: true, from: began, to: began})
	})
	require.ErrorContains(t, err, "call 0 is /a/B with OK, and was /a/B with Aborted")
	require.ErrorContains(t, err, "call 1 was from")
	require.ErrorContains(t, err, "call 3, none, from")
}
