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

// serve runs the commands that come through a serial port, at once, and answers as they end. It begins with
// saying which boot this is.
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
		line, _ := json.Marshal(m) // it holds nothing that cannot be encoded
		mu.Lock()
		defer mu.Unlock()
		// A line of a process before us may have been cut off: a line of our own begins.
		_, _ = port.Write(append(append([]byte{'\n'}, line...), '\n')) // without the port there is no way to report it
	}
	send(serial.Reply{Boot: strings.TrimSpace(string(boot))})
	for lines := bufio.NewReaderSize(port, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			time.Sleep(100 * time.Millisecond) // the other end is not open
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
	cmd.WaitDelay = time.Second // what it has started may hold its output
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
