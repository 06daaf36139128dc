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
)

// dial starts the program that reaches the node, and returns a connection over its standard streams to the node's admin
// socket. Closing the connection kills the program.
func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	argv, err := r.command(ctx, r.dialArgs())
	if err != nil {
		return nil, err
	}
	return startChild(argv)
}

// childConn is a connection over the standard streams of a process.
type childConn struct {
	in, out *os.File
	said    *tailBuffer
	cmd     *exec.Cmd
	ended   func() error // waits for the process, and returns how it ended
	close   sync.Once
}

func startChild(argv []string) (net.Conn, error) {
	itsIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, itsOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, itsIn.Close(), in.Close())
	}
	c := &childConn{in: in, out: out, said: &tailBuffer{}, cmd: exec.Command(argv[0], argv[1:]...)}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = itsIn, itsOut, c.said
	c.cmd.WaitDelay = time.Second // a grandchild may have its error output open
	err = c.cmd.Start()
	_ = itsIn.Close() // the process has its own
	_ = itsOut.Close()
	if err != nil {
		_ = in.Close() // nothing was written
		_ = out.Close()
		return nil, err
	}
	c.ended = sync.OnceValue(c.cmd.Wait)
	return c, nil
}

// why returns err, or how the process ended if that says more.
func (c *childConn) why(err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if ended := c.ended(); ended != nil {
		return &childError{c.cmd.Args[0], ended, c.said.String()}
	}
	return err
}

// Read reads what the process prints. At the end of that, it waits for the process.
func (c *childConn) Read(b []byte) (int, error) {
	n, err := c.out.Read(b)
	if err != nil {
		err = c.why(err)
	}
	return n, err
}

func (c *childConn) Write(b []byte) (int, error) {
	n, err := c.in.Write(b)
	if err != nil {
		err = c.why(err)
	}
	return n, err
}

// Close kills the process, and waits for it.
func (c *childConn) Close() error {
	c.close.Do(func() {
		_ = c.in.Close()
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.ended()            // it was killed
		_ = c.out.Close()
	})
	return nil
}

// childAddr is the address of either end.
type childAddr string

func (a childAddr) Network() string { return "stdio" }
func (a childAddr) String() string  { return string(a) }

func (c *childConn) LocalAddr() net.Addr                { return childAddr("") }
func (c *childConn) RemoteAddr() net.Addr               { return childAddr(c.cmd.Args[0]) }
func (c *childConn) SetReadDeadline(t time.Time) error  { return c.out.SetReadDeadline(t) }
func (c *childConn) SetWriteDeadline(t time.Time) error { return c.in.SetWriteDeadline(t) }
func (c *childConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
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
