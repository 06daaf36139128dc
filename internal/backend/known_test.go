package backend_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/muxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// library is a server with books that a test can change, stop and hang.
type library struct {
	path   string
	server *muxtest.Server

	mu    sync.Mutex
	books map[string]string // :: id → the book, as text without the id
	fault func(ctx context.Context, method string) error
	calls []string
}

func newLibrary(t *testing.T, ids ...string) *library {
	l := &library{path: filepath.Join(muxtest.Dir(t), "l.sock"), books: map[string]string{}}
	for _, id := range ids {
		l.books[id] = ""
	}
	l.start(t)
	return l
}

func (l *library) start(t *testing.T) { l.server = muxtest.Serve(t, l.path, l.serve) }
func (l *library) stop()              { l.server.Stop() }

// with calls f, which may read and change the library, with its lock held.
func (l *library) with(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// called returns how often a method was called since the previous call of called.
func (l *library) called(method string) (n int) {
	l.with(func() {
		l.calls = slices.DeleteFunc(l.calls, func(m string) bool {
			if m == method {
				n++
			}
			return m == method
		})
	})
	return n
}

func (l *library) serve(method string, stream grpc.ServerStream) error {
	method = filepath.Base(method)
	request := &codec.Frame{}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	var fault func(context.Context, string) error
	l.with(func() {
		l.calls = append(l.calls, method)
		fault = l.fault
	})
	if fault != nil {
		if err := fault(stream.Context(), method); err != nil {
			return err
		}
	}
	switch method {
	case "Get":
		if request.Len() == 0 { // this is Alive
			return stream.SendMsg(&codec.Frame{})
		}
		id := strings.Trim(strings.TrimPrefix(muxtest.Text("GetRequest", request), "book_id: "), `"`)
		book, ok := "", false
		l.with(func() { book, ok = l.books[id] })
		if !ok {
			return status.Errorf(codes.NotFound, "no book %s", id)
		}
		return stream.SendMsg(muxtest.Bytes("Book", fmt.Sprintf("id: %q %s quotes {title: 'only in a status'}", id, book)))
	case "Put":
		_, id, _ := strings.Cut(muxtest.Text("PutRequest", request), "shelf: ")
		id = strings.Trim(id, `"`)
		l.with(func() { l.books[id] = "" })
		return stream.SendMsg(muxtest.Bytes("Book", fmt.Sprintf("id: %q", id)))
	case "Bind": // a change that no list shows
		return stream.SendMsg(&codec.Frame{})
	case "List", "Stream":
		// A library that applies no filter, as containerd does for images.
		return stream.SendMsg(muxtest.Bytes("ListResponse", l.list()))
	case "Chat":
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

func (l *library) list() string {
	var text []string
	l.with(func() {
		for id, book := range l.books {
			text = append(text, fmt.Sprintf("books {id: %q %s}", id, book))
		}
	})
	slices.Sort(text)
	return strings.Join(text, " ")
}

// settings are those of a link, and the Backend that it is for: nil means a new one.
type settings struct {
	backend.Config
	Backend *backend.Backend
}

// begin returns the Backend with its first link.
func (c settings) begin(t testing.TB) *backend.Backend {
	t.Helper()
	if c.Backend == nil {
		c.Backend = backend.Open(c.Name, backend.File{})
	}
	require.NoError(t, c.Backend.Use(c.Config))
	return c.Backend
}

// watched is a backend.Backend that runs, and its states.
type watched struct {
	*backend.Backend
	states chan backend.State
	stop   func()
}

// watch runs a backend.Backend in front of l until the test ends or stop is called.
func watch(t *testing.T, l *library, change func(*settings)) *watched {
	t.Helper()
	conn, err := dial.New(dial.Config{Name: "beta.io", Address: l.path})
	require.NoError(t, err)
	w := &watched{states: make(chan backend.State, 1000)}
	cfg := settings{Config: backend.Config{
		Name: "beta.io", Conn: conn, Schema: muxtest.Library, Package: muxtest.Package,
		Spec:     muxtest.LibraryProfile(t).Known,
		Absent:   conn.Absent,
		Alive:    muxtest.Method("Get"),
		Budget:   300 * time.Millisecond,
		Silence:  600 * time.Millisecond,
		Interval: 50 * time.Millisecond,
		Watch:    func(s backend.State) { w.states <- s },
	}}
	if change != nil {
		change(&cfg)
	}
	w.Backend = cfg.begin(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		assert.NoError(t, w.Run(ctx))
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		assert.NoError(t, conn.Close())
	})
	t.Cleanup(w.stop)
	return w
}

// patient has a backend never be late, however busy the machine is.
func patient(c *settings) { c.Budget, c.Silence = time.Hour, time.Hour }

// until waits for a state.
func (w *watched) until(t *testing.T, want backend.Condition) backend.State {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case s := <-w.states:
			if s.Condition == want {
				return s
			}
		case <-timeout:
			t.Fatalf("it did not become %s", want)
		}
	}
}

// settled waits until memory has the list and all statuses.
func settled(t *testing.T, w *watched, l *library) {
	t.Helper()
	require.Eventually(t, func() bool {
		books := 0
		l.with(func() { books = len(l.books) })
		return w.State().Seen && w.Statuses() >= books
	}, 20*time.Second, 10*time.Millisecond)
}

func (w *watched) list(t *testing.T, request string, opts ...grpc.CallOption) (string, error) {
	t.Helper()
	reply := &codec.Frame{}
	err := w.Invoke(t.Context(), muxtest.Method("List"), muxtest.Frame(t, "ListRequest", request), reply, opts...)
	return muxtest.Text("ListResponse", reply), err
}

func (w *watched) get(t *testing.T, id string) (string, error) {
	t.Helper()
	reply := &codec.Frame{}
	err := w.Invoke(t.Context(), muxtest.Method("Get"), muxtest.Frame(t, "GetRequest", fmt.Sprintf("book_id: %q", id)), reply)
	return muxtest.Text("Book", reply), err
}

func hang(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestADiskThatHangsKeepsNoBackendGone(t *testing.T) {
	l := newLibrary(t, "a")
	moves := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(moves) })
	file := filepath.Join(t.TempDir(), "known")
	w := watch(t, l, func(cfg *settings) {
		cfg.Backend = backend.Open("beta.io", backend.File{Path: file})
		cfg.Backend.HoldUpWrites(moves)
	})
	t.Cleanup(goOn)
	settled(t, w, l)
	l.stop()
	w.until(t, backend.Gone)
	l.with(func() { l.books["b"] = "" })
	l.start(t)
	w.until(t, backend.Up)
	assert.NoFileExists(t, file)
	goOn()
	require.Eventually(t, func() bool {
		data, _ := os.ReadFile(file) // the file does not exist at once
		return strings.Contains(string(data), "\x01b")
	}, 10*time.Second, 10*time.Millisecond, "what was found meanwhile is written")
}

func TestTheItemsOfABackendThatIsGoneStayInItsLists(t *testing.T) {
	for name, gone := range map[string]func(t *testing.T, l *library){
		"stopped": func(_ *testing.T, l *library) { l.stop() },
		"hung":    func(_ *testing.T, l *library) { l.with(func() { l.fault = hang }) },
		"starting": func(_ *testing.T, l *library) { // containerd 1.6
			l.with(func() {
				l.fault = func(context.Context, string) error {
					return status.Error(codes.Unknown, "server is not initialized yet")
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLibrary(t, "a1", "a2", "b1")
			l.books["a2"] = `colour: BLUE labels {key: "x" value: "1"} labels {key: "y" value: "2"}`
			w := watch(t, l, nil)
			settled(t, w, l)
			gone(t, l)
			w.until(t, backend.Gone)

			for request, want := range map[string]string{
				``:                      `books {id: "a1"} books {labels["x"]: "1" labels["y"]: "2"} books {id: "b1"}`,
				`book_id: "a1"`:         `a1`,
				`colour {colour: BLUE}`: `a2`,
				`book_id: "c"`:          ``,
			} {
				var header metadata.MD
				got, err := w.list(t, request, grpc.Header(&header))
				require.NoError(t, err, request)
				assert.Equal(t, []string{"beta.io"}, header[backend.HeaderKey], "it says that it is from memory")
				if request == `` {
					assert.Equal(t, 3, strings.Count(got, "books {"))
					continue
				}
				var ids []string
				for _, id := range []string{"a1", "a2", "b1"} {
					if strings.Contains(got, fmt.Sprintf("id: %q", id)) {
						ids = append(ids, id)
					}
				}
				assert.Equal(t, want, strings.Join(ids, " "), request)
			}
			streamed, err := w.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, muxtest.Method("Stream"))
			require.NoError(t, err)
			require.NoError(t, streamed.SendMsg(&codec.Frame{}))
			require.NoError(t, streamed.CloseSend())
			reply := &codec.Frame{}
			require.NoError(t, streamed.RecvMsg(reply))
			assert.Equal(t, 3, strings.Count(muxtest.Text("ListResponse", reply), "books {"))
			assert.ErrorContains(t, streamed.RecvMsg(reply), "EOF")

			got, err := w.get(t, "a2")
			require.NoError(t, err)
			assert.Contains(t, got, "only in a status", "Run has asked for the status; no client has")
			assert.Contains(t, got, `labels["x"]: "1"`)
			_, err = w.get(t, "c1")
			assert.Equal(t, codes.Unavailable, status.Code(err), "never NotFound while the backend cannot be asked")
		})
	}
}

func TestAllElseFailsAtOnceWhileABackendIsDown(t *testing.T) {
	l := newLibrary(t, "a1")
	w := watch(t, l, nil)
	settled(t, w, l)
	l.with(func() { l.fault = hang })
	w.until(t, backend.Gone)
	l.called("Put")
	err := w.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Regexp(t, `criproxy: backend beta.io is gone since \d\d:\d\d:\d\d: accepts connections, and has answered nothing for 600ms`, err.Error())
	_, err = w.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, muxtest.Method("Chat"))
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Zero(t, l.called("Put"), "the backend did not get the call")
}

func TestCallsUnderWayEndWhenTheirBackendGoesDown(t *testing.T) {
	l := newLibrary(t, "a1")
	w := watch(t, l, nil)
	settled(t, w, l)
	errs := make(chan error, 2)
	started := make(chan struct{}, 100)
	l.with(func() {
		l.fault = func(ctx context.Context, method string) error {
			if method != "List" {
				started <- struct{}{}
			}
			return hang(ctx, method)
		}
	})
	go func() { errs <- w.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{}) }()
	go func() {
		cs, err := w.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, muxtest.Method("Chat"))
		if err == nil {
			_ = cs.SendMsg(&codec.Frame{})
			err = cs.RecvMsg(&codec.Frame{})
		}
		errs <- err
	}()
	for range 2 {
		var err error
		select {
		case err = <-errs:
		case <-time.After(30 * time.Second):
			t.Fatal("a call hangs with its backend")
		}
		assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		assert.Contains(t, err.Error(), "backend beta.io is gone since")
	}
	assert.Equal(t, backend.Gone, w.State().Condition)
	<-started
}

func TestATrueTimeoutOfABackendThatIsUpPassesAsItIs(t *testing.T) {
	l := newLibrary(t, "a1")
	w := watch(t, l, patient)
	settled(t, w, l)
	for _, want := range []error{
		status.Error(codes.DeadlineExceeded, "command timed out"),
		status.Error(codes.Unavailable, "the registry is unavailable"),
		status.Error(codes.Internal, "oops"),
	} {
		l.with(func() {
			l.fault = func(_ context.Context, method string) error {
				if method == "Put" {
					return want
				}
				return nil
			}
		})
		err := w.Invoke(t.Context(), muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
		assert.Equal(t, want.Error(), err.Error())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	l.with(func() {
		l.fault = func(ctx context.Context, method string) error {
			if method == "Put" {
				return hang(ctx, method)
			}
			return nil
		}
	})
	err := w.Invoke(ctx, muxtest.Method("Put"), &codec.Frame{}, &codec.Frame{})
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "the client's own deadline")
	assert.Equal(t, backend.Up, w.State().Condition)
	for len(w.states) > 0 {
		assert.Equal(t, backend.Up, (<-w.states).Condition)
	}
}

func TestABackendComesBackWithACompleteList(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		n.goes(t, w)
		down := w.until(t, backend.Gone)
		assert.ErrorContains(t, down.Err, "connection refused")
		assert.True(t, down.Seen)
		n.library.with(func() {
			delete(n.library.books, "a1")
			n.library.books["a3"] = ""
		})
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Equal(t, `books {id: "a1"} books {id: "a2"}`, got)
		n.library.with(func() { n.down = false })
		w.until(t, backend.Up)
		got, err = w.list(t, "")
		require.NoError(t, err)
		assert.Equal(t, `books {id: "a2"} books {id: "a3"}`, got)
		got, err = w.get(t, "a3")
		require.NoError(t, err)
		assert.Contains(t, got, "a3")
		assert.Empty(t, w.states, "Watch is called once for each change")
	}, "a1", "a2")
}

func TestRunAsksForNoListThatAClientAsksFor(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) { c.Interval, c.Alive = 20*time.Millisecond, "" })
		_, err := w.list(t, "")
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond) // requests of Run at the same moment have been answered
		n.library.called("List")
		for range 20 { // for 400 ms; the profile's every is 1s
			_, err := w.list(t, "")
			require.NoError(t, err)
			time.Sleep(20 * time.Millisecond)
		}
		assert.Equal(t, 20, n.library.called("List"), "only the client's")
		assert.Equal(t, 1, n.library.called("Get"), "the status once, when it was new")
	}, "a1")
}

func TestAChangeIsAskedForAtOnce(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, func(c *settings) {
			c.Interval = time.Hour
			for i := range c.Spec.Lists {
				c.Spec.Lists[i].Every = time.Hour
			}
		})
		n.library.called("Get")
		require.NoError(t, w.Invoke(t.Context(), muxtest.Method("Put"), muxtest.Frame(t, "PutRequest", `shelf: "new"`), &codec.Frame{}))
		time.Sleep(time.Second)
		assert.Equal(t, 1, n.library.called("Get"), "the status of the new book")
		n.goes(t, w)
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Equal(t, `books {id: "a1"} books {id: "new"}`, got)
		got, err = w.get(t, "new")
		require.NoError(t, err)
		assert.Contains(t, got, "only in a status")
	}, "a1")
}

func TestMemorySurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "beta.io.known")
	withFile := func(c *settings) { c.Backend = backend.Open("beta.io", backend.File{Path: file}) }
	l := newLibrary(t, "a1", "a2")
	w := watch(t, l, withFile)
	settled(t, w, l)
	// The file is that of a process that was killed.
	var saved []byte
	require.Eventually(t, func() bool {
		var err error
		saved, err = os.ReadFile(file)
		return err == nil && strings.Count(string(saved), "only in a status") == 2
	}, 10*time.Second, 10*time.Millisecond, "the statuses are written after the list")
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	w.stop()
	l.stop()
	require.NoError(t, os.WriteFile(file, saved, 0o600))

	w = watch(t, l, withFile)
	require.NoError(t, w.Err())
	got, err := w.list(t, "") // the very first call, to a backend that is gone
	require.NoError(t, err)
	assert.Equal(t, `books {id: "a1"} books {id: "a2"}`, got)
	got, err = w.get(t, "a1")
	require.NoError(t, err)
	assert.Contains(t, got, "only in a status")
	w.stop()

	t.Run("another boot", func(t *testing.T) {
		other := []byte(strings.ReplaceAll(string(saved), bootID(t), strings.Repeat("0", len(bootID(t)))))
		require.NotEqual(t, saved, other)
		require.NoError(t, os.WriteFile(file, resum(other), 0o600))
		w := watch(t, l, withFile)
		defer w.stop()
		require.NoError(t, w.Err())
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Empty(t, got, "everything that ran before the boot is dead")
	})
	for name, content := range map[string][]byte{
		"empty":     {},
		"cut off":   saved[:len(saved)-1],
		"bit rot":   append(append([]byte{}, saved[:100]...), append([]byte{saved[100] ^ 1}, saved[101:]...)...),
		"no file":   []byte("something else entirely, which is long enough to hold a checksum"),
		"no reply":  resum([]byte(strings.Replace(string(saved), "\x0a\x04\x0a\x02a1", "\x0a\x7f\x0a\x02a1", 1))),
		"of others": resum([]byte(strings.ReplaceAll(string(saved), "beta.io", "beta.ix"))),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, content, 0o600))
			w := watch(t, l, func(c *settings) {
				c.Backend, c.RequiredWait = backend.Open("beta.io", backend.File{Path: file}), 50*time.Millisecond
			})
			defer w.stop()
			require.Error(t, w.Err())
			assert.Contains(t, w.Err().Error(), file)
			_, err := w.list(t, "")
			assert.Equal(t, codes.Unavailable, status.Code(err), "it may have pods, which kubelet would kill")
			assert.Contains(t, err.Error(), "may have items that the cache lacks")
			kept, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, content, kept, "the file stays as it is")
		})
	}
	t.Run("a broken file is replaced once the backend is seen", func(t *testing.T) {
		require.NoError(t, os.WriteFile(file, []byte("broken"), 0o600))
		w := watch(t, l, withFile)
		l.start(t)
		require.Eventually(t, func() bool { _, err := w.list(t, ""); return err == nil }, 10*time.Second, 10*time.Millisecond)
		require.Eventually(t, func() bool { b, err := os.ReadFile(file); return err == nil && len(b) > 100 }, 10*time.Second, 10*time.Millisecond)
	})
}

func TestABackendThatWasNeverSeen(t *testing.T) {
	t.Run("is left out", func(t *testing.T) {
		l := newLibrary(t)
		l.stop()
		w := watch(t, l, nil)
		s := w.until(t, backend.Gone)
		assert.False(t, s.Seen)
		got, err := w.list(t, "")
		require.NoError(t, err)
		assert.Empty(t, got)
	})
	t.Run("makes lists fail if it is required", func(t *testing.T) {
		l := newLibrary(t)
		l.stop()
		w := watch(t, l, func(c *settings) { c.Required, c.RequiredWait = true, 100*time.Millisecond })
		w.until(t, backend.Gone)
		_, err := w.list(t, "")
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Contains(t, err.Error(), "is required, has not been seen since this node was booted, and did not come within 100ms")
	})
	t.Run("makes lists wait until it says that it must be mended", func(t *testing.T) {
		l := newLibrary(t)
		l.stop()
		w := watch(t, l, func(c *settings) { c.Required, c.RequiredWait = true, time.Minute })
		w.until(t, backend.Gone)
		l.with(func() {
			l.fault = func(context.Context, string) error { return status.Error(codes.FailedPrecondition, "came back") }
		})
		done := make(chan error, 1)
		go func() {
			_, err := w.list(t, "")
			done <- err
		}()
		l.start(t)
		select {
		case err := <-done:
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.ErrorContains(t, err, "with FailedPrecondition: came back")
		case <-time.After(30 * time.Second):
			assert.Fail(t, "the list waits")
		}
	})
	t.Run("makes lists wait if it is required", func(t *testing.T) {
		l := newLibrary(t, "a1")
		l.stop()
		w := watch(t, l, func(c *settings) { c.Required, c.RequiredWait = true, time.Minute })
		w.until(t, backend.Gone)
		done := make(chan string)
		go func() {
			got, _ := w.list(t, "")
			done <- got
		}()
		l.start(t)
		assert.Equal(t, `books {id: "a1"}`, <-done)
	})
}

// The file also has a change that a client's call read before Run did.
func TestAChangeThatACallReadFirstIsInTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "beta.io.known")
	l := newLibrary(t, "a1", "a2")
	l.books["a2"] = `title: "that goes"`
	w := watch(t, l, func(c *settings) {
		patient(c)
		c.Backend, c.Interval = backend.Open("beta.io", backend.File{Path: file}), time.Second
	})
	settled(t, w, l)
	says := func(title string) bool {
		saved, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(saved), title)
	}
	require.Eventually(t, func() bool { return says("that goes") }, 20*time.Second, 10*time.Millisecond)
	l.with(func() { delete(l.books, "a2") })
	_, err := w.list(t, "")
	require.NoError(t, err)
	_, err = w.get(t, "a1")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !says("that goes") }, 20*time.Second, 10*time.Millisecond)

	// Without news the file is not written again, not even at the end.
	require.NoError(t, os.WriteFile(file, []byte("as it was"), 0o600))
	w.stop()
	assert.True(t, says("as it was"))
}

func TestThePoliciesFailAndSkip(t *testing.T) {
	for policy, check := range map[backend.Policy]func(got string, err error){
		backend.Skip: func(got string, err error) {
			assert.NoError(t, err)
			assert.Empty(t, got)
		},
		backend.Fail: func(_ string, err error) {
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Contains(t, err.Error(), "beta.io")
		},
	} {
		inNoTime(t, func(t *testing.T, n *near) {
			w := n.watch(t, func(c *settings) { c.Policy = policy })
			got, err := w.list(t, "")
			require.NoError(t, err)
			require.Equal(t, `books {id: "a1"}`, got)
			n.goes(t, w)
			w.until(t, backend.Gone)
			check(w.list(t, ""))
			_, err = w.get(t, "a1")
			assert.Equal(t, codes.Unavailable, status.Code(err))
			n.library.with(func() { n.down = false })
			w.until(t, backend.Up)
			_, err = w.get(t, "a1")
			assert.NoError(t, err)
		}, "a1")
	}
	err := backend.Open("", backend.File{}).Use(backend.Config{Policy: "maybe"})
	assert.EqualError(t, err, `invalid policy "maybe": want "last-known", "fail" or "skip"`)
}

// An error of one backend's whole list does not reach the client.
func TestAnErrorOfAWholeListIsAnsweredFromMemory(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			n.when(only("List", func(context.Context, string) error { return status.Error(code, "no") }))
			got, err := w.list(t, "")
			assert.NoError(t, err, code)
			assert.Equal(t, `books {id: "a1"}`, got, code)
			_, err = w.get(t, "a1")
			assert.NoError(t, err, "other calls pass as usual")
			assert.NotEqual(t, backend.Gone, w.State().Condition, code)
		}
	}, "a1")
}

func TestAnErrorAboutARequestPassesAsItIs(t *testing.T) {
	l := newLibrary(t, "a1")
	w := watch(t, l, func(c *settings) { patient(c); c.Interval = time.Hour })
	settled(t, w, l)
	for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.OutOfRange} {
		l.with(func() {
			l.fault = func(context.Context, string) error { return status.Error(code, "no") }
		})
		_, err := w.list(t, `book_id: "a"`)
		assert.Equal(t, code, status.Code(err))
	}
	assert.Equal(t, backend.Up, w.State().Condition)
}

func TestAClientInAHurryIsAnsweredFromMemory(t *testing.T) {
	inNoTime(t, func(t *testing.T, n *near) {
		w := n.watch(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		n.when(hang)
		reply := &codec.Frame{}
		require.NoError(t, w.Invoke(ctx, muxtest.Method("List"), &codec.Frame{}, reply))
		assert.Equal(t, `books {id: "a1"}`, muxtest.Text("ListResponse", reply))
		assert.NoError(t, ctx.Err(), "before its time is over")
	}, "a1")
}

func TestMemoryIsBounded(t *testing.T) {
	for most, listed := range map[int]int{15000: 100, 5000: 0} { // room for the list without statuses; not even for that
		inNoTime(t, func(t *testing.T, n *near) {
			for i := range 100 {
				n.library.books[fmt.Sprint("b", i)] = fmt.Sprintf("title: %q", strings.Repeat("x", 100))
			}
			w := n.watch(t, func(c *settings) { c.MaxBytes = most })
			n.goes(t, w)
			got, err := w.list(t, "")
			assert.Equal(t, listed, strings.Count(got, "books {"), "all or nothing")
			if listed > 0 {
				require.NoError(t, err)
				return
			}
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Contains(t, err.Error(), "more items than fit in the 5000 bytes of memory")
		})
	}
}

func bootID(t *testing.T) string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}
