package main

import (
	"context"
	"flag"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/criproxy/criproxy/internal/fakecri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"criproxy": main, kubectlPlugin: main, kubectlComplete: main, "criproxy-to-stop": toStop, "criproxy-try-all": tryAll, "containerd": fakeContainerd,
		"criproxy-test-ssh": fakeSSH, "criproxy-test-kubectl": fakeKubectl})
}

// leakChecked runs the tests of m, and fails if they leave goroutines behind.
type leakChecked struct{ m *testing.M }

func (c leakChecked) Run() int {
	testkit.KeepLog()
	_ = flag.Set("test.parallel", "6") // most tests wait for processes and for outages to be noticed; -parallel overrides this
	code := c.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error() + "\n") // an error of this cannot be reported
		return 1
	}
	return code
}

// toStop is a criproxy that has been asked to stop before it begins.
func toStop() {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		panic(err)
	}
}

// fakeContainerd is a process called containerd that serves a runtime in memory at each path that it gets, until SIGINT.
func fakeContainerd() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var serving sync.WaitGroup
	for _, path := range os.Args[1:] {
		l, err := net.Listen("unix", path)
		if err != nil {
			panic(err)
		}
		serving.Go(func() { _ = fakecri.New(fakecri.Config{Name: "containerd"}).ServeOn(ctx, l) })
	}
	serving.Wait()
}

// run is main without the process and its log.
func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	c, args := find(args)
	return c.run(ctx, args, out, errOut)
}

// The scripts run the real main. In addition to the usual commands they have
//
//	serving PATH    wait until a process accepts connections at PATH
//	usr1 PATH       send SIGUSR1 to the criproxy with the admin socket PATH
//	socket PATH     make a socket file without a process that listens
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("..", "..", "testdata", "cli"),
		Setup: func(env *testscript.Env) error {
			// Paths of sockets must be short, and the work folder's may not be.
			dir, err := os.MkdirTemp("", "cli")
			if err != nil {
				return err
			}
			env.Defer(func() { os.RemoveAll(dir) }) // an error changes nothing
			env.Setenv("S", dir)
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serving": func(ts *testscript.TestScript, _ bool, args []string) {
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					conn, err := net.Dial("unix", args[0])
					if err == nil {
						ts.Check(conn.Close())
						return
					}
					if time.Now().After(deadline) {
						ts.Fatalf("no process serves %s: %v", args[0], err)
					}
				}
			},
			"usr1": func(ts *testscript.TestScript, _ bool, args []string) {
				var info admin.Version
				_, err := admin.NewClient(args[0]).Read(t.Context(), "version", &info)
				ts.Check(err)
				ts.Check(syscall.Kill(info.PID, syscall.SIGUSR1))
			},
			"socket": func(ts *testscript.TestScript, _ bool, args []string) {
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
				ts.Check(err)
				l.SetUnlinkOnClose(false)
				ts.Check(l.Close())
			},
		},
	})
}
