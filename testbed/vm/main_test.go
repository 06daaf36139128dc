package vm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/criproxy/criproxy/testbed/build"
)

var (
	withBoot = flag.Bool("boot", false, "boot a virtual machine, which takes minutes")
	stayOn   = flag.Bool("keep", false, "after a failure leave the machine on until the test is interrupted")
)

// needed are the components that go into the machine.
var needed = []string{build.Guest, build.Kubelet, build.Containerd24, build.CNI, build.Crictl, build.App}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := leftOut(); err != nil {
		fmt.Fprintln(os.Stderr, "testbed: left out: the node in a virtual machine:", err)
		os.Exit(m.Run())
	}
	// Before the tests' time limit begins. An error here comes up again in the tests.
	_, _ = build.Get(context.Background(), os.Stderr, needed...)
	_, _ = GetImage(context.Background(), os.Stderr)
	os.Exit(m.Run())
}

// leftOut returns why the tests boot no machine, or nil if they do.
func leftOut() error {
	if !*withBoot || testing.Short() {
		return errors.New("it takes minutes; make vm runs it")
	}
	for program, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs", "make": "make"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("there is no %s (apt-get install --no-install-recommends %s)", program, pkg)
		}
	}
	if os.Getuid() != 0 {
		return errors.New("it takes root to make the image")
	}
	return nil
}
