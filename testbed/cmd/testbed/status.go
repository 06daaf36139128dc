package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// errDown is the error of status if something that was started does not answer.
var errDown = errors.New("testbed: not everything is up")

func status(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := newFlags("status", progress)
	dir := flags.String("dir", defaultDir, "folder that up was given")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	p := place{abs}
	if _, err := os.Stat(p.dir); err != nil {
		return fmt.Errorf("testbed: nothing is up in %s (start it with: testbed up -dir %[1]s)", p.dir)
	}
	var failed error
	line := func(name string, process host.Process, socket string) {
		says, err := ask(ctx, process, socket)
		if err != nil {
			says, failed = err.Error(), errDown
		}
		fmt.Fprintf(out, "%-9s %s\n", name, says)
	}
	if proxy := p.daemon("criproxy"); proxy.Started() {
		line("criproxy", proxy, p.proxySocket())
	}
	for _, instance := range instances {
		d := host.NewProcess(instance.name, filepath.Join(p.instance(instance.name), "containerd"))
		line(instance.name, d, filepath.Join(p.instance(instance.name), "containerd.sock"))
	}
	line("registry", p.daemon("registry"), "")
	return failed
}

// ask returns the state of a daemon and, if it speaks CRI, the number of its pods.
func ask(ctx context.Context, p host.Process, socket string) (string, error) {
	pid, alive := p.PID()
	if !alive {
		return "", errors.New("not running")
	}
	if p.Frozen() {
		return "", fmt.Errorf("frozen, process %d (wake it with: kill -CONT %[1]d)", pid)
	}
	if socket == "" {
		return fmt.Sprintf("running, process %d", pid), nil
	}
	conn, err := runtimes.Dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	version, err := client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", fmt.Errorf("process %d does not answer: %w", pid, err)
	}
	pods, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return "", fmt.Errorf("process %d does not list its pods: %w", pid, err)
	}
	return fmt.Sprintf("running, process %d, %s %s, pods: %d, unix://%s",
		pid, version.RuntimeName, version.RuntimeVersion, len(pods.Items), socket), nil
}
