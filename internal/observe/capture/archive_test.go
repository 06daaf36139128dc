package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/internal/testing/mounttest"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// archived returns a recorder that has an archive. All calls of Put are notable.
func archived(bytes int) *capture.Recorder {
	return capture.NewRecorder(capture.Config{
		Bytes: bytes, Redact: redactor, Schema: muxtest.Library, Notable: func(m string) bool { return m == muxtest.Method("Put") },
	})
}

// items are those of a list, each with the entries of its map in several orders.
var items = func() (all [40][2][]byte) {
	labels := [...]string{`labels {key: "app" value: "web"}`, `labels {key: "tier" value: "front"}`, `labels {key: "zone" value: "seven"}`}
	for k := range all {
		for order := range all[k] {
			slices.Reverse(labels[order:])
			all[k][order] = muxtest.Bytes("ListResponse", fmt.Sprintf(`books {id: "beta.io__%064d" %s %s %s}`, k, labels[0], labels[1], labels[2])).Bytes()
		}
	}
	return all
}()

// poll records a call on both legs, as kubelet makes it all the time: the list is the same, but its items and the entries of
// their maps are in another order.
func poll(t testing.TB, rec *capture.Recorder, i int, end error) {
	var list []byte
	for _, k := range rand.Perm(len(items)) {
		list = append(list, items[k][rand.IntN(len(items[k]))]...)
	}
	reply := codec.NewFrame(list)
	request := codec.NewFrame(fmt.Appendf(nil, "\x0a\x05%05d", i))
	md := metadata.Pairs(":authority", "localhost", "content-type", "application/grpc", "user-agent", "grpc-go/1.76.0")
	ctx, front := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true, Metadata: md, Peer: capture.Peer{PID: 7, Name: "kubelet"}})
	front.Request(request)
	_, back := rec.Begin(ctx, capture.LegInfo{Method: muxtest.Method("List"), Backend: "beta.io", Metadata: md})
	back.Request(request)
	if end == nil {
		back.Reply(reply)
		front.Reply(reply)
	}
	back.End(end, nil)
	front.End(end, nil)
}

// polls records n polls, which the archive takes soon. Some may fail.
func polls(t testing.TB, rec *capture.Recorder, n int, failing map[int]error) {
	for i := range n {
		if poll(t, rec, i, failing[i]); i%5 == 0 {
			settle(rec)
		}
	}
}

const perPoll = 8 // events, if it succeeds

// settle waits until the archive has all that was recorded.
func settle(rec *capture.Recorder) []byte {
	data, _ := rec.Snapshot(&header)
	return data
}

// Only the order of entries of maps may differ, which protobuf leaves open.
func requireSame(t testing.TB, want, got capture.Event) {
	t.Helper()
	require.Equal(t, want.Seq, got.Seq)
	require.True(t, want.Time.Equal(got.Time), "event %d: %s, not %s", want.Seq, got.Time, want.Time)
	want.Time, got.Time = time.Time{}, time.Time{}
	if want.Kind == capture.Request || want.Kind == capture.Reply {
		name := "ListResponse"
		if want.Kind == capture.Request {
			name = "ListRequest"
		}
		a, b := dynamicpb.NewMessage(muxtest.Message(name)), dynamicpb.NewMessage(muxtest.Message(name))
		require.NoError(t, proto.Unmarshal(want.Payload, a))
		require.NoError(t, proto.Unmarshal(got.Payload, b))
		require.True(t, proto.Equal(a, b), "event %d", want.Seq)
		require.Len(t, got.Payload, len(want.Payload))
		want.Payload, got.Payload = nil, nil
	}
	require.Equal(t, want, got)
}

func TestTheArchiveHasEachCallAsItWas(t *testing.T) {
	const n = 500
	rec := archived(16 << 20)
	var live []capture.Event
	f := rec.Follow(true)
	for i := range n {
		poll(t, rec, i, nil)
		live = append(live, there(f)...)
		if i%20 == 0 {
			settle(rec)
		}
	}
	require.Equal(t, n*perPoll, len(live))
	sent := 0
	for _, ev := range live {
		sent += len(ev.Payload)
	}
	file := settle(rec)
	assert.Less(t, len(file)*50, sent, "%d bytes of messages took %d", sent, len(file))
	_, restored := decode(t, file)
	other := archived(16 << 20)
	require.NoError(t, other.Restore(file))
	for name, all := range map[string][]capture.Event{"of this process": recorded(t, rec), "of the file": restored, "of the next process": recorded(t, other)} {
		require.Equal(t, len(live), len(all), name)
		for i := range all {
			requireSame(t, live[i], all[i])
		}
	}
}

// While the ring forgets what the archive has got meanwhile, a follower sees each event once and in order.
func TestFollowersOfTheArchiveMissNothing(t *testing.T) {
	rec := archived(4 << 20)
	var archiving, reading sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	archiving.Go(func() { rec.Archive(ctx) })
	const n, followers = 600, 3
	for k := range followers {
		began := make(chan struct{})
		reading.Go(func() {
			f := rec.Follow(true)
			close(began)
			next := uint64(1)
			for next <= n*perPoll {
				var ev capture.Event
				if !assert.NoError(t, f.Next(t.Context(), &ev)) || !assert.Equal(t, next, ev.Seq, "kind %v, missed %d", ev.Kind, ev.Missed) {
					return
				}
				next++
			}
		})
		<-began
		for i := range n / followers {
			poll(t, rec, i, nil)
			if i%10 == k {
				settle(rec)
			}
		}
	}
	reading.Wait()
	stop()
	archiving.Wait()
	assert.Zero(t, rec.Missed())
}

func TestUnchangedCallsAreForgottenBeforeFailures(t *testing.T) {
	rec := archived(256 << 10)
	failing := map[int]error{}
	for i := 150; i < 6000; i += 300 {
		failing[i] = status.Error(codes.Unavailable, "the runtime is gone")
	}
	polls(t, rec, 6000, failing)
	settle(rec)
	failures, first := 0, uint64(0)
	var gap capture.Event
	all := recorded(t, rec)
	for i, ev := range all {
		switch {
		case ev.Kind == capture.Missed:
			require.Zero(t, gap.Missed, "there is one gap: between the notable calls and all calls")
			gap = ev
		case gap.Missed > 0 && first == 0:
			first = ev.Seq
		case gap.Missed > 0:
			require.Equal(t, all[i-1].Seq+1, ev.Seq, "from there on all are there")
		case ev.Kind == capture.End && ev.Leg == 0:
			require.Equal(t, codes.Unavailable, ev.Code)
		}
		if ev.Kind == capture.End && ev.Leg == 0 && ev.Code == codes.Unavailable {
			failures++
		}
	}
	assert.Equal(t, 20, failures, "all of them")
	assert.Greater(t, first, uint64(3000*perPoll), "older calls are forgotten")
	reach := rec.Reach()
	assert.True(t, reach.Notable.Before(reach.All))
	assert.Equal(t, all[0].Time.UnixNano(), reach.Notable.UnixNano())
}

// What the archive and its files have was without secrets before it was compressed.
func TestBlocksHoldNoSecrets(t *testing.T) {
	rec := archived(0)
	for range 100 {
		_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("Put"), Client: true, Metadata: metadata.Pairs("authorization", "Bearer planted", "app", "web")})
		leg.Request(muxtest.Frame(t, "PutRequest", `book {id: "7f" title: "planted"} labels {key: "password" value: "planted"}`))
		leg.Reply(muxtest.Frame(t, "Book", `title: "planted"`))
		leg.End(nil, metadata.Pairs("set-cookie", "planted"))
	}
	file := settle(rec)
	plain := capture.Unpacked(file)
	assert.Contains(t, string(plain), "web", "it is what the blocks hold")
	assert.NotContains(t, string(plain), "planted")
	h, all := decode(t, file)
	assert.Equal(t, header.Listen, h.Listen)
	for _, f := range capture.Formats {
		assert.NotContains(t, string(encode(t, f, all)), "planted")
	}
}

// blocks returns a file of several blocks, and the events in it.
func blocks(t testing.TB) (file []byte, all []capture.Event) {
	rec := archived(256 << 10)
	polls(t, rec, 2000, nil)
	file = settle(rec)
	_, all = decode(t, file)
	return file, all
}

func TestWhatCannotBeReadIsAGap(t *testing.T) {
	file, all := blocks(t)
	starts := capture.PartsOf(file) // of blocks, without their indices
	require.Greater(t, len(starts), 10)
	gaps := func(t *testing.T, got []capture.Event) (missed, last uint64) {
		last = got[0].Seq - 1
		for _, ev := range got {
			if ev.Kind == capture.Missed {
				missed += ev.Missed
				last += ev.Missed
				continue
			}
			require.Equal(t, last+1, ev.Seq, "what is missing has been said")
			last = ev.Seq
		}
		return missed, last
	}
	end := len(starts) - 1
	for where, k := range map[string]int{"in the middle": end / 2, "at the end": end} {
		hole := len(file)
		if k < end {
			hole = starts[k+1] + 3
		}
		for name, change := range map[string]func(b []byte){
			"a byte is another":   func(b []byte) { b[starts[k]+20] ^= 1 },
			"a length is another": func(b []byte) { b[starts[k]+7] ^= 0xff },
			"a newer version":     func(b []byte) { b[starts[k]+3] = 99 },
			"a hole of zeros":     func(b []byte) { clear(b[starts[k]+1 : hole]) },
		} {
			if k == end && name == "a length is another" {
				continue // as if the process had been killed
			}
			t.Run(name+" "+where, func(t *testing.T) {
				damaged := bytes.Clone(file)
				change(damaged)
				_, got := decode(t, damaged)
				missed, last := gaps(t, got)
				assert.Positive(t, missed)
				if k < end {
					assert.Equal(t, all[len(all)-1].Seq, last, "what comes later is there")
				} else {
					assert.Equal(t, capture.Missed, got[len(got)-1].Kind)
				}
				for _, ev := range got {
					if ev.Kind != capture.Missed {
						requireSame(t, all[ev.Seq-all[0].Seq], ev)
					}
				}
				rec := archived(0)
				assert.Error(t, rec.Restore(damaged))
				poll(t, rec, 1, nil)
				missed, last = gaps(t, recorded(t, rec))
				assert.Positive(t, missed)
				assert.Equal(t, rec.Recorded(), last)
			})
		}
	}
	_, got := decode(t, file[:len(file)-5]) // as a process that is killed may leave it
	assert.NotEmpty(t, got)
	assert.NoError(t, archived(0).Restore(file[:len(file)-5]))
}

func TestAClockThatIsSetBackChangesNoOrder(t *testing.T) {
	rec := archived(0)
	base := time.Now()
	var want []capture.Event
	for i, at := range []time.Duration{0, time.Hour, -time.Hour, 50 * 365 * 24 * time.Hour, time.Second} {
		want = append(want, capture.Event{Seq: uint64(i + 1), Call: 1, Kind: capture.Header, Time: base.Add(at).Round(0), Mono: time.Duration(i)})
	}
	for i := range want {
		rec.Add(&want[i])
	}
	_, got := decode(t, settle(rec))
	require.Equal(t, len(want), len(got))
	for i := range got {
		assert.True(t, want[i].Time.Equal(got[i].Time), "%v, not %v", got[i].Time, want[i].Time)
		assert.Equal(t, want[i].Mono, got[i].Mono)
		assert.Equal(t, want[i].Seq, got[i].Seq)
	}
}

func TestTheFileHasWhatTheProcessThatCrashedHad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "recorder-1.blocks")
	rec := archived(256 << 10)
	k := capture.NewKeeper(rec, path, func() capture.FileHeader { return header })
	require.NoError(t, os.WriteFile(filepath.Dir(path), nil, 0o600))
	for i := range 2000 {
		poll(t, rec, i, nil)
		if i%5 == 0 {
			settle(rec)
			err := k.Write()
			if i < 500 {
				require.Error(t, err, "there is a file in place of the folder")
				continue
			}
			if i == 500 {
				require.NoError(t, os.Remove(filepath.Dir(path)))
				require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
				err = k.Write()
			}
			require.NoError(t, err)
		}
	}
	settle(rec)
	require.NoError(t, k.Write()) // and now it is killed
	next := archived(256 << 10)
	var files [][]byte
	for _, name := range []string{filepath.Join(filepath.Dir(path), "recorder-1.1.blocks"), path} {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		files = append(files, data)
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	require.NoError(t, next.Restore(files...))
	assert.Equal(t, rec.Recorded(), next.Recorded())
	assert.Equal(t, rec.Recorded(), next.Inherited())
	was, is := recorded(t, rec), recorded(t, next)
	require.Greater(t, len(is)*10, len(was)*9, "all but at most a block, because the last one counts now")
	was = was[len(was)-len(is):]
	for i := range is {
		requireSame(t, was[i], is[i])
	}
}

// A simulation of the daemon can stop time while nothing is recorded.
func TestTheArchiveWaitsForNothingButEvents(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		rec := archived(0)
		done := make(chan struct{})
		go func() { rec.Archive(context.Background()); close(done) }()
		synctest.Wait()
		poll(t, rec, 1, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, uint64(perPoll), capture.Archived(rec))
		rec.Close()
		<-done
	})
}

// While a machine has much else to do, a round takes long but is little work: the next one must not wait for that.
func TestTheArchivePausesForItsWorkAndNotForTheMachine(t *testing.T) {
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		const late = time.Minute
		rec := capture.NewRecorder(capture.Config{Schema: muxtest.Library, Notable: func(string) bool {
			time.Sleep(late)
			return false
		}})
		done := make(chan struct{})
		go func() { rec.Archive(context.Background()); close(done) }()
		poll(t, rec, 1, nil)
		time.Sleep(2 * late)
		poll(t, rec, 2, nil)
		time.Sleep(time.Second)
		assert.Equal(t, uint64(2*perPoll), capture.Archived(rec))
		rec.Close()
		<-done
	})
}

// The ring uses the memory of old events for new ones, but not while the archive or a Writer reads them.
func TestAnEventIsNotOverwrittenWhileItIsRead(t *testing.T) {
	reading, goOn := make(chan struct{}), make(chan struct{})
	rec := capture.NewRecorder(capture.Config{Bytes: 64 << 10, Schema: muxtest.Library, Notable: func(method string) bool {
		if method == muxtest.Method("Put") {
			close(reading)
			<-goOn
		}
		return false
	}})
	calls := 0
	call := func(method string) {
		calls++
		_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method(method), Client: true})
		leg.Request(codec.NewFrame(message(calls)))
		leg.End(nil, nil)
	}
	for range 100 {
		call("List")
	}
	call("Put")
	for range 10 { // in the same chunk
		call("List")
	}
	done := make(chan struct{})
	go func() { rec.Archive(context.Background()); close(done) }()
	<-reading
	for range 1000 {
		call("List")
	}
	close(goOn)
	_, all := decode(t, settle(rec))
	require.NotEmpty(t, all)
	for _, ev := range all {
		if ev.Kind == capture.Request {
			require.Equal(t, message(int(ev.Call)), ev.Payload, "event %d", ev.Seq)
		}
	}
	rec.Close()
	<-done
}

// message returns a request of a length of its own.
func message(call int) []byte {
	text := fmt.Sprintf("%0*d", 5+call%97, call)
	return append([]byte{0x0a, byte(len(text))}, text...)
}

func FuzzBlocks(f *testing.F) {
	rec := archived(0)
	session(f, rec)
	poll(f, rec, 1, nil)
	rec.Change(capture.Change{What: capture.Gone, Backend: "beta.io", Time: time.Unix(1, 0)})
	file := settle(rec)
	f.Add(file)
	for _, plain := range capture.PlainBlocks(file) {
		f.Add(capture.FileOf(plain))
	}
	f.Add(file[:len(file)/2])
	f.Add([]byte(`{"From":2,"Shown":"2026-01-01T00:00:00Z","Large":2,"Left":[{"first":1,"last":9,"to":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// a file, and a block with these bytes, and a file for a reader that has asked for this
		for _, file := range [][]byte{append([]byte("CRB"), data...), capture.FileOf(data), append(capture.AskedFor(data), file...)} {
			r, err := capture.NewReader(bytes.NewReader(file))
			if err != nil {
				continue
			}
			var ev capture.Event
			for n := 0; r.Next(&ev) == nil && n < 1000; n++ {
				require.LessOrEqual(t, len(ev.Payload), 256<<20)
			}
			next := archived(0)
			next.RestoreLater([]*io.SectionReader{io.NewSectionReader(bytes.NewReader(file), 0, int64(len(file)))}, func(error) {})
			next.Reach()
		}
	})
}

func TestAFollowerDoesNotUnpackWhatNobodyWants(t *testing.T) {
	rec := archived(512 << 10)
	polls(t, rec, 3000, map[int]error{1500: status.Error(codes.Unavailable, "the runtime is gone")})
	settle(rec)
	rec.Close()
	all := drain(t, rec.Follow(true))
	from, to := all[len(all)/2].Time, all[len(all)/2+100].Time
	part := drain(t, rec.FollowWanted(capture.Want{Since: from, Until: to}))
	assert.Equal(t, all[len(all)/2:len(all)/2+101], part)
	asked, failed := 0, 0
	some := drain(t, rec.FollowWanted(capture.Want{Failed: true, Method: func(method string) bool {
		assert.Equal(t, muxtest.Method("List"), method)
		asked++
		return true
	}}))
	assert.Greater(t, asked, 10)
	assert.Less(t, len(some), len(all)/4)
	assert.Equal(t, all[len(all)-1].Seq, some[len(some)-1].Seq, "the reader sees that it has caught up")
	for _, ev := range some {
		if ev.Code == codes.Unavailable {
			failed++
		}
	}
	assert.Positive(t, failed)
}

// Of a call that failed in another block than it began, tail -status '!OK' had only the end, which it does not show.
func TestAFailureIsFoundWithItsBeginning(t *testing.T) {
	rec := archived(1 << 20)
	begin := func() *capture.Leg {
		_, leg := rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true})
		leg.Request(codec.NewFrame([]byte{10, 1, '7'}))
		return leg
	}
	noise := rand.New(rand.NewPCG(1, 2))
	fill := func(calls int) {
		for range calls { // each takes a fifth of a block
			leg := begin()
			bytes := make([]byte, 1024)
			for i := range bytes {
				bytes[i] = byte(noise.Uint32())
			}
			leg.Reply(muxtest.Frame(t, "ListResponse", fmt.Sprintf(`books {id: "%x"}`, bytes)))
			leg.End(nil, nil)
			settle(rec)
		}
	}
	failure := status.Error(codes.Unavailable, "the runtime is gone")
	fill(10)
	failed := begin()
	fill(30)
	failed.End(failure, nil)
	crashed := settle(rec)
	fill(20)
	fails := begin()
	fill(20)
	whole := func(rec *capture.Recorder, want int) {
		t.Helper()
		kinds, others := map[uint64][]capture.Kind{}, 0
		found := 0
		for _, ev := range drain(t, rec.FollowWanted(capture.Want{Failed: true})) {
			kinds[ev.Call] = append(kinds[ev.Call], ev.Kind)
			switch {
			case ev.Kind == capture.Reply:
				others++
			case ev.Code == codes.Unavailable:
				found++
				assert.Equal(t, []capture.Kind{capture.Start, capture.Request, capture.End}, kinds[ev.Call])
			}
		}
		assert.Equal(t, want, found)
		assert.LessOrEqual(t, others, 40, "of 80: other blocks are left out")
	}
	file := settle(rec)
	fails.End(failure, nil) // the archive does not have it yet
	rec.Close()
	whole(rec, 2)
	for _, file := range [][]byte{file, crashed} {
		next := archived(1 << 20)
		require.NoError(t, next.Restore(file))
		next.Close()
		whole(next, 1)
	}
}

// An hour of calls was copied into one buffer before it was written: Go's heap kept that size.
func TestAKeeperCopiesNothingToWriteIt(t *testing.T) {
	rec := archived(4 << 20)
	file, _ := blocks(t)
	require.NoError(t, rec.Restore(file))
	path := filepath.Join(t.TempDir(), "recorder-1.blocks")
	k := capture.NewKeeper(rec, path, func() capture.FileHeader { return header })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, k.Write())
	runtime.ReadMemStats(&after)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Less(t, int64(after.TotalAlloc-before.TotalAlloc), info.Size()/2)
}

// What was written before the disk was full stays readable. When there is room again, the file gets what is in memory, and
// says how many events were forgotten meanwhile.
func TestARecordingOnAFullDiskNamesItsGap(t *testing.T) {
	dir := mounttest.Tmpfs(t, "full disks", "size=1m,mode=0700")
	path, ballast := filepath.Join(dir, "recorder-1.blocks"), filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 896<<10), 0o600))
	rec := archived(1 << 20)
	k := capture.NewKeeper(rec, path, func() capture.FileHeader { return header })
	read := func() (kept, missed, last uint64) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		_, all := decode(t, data)
		for _, ev := range all {
			if ev.Kind == capture.Missed {
				missed += ev.Missed
				continue
			}
			kept++
			last = ev.Seq
		}
		return kept, missed, last
	}
	i := 0
	write := func() error {
		for range 20 {
			poll(t, rec, i, nil)
			i++
		}
		settle(rec)
		return k.Write()
	}
	var err error
	for written := uint64(0); ; written = rec.Recorded() {
		if err = write(); err != nil {
			kept, missed, _ := read()
			require.Equal(t, written, kept)
			require.Zero(t, missed)
			break
		}
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	before, _, _ := read()
	for full := time.Now(); !rec.Reach().All.After(full); { // until the archive has forgotten what the file lacks
		require.ErrorIs(t, write(), unix.ENOSPC)
	}
	now, missed, _ := read()
	require.Equal(t, before, now, "the rest is as it was")
	require.Zero(t, missed)
	require.NoError(t, os.Remove(ballast))
	require.NoError(t, write())
	kept, missed, last := read()
	assert.Equal(t, rec.Recorded(), last)
	assert.Positive(t, missed)
	assert.Equal(t, rec.Recorded(), kept+missed, "each event is there, or known to be missing")
}

// A block that has only changes has no time of its own: what follows began to count in 1970.
func TestARecordingOfChangesAloneHasNoTime(t *testing.T) {
	rec := archived(1 << 20)
	rec.Change(capture.Change{What: capture.Serving, Time: time.Now()})
	data, _ := rec.Snapshot(&capture.FileHeader{Version: capture.Version})
	next := archived(1 << 20)
	require.NoError(t, next.Restore(data))
	assert.Equal(t, uint64(1), next.Inherited())
	assert.Zero(t, next.Kept())
}

// tail -since 10m took a second, because it got all of the ten minutes before, in which a call may have begun.
func TestALeadHasTheCallsUnderWayAndWhatIsNew(t *testing.T) {
	rec := archived(2 << 20)
	var long *capture.Leg
	for i := range 2000 {
		switch i {
		case 300:
			_, long = rec.Begin(t.Context(), capture.LegInfo{Method: muxtest.Method("List"), Client: true})
			long.Request(codec.NewFrame([]byte("\x0a\x04long")))
		case 1900:
			long.End(nil, nil)
		}
		poll(t, rec, i, nil)
		if i%5 == 0 {
			settle(rec)
		}
	}
	next := archived(2 << 20)
	require.NoError(t, next.Restore(settle(rec)))
	for name, rec := range map[string]*capture.Recorder{"of this process": rec, "of the one before": next} {
		rec.Close()
		all := drain(t, rec.Follow(true))
		require.Len(t, all, 2000*perPoll+3)
		from := len(all) * 3 / 4
		got := drain(t, rec.FollowWanted(capture.Want{Shown: all[from].Time}))
		at := slices.IndexFunc(got, func(ev capture.Event) bool { return ev.Seq == all[from].Seq })
		require.Positive(t, at, name)
		assert.Equal(t, all[from:], got[at:], "%s: since then all is there", name)
		assert.Less(t, 4*at, from, "%s: most of what was before is not", name)
		known, ends := map[string]bool{}, map[uint64]int{}
		var longs []capture.Kind
		for _, ev := range got[:at] {
			require.NotEqual(t, capture.Missed, ev.Kind)
			if ev.Kind == capture.End {
				ends[ev.Call]++
			} else {
				ends[ev.Call] += 0
			}
			if bytes.Contains(ev.Payload, []byte("long")) || len(longs) == 0 && ev.Kind == capture.Start && ev.Seq == 300*perPoll+1 {
				longs = append(longs, ev.Kind)
			}
			for k := range items {
				if id := fmt.Sprintf("%064d", k); ev.Leg == 0 && bytes.Contains(ev.Payload, []byte(id)) {
					known[id] = true
				}
			}
		}
		assert.Equal(t, []capture.Kind{capture.Start, capture.Request}, longs, name)
		assert.Len(t, known, len(items), name)
		for call, n := range ends {
			if !slices.ContainsFunc(got[at:], func(ev capture.Event) bool { return ev.Call == call }) {
				assert.Equal(t, 1, n, "%s: a call that ended before ends", name)
			}
		}
		late := drain(t, rec.FollowWanted(capture.Want{Shown: all[len(all)-2].Time}))
		if name == "of this process" {
			assert.Less(t, 4*len(late), len(all))
		} else {
			assert.Equal(t, all, late, "the block has no index that says which calls were under way")
		}
	}
}
