package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/criproxy/criproxy/testbed/internal/serial"
)

// serve runs commands from a serial port concurrently, and answers each when it ends. First it sends the id of
// the current boot.
func serve(device string) error {
	port, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	send := func(m serial.Reply) {
		line, _ := json.Marshal(m) // cannot fail: everything in it can be encoded
		mu.Lock()
		defer mu.Unlock()
		// Begin a new line: an earlier process may have written half of one.
		_, _ = port.Write(append(append([]byte{'\n'}, line...), '\n')) // if it fails, there is no way to report that
	}
	send(serial.Reply{Boot: strings.TrimSpace(string(boot))})
	for lines := bufio.NewReaderSize(port, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			time.Sleep(100 * time.Millisecond) // the host has not opened its end
			continue
		}
		if err != nil {
			return err
		}
		var command serial.Command
		if json.Unmarshal(line, &command) == nil && len(command.Args) > 0 {
			go func() { send(execute(command)) }()
		}
	}
}

func execute(c serial.Command) serial.Reply {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(c.Stdin)
	cmd.WaitDelay = time.Second // its children may hold its output open
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	reply := serial.Reply{ID: c.ID, Out: out.Bytes(), Err: errs.Bytes(), Code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		reply.Code, reply.Err = -1, []byte(err.Error())
	}
	return reply
}
