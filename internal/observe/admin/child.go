package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// dial starts the program that reaches the node, and returns a connection over its standard streams to the node's admin
// socket. Closing the connection kills the program.
func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	argv, err := r.command(ctx, "dial-stdio")
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	ours, itsOwn := os.NewFile(uintptr(pair[0]), ""), os.NewFile(uintptr(pair[1]), "")
	defer itsOwn.Close() // the process has its own
	defer ours.Close()   // the connection has its own
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	c := &childConn{Conn: conn, said: &tailBuffer{}, cmd: exec.Command(argv[0], argv[1:]...)}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = itsOwn, itsOwn, c.said
	c.cmd.WaitDelay = time.Second // a grandchild may have its error output open
	if err := c.cmd.Start(); err != nil {
		_ = conn.Close() // nothing was written
		return nil, err
	}
	c.ended = sync.OnceValue(c.cmd.Wait)
	return c, nil
}

// childConn is a connection over the standard streams of a process: a socket whose other end is its input and its output.
type childConn struct {
	net.Conn
	said  *tailBuffer
	cmd   *exec.Cmd
	ended func() error // waits for the process, and returns how it ended
}

// why returns err, or how the process ended if that says more.
func (c *childConn) why(err error) error {
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if ended := c.ended(); ended != nil {
		return &childError{c.cmd.Args[0], ended, c.said.String()}
	}
	return err
}

// Read reads what the process prints. At the end of that, it waits for the process.
func (c *childConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.why(err)
}

func (c *childConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.why(err)
}

// Close kills the process, and waits for it.
func (c *childConn) Close() error {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.ended()            // it was killed
	return c.Conn.Close()
}

// CopyTo copies between a client, which reads out and writes in, and the admin socket at path, until either ends. It
// asks the process at path first: only an admin socket of criproxy can be reached.
func CopyTo(ctx context.Context, path string, in io.Reader, out io.Writer) error {
	var v Version
	if _, err := NewClient(path).Read(ctx, "version", &v); err != nil {
		return err
	}
	if v.PID == 0 {
		return fmt.Errorf("the server at %s is not criproxy's admin socket", path)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close() // both ways have ended, or have to
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() {
		_, _ = io.Copy(conn, in) // the other way ends with an error if this does
		_ = conn.(*net.UnixConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(lastAnswer))
	}()
	if _, err = io.Copy(out, conn); ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // the client has gone
	}
	return err
}

// lastAnswer is how long a client that has said all may wait for the answer.
const lastAnswer = 10 * time.Second
