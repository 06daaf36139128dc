package cli

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/show"
)

// supportTime bounds how long one part of a bundle may take.
const supportTime = 20 * time.Second

// Support is the subcommand that collects in one file what a bug report needs.
func Support(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := subFlags("support")
	asked := nodeFlags{timeout: unitDuration(5 * time.Minute)}
	asked.flags(fs)
	file := fs.String("config", "", "the configuration `FILE` (default that of the running criproxy, else "+config.DefaultConfig+")")
	about := `support FILE collects in one file what a bug report needs: status, pods, the output of doctor and
why, the configuration, the recorded calls, the log of the service, and versions. It leaves out credentials,
environments and the output of commands. The names of pods, images and namespaces are in it. FILE is
a .tar.gz that must not exist yet; without FILE, its name is criproxy-support-TIME.tar.gz; - is standard
output. A part that cannot be had, as of a criproxy that does not run, has the error in its place; support says so,
and does not fail. Other nodes collect it themselves, and each has its own FILE, with the node's name before the
first dot.`
	if err := parseSub(fs, args, out, about, 0, 1); err != nil {
		return err
	}
	nodes, err := asked.chosen(ctx)
	if err != nil {
		return err
	}
	name := "criproxy-support-" + time.Now().UTC().Format("20060102T150405Z")
	to := cmp.Or(fs.Arg(0), name+".tar.gz")
	screen := show.NewScreen(out)
	written := func(to, how string) {
		screen.Say(0, "%s %s. Look into it before you pass it on: it contains the names of pods and images.", to, how)
	}
	if asked.several() || admin.IsRemote(nodes[0].Address) {
		return supportOfAll(ctx, &asked, nodes, to, newErrand("support", Support, fs), errOut, func(to string) { written(to, "is written") })
	}
	bundle := os.Stdout
	if to != "-" {
		if bundle, err = createFile(to); err != nil {
			return err
		}
	} else {
		screen = show.NewScreen(errOut)
	}
	zip := gzip.NewWriter(bundle)
	b := &supportBundle{folder: name, tar: tar.NewWriter(zip), out: screen}
	b.collect(ctx, nodes[0].Address, *file)
	if err := errors.Join(b.err, b.tar.Close(), zip.Close(), bundle.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", to, err)
	}
	if b.missing > 0 {
		written(to, fmt.Sprintf("lacks %d of its %d parts, and has the errors above in their place", b.missing, b.parts))
	} else {
		written(to, "is complete")
	}
	return nil
}

// supportOfAll lets each node collect a bundle, and saves it here.
func supportOfAll(ctx context.Context, asked *nodeFlags, nodes []admin.Node, to string, e errand, errOut io.Writer, written func(string)) error {
	e.args = slices.DeleteFunc(e.args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	done := make([]string, len(nodes))
	nodes = admin.EachNode(ctx, nodes, time.Duration(asked.timeout), errOut, func(ctx context.Context, i int) error {
		if !admin.IsRemote(nodes[i].Address) {
			return errors.New("support collects files and logs of the node that it runs on; choose a socket of this node with -admin")
		}
		path := to
		if nodes[i].Name != "" {
			path = fileOfNode(to, nodes[i].Name)
		}
		bundle, err := createFile(path)
		if err != nil {
			return err
		}
		if err := errors.Join(e.do(ctx, nodes[i], bundle, "-"), bundle.Close()); err != nil {
			_ = os.Remove(path) // there is no bundle in it
			return err
		}
		done[i] = path
		return nil
	})
	for _, path := range done {
		if path != "" {
			written(path)
		}
	}
	err := admin.UnansweredBy(nodes)
	if len(nodes) == 1 && nodes[0].Name == "" && err != nil {
		return nodes[0].Err
	}
	return err
}

// supportBundle writes the parts of a bundle.
type supportBundle struct {
	folder string
	tar    *tar.Writer
	out    *show.Screen
	err    error // of writing the file

	parts, missing int
}

// add adds a part to the bundle. If making the part fails, the bundle has the error in its place, and the other parts
// are still useful. A criproxy of another API than CRI has no pods, and so no such part.
func (b *supportBundle) add(ctx context.Context, name string, make func(ctx context.Context, to io.Writer) error) {
	ctx, cancel := context.WithTimeout(ctx, supportTime)
	defer cancel()
	var text bytes.Buffer
	says := "ok"
	err := make(ctx, &text)
	if errors.Is(err, admin.ErrNoPods) {
		return
	}
	b.parts++
	if err != nil && !errors.Is(err, ErrReported) {
		says = err.Error()
		b.missing++
		fmt.Fprintf(&text, "\ncriproxy: %v\n", err)
	}
	b.out.Say(2, "%-16s %s", name, calls.Cut(says, 200))
	header := &tar.Header{Name: path.Join(b.folder, name), Mode: 0o600, Size: int64(text.Len()), ModTime: time.Now()}
	if err := b.tar.WriteHeader(header); err != nil {
		b.err = errors.Join(b.err, err)
		return
	}
	_, err = b.tar.Write(text.Bytes())
	b.err = errors.Join(b.err, err)
}

// collect adds all parts. given is the configuration file on the command line, empty for that of the criproxy that runs.
func (b *supportBundle) collect(ctx context.Context, socket, given string) {
	running, _ := askOne[admin.Report](ctx, socket, "status", supportTime) // without an answer there is no file
	file := cmp.Or(given, fileOf(&running), config.DefaultConfig)
	ask := func(name string) func(context.Context, io.Writer) error {
		return func(ctx context.Context, to io.Writer) error {
			var answer any
			_, err := admin.NewClient(socket).Read(ctx, name, &answer)
			if err == nil {
				err = show.Encode(to, show.JSON, answer)
			}
			return err
		}
	}
	pid := 0
	b.add(ctx, "versions.txt", func(ctx context.Context, to io.Writer) error {
		err := Version(ctx, nil, to, to)
		var running admin.Version
		if _, asked := admin.NewClient(socket).Read(ctx, "version", &running); asked == nil {
			pid = running.PID
			fmt.Fprintf(to, "running: %s, process %d\n", running.Version, running.PID)
		}
		kernel, _ := os.ReadFile("/proc/version") // it is not always there
		_, _ = to.Write(kernel)
		return err
	})
	b.add(ctx, "status.txt", func(ctx context.Context, to io.Writer) error {
		_, err := show.Status(ctx, show.Query{Path: socket, Screen: show.NewScreen(to)}, false)
		return err
	})
	for _, name := range []string{"status", "pods", "settings", "drift", "hooks"} {
		b.add(ctx, name+".json", ask(name))
	}
	b.add(ctx, "metrics.txt", func(ctx context.Context, to io.Writer) error { return fetch(ctx, socket, "/metrics", to) })
	b.add(ctx, "goroutines.txt", func(ctx context.Context, to io.Writer) error {
		return fetch(ctx, socket, "/debug/pprof/goroutine?debug=1", to)
	})
	b.add(ctx, "doctor.txt", func(ctx context.Context, to io.Writer) error {
		args := []string{"-admin", socket}
		if given != "" {
			args = append(args, "-config", given)
		}
		return ExamineNode(ctx, args, to, to)
	})
	b.add(ctx, "why.txt", func(ctx context.Context, to io.Writer) error {
		return Why(ctx, []string{"-admin", socket, "-since", "24h"}, to, to)
	})
	b.add(ctx, "config.yaml", func(_ context.Context, to io.Writer) error {
		data, err := os.ReadFile(file)
		if err == nil {
			_, err = to.Write(withoutCredentials(data))
		}
		return err
	})
	b.add(ctx, "recorded.jsonl", func(ctx context.Context, to io.Writer) error {
		return Dump(ctx, []string{"-admin", socket}, to, io.Discard)
	})
	b.add(ctx, "log.txt", func(ctx context.Context, to io.Writer) error {
		args := []string{"-u", "criproxy.service"}
		if pid != 0 {
			args = []string{fmt.Sprintf("_PID=%d", pid), "+", "_SYSTEMD_UNIT=criproxy.service"}
		}
		log := exec.CommandContext(ctx, "journalctl", append(args, "-n", "2000", "--no-pager", "-o", "short-iso")...)
		text, err := log.CombinedOutput()
		_, _ = to.Write(withoutCredentials(text))
		return err
	})
}

// fetch copies the answer of the admin socket to a path.
func fetch(ctx context.Context, socket, path string, to io.Writer) error {
	response, err := admin.NewClient(socket).Get(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close() // it was only read
	_, err = io.Copy(to, response.Body)
	return err
}

// inURL finds the user and the password in a URL. isSecret finds values whose key says that they are secret.
var (
	inURL    = regexp.MustCompile(`(://)[^/@\s"']+@`)
	isSecret = regexp.MustCompile(`(?i)((?:password|token|secret|authorization|api-?key)["']?\s*[:=]\s*["']?)(?:(?:bearer|basic)\s+)?\S+`)
)

// withoutCredentials returns text with credentials replaced.
func withoutCredentials(text []byte) []byte {
	return isSecret.ReplaceAll(inURL.ReplaceAll(text, []byte("$1[redacted]@")), []byte("$1[redacted]"))
}
