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
	"strings"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/internal/settings/config"
)

// Client is a client of the admin socket at a path.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client of the admin socket at path. It connects with each request.
func NewClient(path string) *Client {
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}}
}

// Get requests a path, such as "/version?a=b". The caller closes the body. The error says what to do.
func (c *Client) Get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://criproxy"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // a process that handed over and ended
		response, err = c.http.Do(request)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no admin socket at %s; check that criproxy is running, and with this -admin", c.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no process serves the admin socket %s; start criproxy", c.path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("only the user that criproxy runs as may use the admin socket %s; run this as root", c.path)
	case err != nil && ctx.Err() == nil && speaksGRPC(c.path):
		return nil, fmt.Errorf("%s is not an admin socket: it speaks gRPC, as runtimes and criproxy's sockets for clients do; the admin socket is beside criproxy's main socket, as in %s", c.path, config.AdminBeside(c.path))
	case err != nil:
		return nil, fmt.Errorf("asking criproxy at %s: %w", c.path, err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close() // an error's, which is read below
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if response.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("the criproxy at %s does not know %s; it may be an older version", c.path, path)
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

// speaksGRPC reports whether the server at path answers the preface of HTTP/2, as gRPC servers do and an admin socket
// does not: RFC 9113, section 3.4.
func speaksGRPC(path string) bool {
	conn, err := net.DialTimeout("unix", path, greetTime)
	if err != nil {
		return false
	}
	defer conn.Close() // nothing was asked
	_ = conn.SetDeadline(time.Now().Add(greetTime))
	const settings = 4
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return false
	}
	head := make([]byte, 9) // of a frame: length, type, flags, stream
	_, err = io.ReadFull(conn, head)
	return err == nil && head[3] == settings
}

// greetTime bounds how long a server may take to answer the preface.
const greetTime = 2 * time.Second
