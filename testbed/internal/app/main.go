// Command app is the only program in the testbed's images: a static binary that can wait, answer, print,
// copy and exit, so that tests need no shell, busybox or distribution.
//
//	app [COMMAND [ARGS...] [then COMMAND ...]]
//
// Commands joined by "then" run one after the other, as in "print this, then stay":
//
//	app print hello then sleep
//
// On SIGTERM every command ends at once with exit code 0, also as process 1 of a container; farewell and stubborn
// change that. Without a command app sleeps.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// commands are the commands of app. Each gets its arguments.
var commands = map[string]func(args []string) error{
	"pause":    pause,
	"sleep":    sleep,
	"wait":     wait,
	"stubborn": stubborn,
	"farewell": farewell,
	"serve":    serve,
	"cat":      func([]string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err },
	"print":    func(args []string) error { return printTo(os.Stdout, args) },
	"warn":     func(args []string) error { return printTo(os.Stderr, args) },
	"exit":     exit,
	"env":      env,
	"tick":     tick,
	"pid":      func([]string) error { return printTo(os.Stdout, []string{strconv.Itoa(os.Getpid())}) },
	"file":     file,
	"write":    write,
}

func main() {
	exitAtTerm()
	for _, words := range split(os.Args[1:]) {
		run, known := commands[words[0]]
		if !known {
			fmt.Fprintf(os.Stderr, "app: %q is not a command\n", words[0])
			os.Exit(127)
		}
		if err := run(words[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "app: %s: %v\n", words[0], err)
			os.Exit(1)
		}
	}
}

// wait waits for a duration, such as 5s.
func wait(args []string) error {
	d, err := time.ParseDuration(strings.Join(args, " "))
	time.Sleep(d)
	return err
}

// split splits the command line at each "then". An empty command line means sleep.
func split(words []string) [][]string {
	var all [][]string
	for {
		i := slices.Index(words, "then")
		if i < 0 {
			i = len(words)
		}
		if i > 0 {
			all = append(all, words[:i])
		}
		if i == len(words) {
			break
		}
		words = words[i+1:]
	}
	if len(all) == 0 {
		return [][]string{{"sleep"}}
	}
	return all
}

// exitAtTerm makes SIGTERM and SIGINT end the process. The kernel drops both for process 1 of a
// pid namespace unless there is a handler.
func exitAtTerm() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		if atTerm != nil {
			atTerm()
		}
		os.Exit(0)
	}()
}

// atTerm runs at SIGTERM before the process ends. It must be set before any command waits.
var atTerm func()

// pause holds a sandbox's namespaces and reaps orphaned processes.
func pause([]string) error {
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	for range orphans {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// sleep [DURATION] waits for the duration, or until a signal if there is none.
func sleep(args []string) error {
	if len(args) == 0 {
		for {
			time.Sleep(time.Hour)
		}
	}
	d, err := time.ParseDuration(args[0])
	time.Sleep(d)
	return err
}

// stubborn sleeps and ignores SIGTERM, for tests of grace periods: only SIGKILL ends it.
func stubborn([]string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	return sleep(nil)
}

// farewell PATH DURATION delays the end of the commands that follow: at SIGTERM they go on for the duration, and then
// app writes the file and ends with code 0. The file proves that there was a signal, and enough time.
func farewell(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("which file, and after how long?")
	}
	d, err := time.ParseDuration(args[1])
	atTerm = func() {
		time.Sleep(d)
		os.WriteFile(args[0], []byte("farewell\n"), 0o644)
	}
	return err
}

// serve [PORT] answers HTTP requests on every address, by default on port 8080, with their method, path and
// body. It prints "serving" when it is ready.
func serve(args []string) error {
	port := "8080"
	if len(args) > 0 {
		port = args[0]
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s\n", r.Method, r.URL.Path)
		io.Copy(w, r.Body)
	}))
}

func printTo(w io.Writer, words []string) error {
	_, err := fmt.Fprintln(w, strings.Join(words, " "))
	return err
}

// exit N ends with exit code N.
func exit(args []string) error {
	if len(args) == 0 {
		os.Exit(0)
	}
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

// env prints the environment, sorted.
func env([]string) error {
	all := os.Environ()
	slices.Sort(all)
	return printTo(os.Stdout, []string{strings.Join(all, "\n")})
}

// tick [DURATION] prints a number at every interval, by default 200ms, for ever.
func tick(args []string) error {
	every := 200 * time.Millisecond
	if len(args) > 0 {
		var err error
		if every, err = time.ParseDuration(args[0]); err != nil {
			return err
		}
	}
	for i := 1; ; i++ {
		fmt.Printf("tick %d\n", i)
		time.Sleep(every)
	}
}

// file PATH prints a file.
func file(args []string) error {
	data, err := os.ReadFile(strings.Join(args, " "))
	os.Stdout.Write(data)
	return err
}

// write PATH TEXT... makes or overwrites a file.
func write(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("which file?")
	}
	return os.WriteFile(args[0], []byte(strings.Join(args[1:], " ")), 0o644)
}
