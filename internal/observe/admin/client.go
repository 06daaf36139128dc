package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/internal/config"
)

// Headers in the answer to GET /events.
const (
	// RecordedHeader has the number of events that had been recorded when the request came.
	RecordedHeader = "Criproxy-Recorded"
	// OldestHeader has the number of the oldest of them that is in memory.
	OldestHeader = "Criproxy-Oldest"
	// InheritedHeader has the number of the last of them that the process has from the one before it.
	InheritedHeader = "Criproxy-Inherited"
)

// Number returns the number in a header of an answer; zero of an older criproxy, which sends all it has.
func Number(response *http.Response, header string) uint64 {
	n, _ := strconv.ParseUint(response.Header.Get(header), 10, 64)
	return n
}

// BeginsHeader, in the answer to GET /changes, has the time before which a criproxy without a state folder knows of no change.
const BeginsHeader = "Criproxy-Begins"

// Client is a client of the admin socket at an address.
type Client struct {
	path string // or the address of another node
	http *http.Client
	off  atomic.Int64 // nanoseconds
}

// NewClient returns a client of the admin socket at a path, or at an address that [CheckAddress] accepts. It connects
// with each request, but keeps the connection to another node for a few seconds.
func NewClient(address string) *Client {
	return &Client{path: address, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			r, err := parseRemote(address)
			if err != nil {
				return nil, err
			}
			if r != nil {
				return r.dial(ctx)
			}
			nc, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
			if err != nil {
				return nil, err
			}
			return &httpConn{Conn: nc}, nil
		},
		DisableKeepAlives: !IsRemote(address), // a process that hands over closes nothing before it has to
		IdleConnTimeout:   remoteIdle,
	}}}
}

// errSpeaksGRPC says that a socket is one of a gRPC server.
var errSpeaksGRPC = errors.New("it speaks gRPC")

// httpConn is a connection whose server should speak HTTP/1. Read, and then Write, fails with errSpeaksGRPC if the server's first
// byte is one of HTTP/2's SETTINGS. A gRPC server sends these at once, and what net/http says of them depends on whether the
// request was first.
type httpConn struct {
	net.Conn
	began bool        // only the goroutine of net/http that reads uses it
	grpc  atomic.Bool // Read has failed
}

func (c *httpConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.began {
		if c.began = true; b[0] == 0 {
			c.grpc.Store(true)
			return 0, errSpeaksGRPC
		}
	}
	return n, err
}

func (c *httpConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && c.grpc.Load() { // net/http closes a connection that it cannot read
		err = errSpeaksGRPC
	}
	return n, err
}

// remoteIdle is how long an idle connection to another node is kept, for commands that ask again and again.
const remoteIdle = 3 * time.Second

// ClockOff returns how far the clock of the server is ahead of this machine's, as the latest answer showed; negative if
// it is behind. It is zero if the difference is too small to be sure of.
func (c *Client) ClockOff() time.Duration { return time.Duration(c.off.Load()) }

// noteClock takes the time of an answer, which has no fractions of seconds.
func (c *Client) noteClock(date string, asked, answered time.Time) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	unsure := answered.Sub(asked)/2 + clockUnsure
	off := at.Add(time.Second / 2).Sub(asked.Add(answered.Sub(asked) / 2))
	if off.Abs() < unsure {
		off = 0
	}
	c.off.Store(int64(off))
}

// clockUnsure is the least difference between two clocks that counts.
const clockUnsure = 2 * time.Second

// Get requests a path, such as "/version?a=b". The caller closes the body. The error says what to do.
func (c *Client) Get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://criproxy"+path, nil)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	response, err := c.http.Do(request)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // a process that handed over and ended
		response, err = c.http.Do(request)
	}
	if late := ctx.Err(); err == nil && late != nil { // a server whose request has ended may still answer, with anything
		_ = response.Body.Close()
		response, err = nil, late
	}
	var child *childError
	switch {
	case errors.As(err, &child):
		return nil, child
	case errors.Is(err, io.EOF) && IsRemote(c.path):
		return nil, errors.New("the connection ended before the answer")
	case err != nil && IsRemote(c.path):
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // without the URL, which says nothing
		}
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no admin socket at %s; check that criproxy is running, and that this is its -admin", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no process serves the admin socket %s; start criproxy", c.path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("only the user that criproxy runs as may use the admin socket %s; run this as root", c.path)
	case errors.Is(err, errSpeaksGRPC):
		return nil, fmt.Errorf("%s is not an admin socket: it speaks gRPC, as runtimes and criproxy's sockets for clients do; the admin socket is beside criproxy's main socket, as in %s", c.path, config.AdminBeside(c.path))
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return nil, fmt.Errorf("%s ended the connection without an answer: it may be criproxy's socket for clients, which speaks gRPC; the admin socket is beside that, as in %s", c.path, config.AdminBeside(c.path))
	case err != nil:
		return nil, fmt.Errorf("asking criproxy at %s: %w", c.path, err)
	}
	c.noteClock(response.Header.Get("Date"), asked, time.Now())
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close() // an error's, which is read below
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	switch {
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("the criproxy at %s does not know %s; it may be an older version", c.path, path)
	case response.StatusCode == http.StatusConflict && path == "/pods":
		return nil, fmt.Errorf("criproxy at %s: %w", c.path, ErrNoPods)
	}
	return nil, fmt.Errorf("criproxy at %s: %s", c.path, strings.TrimSpace(string(text)))
}

// maxAnswer bounds an answer that is read as a whole, in bytes.
const maxAnswer = 64 << 20

// Read gets the answer called name, such as "status", and decodes it into answer. It also returns the undecoded JSON.
func (c *Client) Read(ctx context.Context, name string, answer any) ([]byte, error) {
	response, err := c.Get(ctx, "/"+name)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() // it was only read
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil {
		err = json.Unmarshal(raw, answer)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the answer of criproxy at %s: %w", c.path, err)
	}
	return raw, nil
}
