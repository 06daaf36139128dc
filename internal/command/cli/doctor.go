package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/command/doctor"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/observe/show"
	"github.com/criproxy/criproxy/internal/observe/why"
	"github.com/criproxy/criproxy/internal/plugins"
	"github.com/criproxy/criproxy/internal/server"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// Diagnosis is the result of the doctor. Its JSON is stable.
type Diagnosis struct {
	Findings []why.Finding   `json:"findings"`          // the worst first
	Kubelet  *doctor.Kubelet `json:"kubelet,omitempty"` // the kubelet of the node; nil if none runs
	AsRuns   string          `json:"asRuns,omitempty"`  // the flags that come from the criproxy that runs

	criproxys doctor.Criproxys // that run on this node
	wirings   []wiring         // of those that say what it is
	reported  map[string]bool  // backends of which a finding has the process that serves their socket
}

// wellKnown are the sockets of runtimes that the doctor examines if there is no configuration.
var wellKnown = []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock"}

// aboutDoctor describes the command.
const aboutDoctor = `doctor examines this node: kubelet, the configuration, the criproxy that runs, the runtimes, sockets,
clients and log links. It says what would not work and how to fix it. It fails if it finds an error.`

// ExamineNode is the subcommand that examines the node and says what would not work.
func ExamineNode(ctx context.Context, args []string, out, errOut io.Writer) error {
	var output outputFlags
	nodes := nodeFlags{timeout: unitDuration(time.Minute)}
	fs, f := NewFlags()
	f.own(fs, aboutDoctor, out, func() { output.flags(fs); nodes.choosing(fs) })
	if err := cmp.Or(f.parse(fs, args), output.check("doctor")); err != nil {
		return err
	}
	q := show.Query{Format: output.format, Screen: show.NewScreen(out)}
	if several, err := nodes.instead(ctx, f, &q, errOut); err != nil {
		return err
	} else if several {
		return findingsOfAll(ctx, q, newErrand("doctor", ExamineNode, fs))
	}
	if path, err := filepath.Abs(f.typed.Admin); err == nil && f.typed.Admin != "" && f.typed.Admin != "none" {
		f.typed.Admin = path // doctor only asks there, as other commands do; a setting must be absolute
	}
	asRuns, err := f.asRuns(ctx, fs)
	if err != nil {
		return err
	}
	if f.absent != nil {
		return f.absent
	}
	d := Diagnosis{Findings: []why.Finding{}, AsRuns: asRuns, criproxys: doctor.Criproxys{}, wirings: wirings(ctx), reported: map[string]bool{}}
	for _, one := range d.wirings {
		d.criproxys[one.pid] = socketsOf(one.Config)
	}
	cfg, err := f.readConfig()
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			d.add(why.Error, "configuration", "the-configuration-has-mistakes", strings.TrimSpace(line), "correct it; criproxy check tries it without serving")
		}
		cfg = f.insteadOf(ctx, cfg)
	}
	d.configuration(f, cfg)
	d.running(ctx, cfg)
	examined := &doctor.Node{Listen: cfg.Listen, Separator: cri.Separator(), Version: kubeletVersion, Criproxys: d.criproxys, Circles: d.circles(cfg)}
	examined.Backends, examined.OtherAPI = d.backends(ctx, cfg)
	found, kubelet := examined.Examine()
	d.Findings, d.Kubelet = why.Sort(append(d.Findings, found...)), kubelet
	if output.format == show.Text {
		d.print(q.Screen)
	} else if err := show.Encode(out, output.format, d); err != nil {
		return err
	}
	if len(d.Findings) > 0 && d.Findings[0].Level == why.Error {
		return ErrReported
	}
	return nil
}

func (d *Diagnosis) add(level why.Level, about, entry, text, cure string) {
	d.Findings = append(d.Findings, doctor.Found(level, about, entry, text, cure))
}

// insteadOf returns what to examine in place of a configuration with mistakes: that of the criproxy that runs. If none
// answers, it has the sockets that could be read, and a runtime that is there. wrong is nil if nothing could be read.
func (f *Flags) insteadOf(ctx context.Context, wrong *config.Config) *config.Config {
	cfg := &config.Config{Listen: config.DefaultListen, Admin: config.DefaultAdmin}
	if wrong != nil {
		cfg.Listen, cfg.Admin = wrong.Listen, wrong.Admin
	}
	socket := cmp.Or(f.running, cfg.Admin)
	if running, err := askOne[config.Settings](ctx, socket, "settings", server.AskTimeout); err == nil {
		cfg = configOf(running)
		cfg.Admin = socket
		return cfg
	}
	for _, path := range wellKnown {
		if _, err := os.Stat(path); err == nil {
			cfg.Backends = append(cfg.Backends, config.Backend{Address: path})
			return cfg
		}
	}
	return cfg
}

// configuration examines cfg, and the files and folders that it names.
func (d *Diagnosis) configuration(f *Flags, cfg *config.Config) {
	const about = "configuration"
	add := func(level why.Level, warnings []string) {
		for _, w := range warnings {
			text, cure := w, "choose a shorter name"
			if i := strings.LastIndex(w, "; "); i >= 0 {
				text, cure = w[:i], w[i+2:]
			}
			d.add(level, about, "a-setting-has-consequences", text, cure)
		}
	}
	_, spans := cfg.Collector()
	add(why.Warning, spans)
	for _, b := range cfg.Backends {
		if b.Name == "" || cfg.Profile != "" { // kubelet has nothing to do with another API
			continue
		}
		add(why.Warning, config.NameWarnings(b.Name))
		if cfg.IDs != config.NativeIDs {
			add(why.Note, config.IDWarnings(b.Name)) // nothing is wrong with the node
		}
	}
	for what, path := range map[string]string{"the configuration": f.config, "the folder of plugins": cfg.Hooks, "the state folder": cfg.StateDir} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o022 != 0 {
			d.add(why.Error, about, "other-users-can-get-root", fmt.Sprintf("users other than the owner can change %s, %s (mode %04o), and so run any program as root", what, path, info.Mode().Perm()), "chmod go-w "+path)
		}
	}
	if cfg.StateDir == "" && len(cfg.Backends) > 1 && cfg.Profile == "" {
		d.add(why.Warning, about, "the-cache-is-not-kept", "the cached answers of the runtimes are not stored: if criproxy restarts while a runtime is gone, kubelet kills the pods of that runtime", "set stateDir")
	}
	if path := cfg.StateDir; cfg.StateDir != "" && len(cfg.Backends) > 1 {
		for _, err := os.Stat(path); err != nil && path != "/"; _, err = os.Stat(path) {
			path = filepath.Dir(path) // criproxy makes missing folders when it starts
		}
		if err := unix.Access(path, unix.W_OK); err != nil && os.Getuid() == 0 {
			d.add(why.Error, about, "the-cache-is-not-kept", fmt.Sprintf("the state folder %s cannot be written to: %v", cfg.StateDir, err), "choose another one with stateDir; under systemd it must be in ReadWritePaths= or StateDirectory=")
		}
	}
	if os.Getuid() != 0 {
		d.add(why.Note, about, "doctor-cannot-see-everything", "this command does not run as root", "run it as root, as criproxy itself must run: other users cannot see much of the node")
	}
}

// running asks the criproxy that serves cfg.
func (d *Diagnosis) running(ctx context.Context, cfg *config.Config) {
	const about = "criproxy"
	if cfg.Admin == "" {
		return
	}
	r, err := askOne[admin.Report](ctx, cfg.Admin, "status", 2*server.StatusTime)
	if err != nil {
		d.add(why.Note, about, "doctor-cannot-see-everything", "the state of criproxy is unknown: "+err.Error(), "start criproxy, and run doctor again")
		return
	}
	for _, l := range r.Listeners {
		d.criproxys[r.PID] = append(d.criproxys[r.PID], l.Path)
	}
	for _, b := range r.Backends {
		switch b.State {
		case backend.Gone.String():
			cure := "look at the runtime's log; meanwhile kubelet sees its pods as they were"
			if len(r.Backends) == 1 { // of which there is no cache
				cure = "look at the runtime's log; meanwhile every call fails"
			}
			if cfg.Profile != "" {
				cure = fmt.Sprintf("look at the log of %s, which is at %s", b.Name, b.Address)
			}
			d.add(why.Error, about, "a-runtime-is-gone", fmt.Sprintf("backend %s is gone: %s", b.Name, b.Error), cmp.Or(d.served(cfg, b.Name, b.Address), cure))
		case backend.Slow.String():
			cure := "look at the load of the node and at the runtime's log; criproxy answers from its cache where the runtime is late"
			d.add(why.Warning, about, "a-runtime-is-slow", fmt.Sprintf("backend %s is slow: %s", b.Name, b.Error), cmp.Or(d.served(cfg, b.Name, b.Address), cure))
		}
	}
	for _, l := range r.Listeners {
		if text := l.Connections.TooMany(l.Path); text != "" {
			d.add(why.Warning, about, "a-client-leaves-connections-open", text,
				"correct the client that opens a connection for each call and closes none; LimitNOFILE= of the unit gives criproxy more file descriptors")
		}
	}
	if r.Config.Error != "" {
		d.add(why.Error, about, "the-configuration-has-mistakes", "the configuration was not reloaded: "+calls.Cut(r.Config.Error, 500), "correct it; criproxy reads it again as soon as it changes")
	}
	for _, w := range r.Config.NeedsRestart {
		d.add(why.Warning, about, "changes-wait-for-a-restart", "a change of the configuration waits for a restart: "+w, fmt.Sprintf("kill -USR2 %d, which fails no call", r.PID))
	}
	if r.Version != config.Version {
		d.add(why.Note, about, "changes-wait-for-a-restart", fmt.Sprintf("the running criproxy is %s, this program is %s", r.Version, config.Version), fmt.Sprintf("kill -USR2 %d starts the installed program, and fails no call", r.PID))
	}
	if r.Hooks != nil {
		for _, p := range r.Hooks.Plugins {
			if p.State != plugins.StateReady {
				d.add(why.Warning, about, "a-plugin-fails", fmt.Sprintf("plugin %s is %s: %s", p.Name, p.State, p.Error), "criproxy hooks shows the details; if its policy is Fail, pods do not start")
			}
		}
	}
}

// served returns what to do about the process that serves the socket of a backend in trouble, "" if the process shows nothing.
func (d *Diagnosis) served(cfg *config.Config, name, address string) (cure string) {
	process, err := host.Serving(address)
	switch {
	case err != nil:
		return ""
	case process.Stopped:
		cure = fmt.Sprintf("%s serves its socket, and is stopped (state T): %s", process, doctor.StoppedCure(process))
	case d.circles(cfg)(process, address):
		cure = fmt.Sprintf("%s serves its socket: %s", process, doctor.CircleCure(name))
	default:
		return ""
	}
	d.reported[name] = true
	return cure
}

// circles returns [doctor.Node.Circles] of the criproxy with a configuration. Calls to a criproxy that says what its backends
// are come back only over these.
func (d *Diagnosis) circles(cfg *config.Config) func(host.Process, string) bool {
	return func(p host.Process, path string) bool {
		if !slices.ContainsFunc(d.wirings, func(w wiring) bool { return w.pid == int(p.PID) }) {
			return d.criproxys.MayCircle(p, path)
		}
		_, back := wayBack(socketsOf(cfg), path, d.wirings)
		return back
	}
}

// backends asks the runtimes themselves, and reports whether they have another API than CRI.
func (d *Diagnosis) backends(ctx context.Context, cfg *config.Config) (all []doctor.Backend, otherAPI bool) {
	for _, b := range cfg.Backends {
		name := director.Backend{Name: b.Name}.String()
		all = append(all, doctor.Backend{Name: name, Prefix: b.Name, Address: b.Address, Reported: d.reported[name]})
	}
	if len(all) == 0 {
		return nil, false
	}
	a, err := server.Read(cfg)
	if err != nil {
		d.add(why.Error, "configuration", "the-configuration-has-mistakes", err.Error(), "correct it; criproxy check tries it without serving")
		return all, cfg.Profile != ""
	}
	if !server.IsCRI(a.Profile) {
		return all, true // which has no pods
	}
	ctx, cancel := context.WithTimeout(ctx, server.AskTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, b := range cfg.Backends {
		wg.Go(func() {
			all[i].HTTP = listen.ServesHTTP(b.Address)
			var reply runtimeapi.RuntimeConfigResponse
			if callRuntime(ctx, a, b, runtimeapi.RuntimeService_RuntimeConfig_FullMethodName, &runtimeapi.RuntimeConfigRequest{}, &reply) == nil && reply.GetLinux() != nil {
				all[i].Driver = server.DriverName(reply.GetLinux().GetCgroupDriver())
			}
		})
	}
	wg.Wait()
	return all, false
}

// kubeletVersion asks the program at exe for the version of kubelet.
func kubeletVersion(exe string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, exe, "--version").Output()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err() // it was killed
	case err != nil:
		return "", err
	}
	_, version, ok := strings.Cut(strings.TrimSpace(string(out)), "Kubernetes ")
	if !ok {
		return "", errors.New("kubelet --version prints " + calls.Cut(string(out), 100))
	}
	return version, nil
}

// print shows the diagnosis to people.
func (d *Diagnosis) print(out *show.Screen) {
	sayAsRuns(out, d.AsRuns)
	if k := d.Kubelet; k != nil {
		out.Say(0, "This node's kubelet is %s, process %d, and speaks to %s.", show.OrDash(k.Version), k.Process, show.OrDash(k.Endpoint))
		out.Gap()
	}
	bad := 0
	for i := range d.Findings {
		f := &d.Findings[i]
		sayFinding(out, f, "")
		if f.Level == why.Error {
			bad++
		}
	}
	switch {
	case bad > 0:
		out.Gap()
		out.Paint(show.Red, 0, "Errors found: %d.", bad)
	case len(d.Findings) > 0:
		out.Gap()
		out.Paint(show.Green, 0, "Nothing here prevents criproxy from working.")
	default:
		out.Paint(show.Green, 0, "Nothing is wrong with this node.")
	}
}
