package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/criproxy/criproxy/testbed/host"
)

// A Machine is a virtual machine with its own disk and a second, read-only one at /payload. All its files are in one
// folder.
type Machine struct {
	dir   string
	image Image
	accel string

	qemu *exec.Cmd
	done chan struct{} // closed when qemu has ended
	port *port
	boot string // boot_id of the running kernel
}

// NewMachine makes a machine with a payload in an empty folder. It is switched off. The folder's path must be short,
// because it holds a socket.
func NewMachine(ctx context.Context, dir string, image Image, payload string) (*Machine, error) {
	m := &Machine{dir: dir, image: image, accel: accelerator()}
	if err := command(ctx, "cp", "--sparse=always", image.Disk, m.at("disk")); err != nil {
		return nil, fmt.Errorf("testbed: copying the disk of the virtual machine: %w", err)
	}
	if err := makeDisk(ctx, m.at("payload"), payload, "1G"); err != nil {
		return nil, fmt.Errorf("testbed: making the second disk of the virtual machine: %w", err)
	}
	return m, nil
}

func (m *Machine) at(name string) string { return filepath.Join(m.dir, name) }

// args is qemu's command line.
func (m *Machine) args() []string {
	disk := func(name, more string) string {
		return "if=virtio,format=raw,file=" + m.at(name) + more
	}
	// cache=unsafe only skips flushing the host's disks, and the host does not lose power: a killed qemu has already
	// written all writes of its machine.
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-smp", "2", "-m", "2560",
		"-accel", m.accel, "-cpu", processor(m.accel), // without KVM, one thread emulates each processor by default
		"-kernel", m.image.Kernel, "-initrd", m.image.Initrd,
		"-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=1 panic=10 mitigations=off nowatchdog" +
			" systemd.default_timeout_start_sec=10min systemd.default_device_timeout_sec=10min", // an emulated processor is slow
		"-drive", disk("disk", ",cache=unsafe"), "-drive", disk("payload", ",readonly=on"),
		"-serial", "file:" + m.at("console"),
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=testbed,server=on,wait=on,path=" + m.at("port"),
		"-device", "virtserialport,chardev=testbed,name=testbed",
	}
}

// PowerOn switches the machine on, and returns when its guest program answers.
func (m *Machine) PowerOn(ctx context.Context) error {
	console, _ := os.ReadFile(m.at("console")) // there is none at first
	if err := os.WriteFile(m.at("console.before"), console, 0o644); err != nil {
		return err
	}
	_ = os.Remove(m.at("port")) // of the previous qemu
	log, err := os.Create(m.at("qemu.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	m.qemu = exec.Command("nice", append([]string{"-n", "10", "qemu-system-x86_64"}, m.args()...)...)
	m.qemu.Stdout, m.qemu.Stderr = log, log
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a machine does not outlive its test
	m.done = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal is sent when this thread ends
		err := m.qemu.Start()
		started <- err
		if err == nil {
			_ = m.qemu.Wait() // its log says why
		}
		close(m.done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("testbed: starting qemu: %w", err)
	}
	var conn net.Conn
	err = host.Await(ctx, "qemu to start", func() error {
		select {
		case <-m.done:
			return nil
		default:
		}
		var err error
		conn, err = net.Dial("unix", m.at("port"))
		return err
	})
	if err == nil && conn == nil {
		said, _ := os.ReadFile(m.at("qemu.log"))
		err = fmt.Errorf("testbed: starting qemu: it has ended: %s", said)
	}
	if err != nil {
		return errors.Join(err, m.PowerOff())
	}
	m.port = newPort(conn)
	return m.waitBoot(ctx)
}

// waitBoot waits for the next boot.
func (m *Machine) waitBoot(ctx context.Context) error {
	boot, err := m.port.waitBoot(ctx, m.boot)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.Console(30))
	}
	m.boot = boot
	return nil
}

// PowerOff cuts the power: data that is not on the disk is lost.
func (m *Machine) PowerOff() error {
	if m.qemu == nil || m.qemu.Process == nil {
		return nil
	}
	err := m.qemu.Process.Kill()
	<-m.done
	if m.port != nil {
		m.port.conn.Close()
	}
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return err
}

// Reboot reboots the machine in an orderly way, and returns when its guest program answers.
func (m *Machine) Reboot(ctx context.Context) error {
	if _, err := m.Run(ctx, "systemctl", "reboot"); err != nil && !errors.Is(err, errNoReply) {
		return err
	}
	return m.waitBoot(ctx)
}

// Run runs a command in the machine, and returns its standard output. It fails if the command fails.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	return m.RunWith(ctx, "", args...)
}

// RunWith does the same with standard input.
func (m *Machine) RunWith(ctx context.Context, stdin string, args ...string) (string, error) {
	reply, err := m.port.run(ctx, []byte(stdin), args...)
	if err == nil && reply.Code != 0 {
		err = &ExitError{Args: args, Code: reply.Code, Stderr: string(reply.Err)}
	}
	return string(reply.Out), err
}

// An ExitError is the error of a command with an exit code other than 0.
type ExitError struct {
	Args   []string
	Code   int
	Stderr string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("testbed: %s in the virtual machine ended with %d: %s", strings.Join(e.Args, " "), e.Code, strings.TrimSpace(e.Stderr))
}

// Console returns the last lines that were printed on the machine's console.
func (m *Machine) Console(lines int) string {
	data, err := os.ReadFile(m.at("console"))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("(end of the console of the virtual machine:)\n%s", host.LastLines(string(data), lines))
}

// patience bounds how long a test waits for a machine that may be emulated on a busy one.
const patience = 10 * time.Minute
