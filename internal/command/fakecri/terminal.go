package fakecri

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/spdystream"
	"golang.org/x/term"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// remoteCommand are the versions of the exec and attach protocol that send the exit code as JSON.
var remoteCommand = []string{"v4.channel.k8s.io"}

// A terminal holds the streams of a command. A stream that the client did not request is empty.
type terminal struct {
	status         *spdystream.Stream
	stdin          io.Reader
	stdout, stderr io.Writer
	ended          sync.Once
}

// openTerminal waits for the streams that a client has announced. It returns nil if the client
// leaves first.
func openTerminal(ctx context.Context, c *streamConn, r streamsRequest) *terminal {
	t := &terminal{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	want := 1
	for _, wanted := range []bool{r.GetStdin(), r.GetStdout(), r.GetStderr(), r.GetTty()} { // a TTY has an additional stream, for its sizes
		if wanted {
			want++
		}
	}
	for range want {
		s := c.next(ctx)
		if s == nil {
			return nil
		}
		switch s.Headers().Get("streamType") {
		case "error":
			t.status = s
		case "stdin":
			t.stdin = s
		case "stdout":
			t.stdout = s
		case "stderr":
			t.stderr = s
		}
	}
	if t.status == nil {
		return nil
	}
	if r.GetTty() {
		t.stdout = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{t.stdin, t.stdout}, "$ ")
		t.stderr = t.stdout
	}
	return t
}

// end reports the end of a command, once.
func (t *terminal) end(code int32, err error) { t.ended.Do(func() { t.report(code, err) }) }

func (t *terminal) report(code int32, err error) {
	status := map[string]any{"metadata": struct{}{}, "status": "Success"}
	switch {
	case err != nil:
		status["status"], status["message"], status["reason"] = "Failure", err.Error(), "InternalError"
	case code != 0:
		status["status"], status["reason"] = "Failure", "NonZeroExitCode"
		status["message"] = fmt.Sprintf("command terminated with non-zero exit code: %d", code)
		status["details"] = map[string]any{"causes": []any{map[string]string{"reason": "ExitCode", "message": fmt.Sprint(code)}}}
	}
	_ = json.NewEncoder(t.status).Encode(status) // fails only if the client has gone
	for _, s := range []any{t.stdout, t.stderr, t.status} {
		if s, ok := s.(*spdystream.Stream); ok {
			_ = s.Close()
		}
	}
}

// lineReader returns a function that reads the next typed line.
func lineReader(in io.Reader, out io.Writer) func() (string, error) {
	if typed, ok := out.(*term.Terminal); ok {
		return typed.ReadLine
	}
	lines := bufio.NewScanner(in)
	return func() (string, error) {
		if !lines.Scan() {
			return "", io.EOF
		}
		return lines.Text(), nil
	}
}

// execStreaming runs a command with the streams of a client.
func (rt *Runtime) execStreaming(c *container, r *runtimeapi.ExecRequest) streaming {
	sh := &shell{c: c, hostname: hostname(c.pod.config)}
	return streaming{remoteCommand, func(ctx context.Context, conn *streamConn) {
		t := openTerminal(ctx, conn, r)
		if t == nil {
			return
		}
		sh.stdin, sh.stdout, sh.stderr = t.stdin, t.stdout, t.stderr
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			t.end(sh.run(ctx, r.GetCmd()))
		}()
		select {
		case <-ended:
		case <-ctx.Done():
		case <-c.exited:
			t.end(killed, nil)
		}
	}}
}

// attachStreaming sends the output of a container to a client, and prints the client's input.
func (rt *Runtime) attachStreaming(c *container, r *runtimeapi.AttachRequest) streaming {
	return streaming{remoteCommand, func(ctx context.Context, conn *streamConn) {
		t := openTerminal(ctx, conn, r)
		if t == nil {
			return
		}
		rt.mu.Lock()
		if c.attached == nil {
			c.attached = map[*terminal]struct{}{}
		}
		c.attached[t] = struct{}{}
		rt.mu.Unlock()
		defer func() {
			rt.mu.Lock()
			delete(c.attached, t)
			rt.mu.Unlock()
		}()
		go func() {
			next := lineReader(t.stdin, t.stdout)
			for line, err := next(); err == nil; line, err = next() {
				rt.print(c, line)
			}
		}()
		select {
		case <-ctx.Done():
		case <-c.exited:
			t.end(0, nil)
		}
	}}
}

// Print makes each running container print a line: to its log, if it has one, and to attached
// clients.
func (rt *Runtime) Print(line string) {
	rt.mu.Lock()
	var running []*container
	for c := range rt.containers.all {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running = append(running, c)
		}
	}
	rt.mu.Unlock()
	for _, c := range running {
		rt.print(c, line)
	}
}

func (rt *Runtime) print(c *container, line string) {
	rt.mu.Lock()
	attached := make([]*terminal, 0, len(c.attached))
	for t := range c.attached {
		attached = append(attached, t)
	}
	dir, name := c.pod.config.GetLogDirectory(), c.config.GetLogPath()
	rt.mu.Unlock()
	if dir != "" && name != "" {
		_ = appendLog(path.Join(dir, name), line) // like a real log, it is lost if the disk is full
	}
	for _, t := range attached {
		fmt.Fprintln(t.stdout, line)
	}
}

// appendLog appends a line to a log, in the format that kubelet and crictl read.
func appendLog(name, line string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s stdout F %s\n", time.Now().Format(time.RFC3339Nano), line)
	return err
}

// forwardStreaming answers HTTP requests on all ports of a pod.
func forwardStreaming(p *pod) streaming {
	greeting := "hello from " + hostname(p.config)
	return streaming{[]string{"portforward.k8s.io"}, func(ctx context.Context, conn *streamConn) {
		errors := map[string]*spdystream.Stream{} // :: id of a connection → stream for its errors
		for s := conn.next(ctx); s != nil; s = conn.next(ctx) {
			id := s.Headers().Get("requestID")
			if s.Headers().Get("streamType") == "error" {
				errors[id] = s
				continue
			}
			go func(failed *spdystream.Stream) {
				answerHTTP(s, fmt.Sprintf("%s, port %s\n", greeting, s.Headers().Get("port")))
				if failed != nil {
					_ = failed.Close()
				}
			}(errors[id])
			delete(errors, id)
		}
	}}
}

// answerHTTP answers one request with a text, and ends the stream.
func answerHTTP(s *spdystream.Stream, text string) {
	defer s.Close()
	request, err := http.ReadRequest(bufio.NewReader(s))
	if err != nil {
		return
	}
	response := http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: request, Close: true,
		Header: http.Header{"Content-Type": {"text/plain"}},
		Body:   io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
	_ = response.Write(s) // fails only if the client has gone
}
