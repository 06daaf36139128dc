package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/suggest"
	"github.com/criproxy/criproxy/internal/trust"
)

// flags are the command line of serve and check, as it was typed.
type flags struct {
	config     string
	content    string // of config, when readConfig last read it
	fallback   string // in place of config, if nothing is said
	connect    string
	listen     string
	admin      string
	metrics    string
	newPodsTo  string
	streamURL  string
	streamPort int
	maxMessage int
	ids        string
	stateDir   string
	listBudget time.Duration
	goneAfter  time.Duration
	hooks      string
	apiserver  string
	koord      koordFlags

	recorder     int
	capture      string
	captureBytes int64
	captureFiles int
	unsafeRaw    bool

	profile   string
	proto     string
	protoPath string
	dry       bool // there need be no backends

	given map[string]bool // :: name of a flag → it was on the command line
}

// newFlags returns the flags and where their values go.
func newFlags() (*flag.FlagSet, *flags) {
	f := &flags{given: map[string]bool{}, fallback: DefaultConfig}
	fs := flag.NewFlagSet("criproxy", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned, and printed once
	fs.StringVar(&f.config, "config", "", "read the configuration from YAML `FILE`; flags go before what is in it (default "+DefaultConfig+", if it is there and there is no -connect)")
	fs.StringVar(&f.connect, "connect", "", "the runtimes, as `PATH,NAME:PATH,...` of their sockets; the one without a name is the primary, which gets all that nothing directs elsewhere")
	fs.StringVar(&f.listen, "listen", "", "the `PATH` of the socket that kubelet connects to (default "+DefaultListen+")")
	fs.StringVar(&f.admin, "admin", "", "the `PATH` of the socket for criproxy's own commands, which only the user it runs as can use; none opens no such socket (default beside that of -listen: "+DefaultAdmin+")")
	fs.StringVar(&f.metrics, "metrics", "", "serve metrics and health at `HOST:PORT` as well, to everybody who can reach it (default only at the socket of -admin)")
	fs.StringVar(&f.newPodsTo, "new-pods-to", "", "make pods that nothing sends elsewhere on the runtime called `NAME`, while the primary is drained (default the primary)")
	fs.StringVar(&f.streamURL, "streamUrl", "", "complete URLs of exec, attach and port-forward that a runtime returns without a host with `URL`; those with a host pass as they are")
	fs.IntVar(&f.streamPort, "streamPort", 0, "as -streamUrl, with the address of this node and `PORT` (default 11250)")
	fs.IntVar(&f.maxMessage, "max-message-bytes", 0, "the largest message, in `BYTES`, either way (default 16777216, which is kubelet's own limit)")
	fs.StringVar(&f.ids, "ids", "", "how ids look to clients: `MODE` prefix, NAME__ID, or native, as the runtimes made them (default prefix)")
	fs.DurationVar(&f.listBudget, "list-budget", 0, "`TIME` a runtime may take for a list before memory answers in its place (default 2s)")
	fs.DurationVar(&f.goneAfter, "gone-after", 0, "`TIME` a runtime may answer nothing at all before it counts as gone (default 10s)")
	fs.IntVar(&f.recorder, "flight-recorder", 0, "memory, in `BYTES`, in which the latest calls are recorded; -1 records nothing (default 8388608)")
	fs.StringVar(&f.capture, "capture", "", "write all calls to `FILE`.jsonl, .pcapng (for Wireshark) or .binlog, without secrets")
	fs.Int64Var(&f.captureBytes, "capture-max-bytes", 0, "begin a new file of -capture after `BYTES`; -1 never does (default 67108864)")
	fs.IntVar(&f.captureFiles, "capture-files", 0, "keep `N` files of -capture, older ones as FILE.1.jsonl and so on (default 5)")
	fs.BoolVar(&f.unsafeRaw, "unsafe-raw", false, "record, log and capture secrets as well: credentials, environments, output, tokens")
	fs.StringVar(&f.stateDir, "state-dir", "", "keep what is known of the runtimes in `FOLDER`, for a restart while one of them is down; none keeps nothing (default "+DefaultStateDir+")")
	fs.StringVar(&f.hooks, "hooks", "", "ask the plugins that have a file in `FOLDER`; none asks nobody (default "+DefaultHooks+")")
	f.koord.register(fs)
	fs.StringVar(&f.profile, "profile", "", "`FILE` that says what the API means, if it is another one than CRI: docs/profile.md")
	fs.StringVar(&f.proto, "proto", "", "descriptors of the API, or of a newer CRI: .proto `FILES` or descriptor sets, with commas between, or reflection, which asks the backends")
	fs.StringVar(&f.protoPath, "proto-path", "", "`FOLDERS` to look for imports of .proto files in, with commas between")
	fs.StringVar(&f.apiserver, "apiserver", "", "ignored; old command lines have it")
	klog.InitFlags(fs)
	return fs, f
}

// parse reads args. Its error says what is wrong in one line.
func (f *flags) parse(fs *flag.FlagSet, args []string, out io.Writer) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return help(out)
	}
	if err != nil {
		return &usageError{flagError(fs, err)}
	}
	if fs.NArg() > 0 {
		return &usageError{fmt.Errorf("%q is not a flag; is a dash missing, or a comma in -connect followed by a space?", fs.Arg(0))}
	}
	fs.Visit(func(one *flag.Flag) { f.given[one.Name] = true })
	return nil
}

// flagError says more of a flag that there is not.
func flagError(fs *flag.FlagSet, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return err
	}
	var names []string
	fs.VisitAll(func(one *flag.Flag) { names = append(names, "-"+one.Name) })
	return fmt.Errorf("there is no flag -%s%s", name, suggest.Nearest("-"+name, names))
}

// apply puts what is on the command line over what is in the file.
func (f *flags) apply(c *Config) error {
	if f.given["connect"] {
		backends, err := parseConnect(f.connect)
		if err != nil {
			return err
		}
		for i := range backends { // the same backend keeps what the file says of it otherwise
			for _, b := range c.Backends {
				if b.Name == backends[i].Name {
					b.Address = backends[i].Address
					backends[i] = b
				}
			}
		}
		c.Backends = backends
	}
	if f.given["listen"] {
		c.Listen = f.listen
	}
	if f.given["admin"] {
		c.Admin = f.admin
	}
	if f.given["metrics"] {
		c.Metrics = f.metrics
	}
	if f.given["new-pods-to"] {
		c.NewPodsTo = f.newPodsTo
	}
	if f.given["streamUrl"] {
		c.StreamURL = f.streamURL
	}
	if f.given["streamPort"] {
		c.StreamPort = f.streamPort
	}
	if f.given["ids"] {
		c.IDs = f.ids
	}
	if f.given["list-budget"] {
		c.ListBudget = f.listBudget
	}
	if f.given["gone-after"] {
		c.GoneAfter = f.goneAfter
	}
	if f.given["state-dir"] {
		c.StateDir = f.stateDir
	}
	if f.given["flight-recorder"] {
		c.FlightRecorder = f.recorder
	}
	if f.given["capture"] {
		c.Capture.Path = f.capture
	}
	if f.given["capture-max-bytes"] {
		c.Capture.MaxBytes = f.captureBytes
	}
	if f.given["capture-files"] {
		c.Capture.MaxFiles = f.captureFiles
	}
	if f.given["unsafe-raw"] {
		c.UnsafeRaw = f.unsafeRaw
	}
	if f.given["profile"] {
		c.Profile = f.profile
	}
	if f.given["proto"] {
		c.Proto = splitList(f.proto)
	}
	if f.given["proto-path"] {
		c.ProtoPath = splitList(f.protoPath)
	}
	if f.given["max-message-bytes"] {
		c.MaxMessageBytes = f.maxMessage
	}
	if f.given["hooks"] {
		c.Hooks = f.hooks
	}
	return f.koord.apply(c, f.given)
}

// parseConnect reads the value of -connect.
func parseConnect(s string) ([]BackendConfig, error) {
	var backends []BackendConfig
	var errs []error
	for _, one := range strings.Split(s, ",") {
		b, err := parseBackend(strings.TrimSpace(one))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		backends = append(backends, b)
	}
	return backends, errors.Join(errs...)
}

func parseBackend(s string) (BackendConfig, error) {
	const scheme = "unix://"
	switch {
	case s == "":
		return BackendConfig{}, errors.New("-connect: there is an empty item; want PATH or NAME:PATH between the commas")
	case s == "docker":
		return BackendConfig{}, errors.New("-connect docker: there is no dockershim in here any more; start cri-dockerd and use -connect /run/cri-dockerd.sock")
	case strings.HasPrefix(s, "/"):
		return BackendConfig{Address: s}, nil
	case strings.HasPrefix(s, scheme):
		return BackendConfig{Address: strings.TrimPrefix(s, scheme)}, nil
	}
	if i := strings.LastIndex(s, ":"+scheme+"/"); i >= 0 {
		return BackendConfig{Name: s[:i], Address: s[i+1+len(scheme):]}, nil
	}
	if strings.Contains(s, "://") && strings.Count(s, ":/") == 1 {
		return BackendConfig{}, fmt.Errorf("-connect: %q has the scheme of a URL; want unix:///PATH, PATH or NAME:PATH; networks are for the configuration file", s)
	}
	if i := strings.LastIndex(s, ":/"); i >= 0 {
		return BackendConfig{Name: s[:i], Address: s[i+1:]}, nil
	}
	return BackendConfig{}, fmt.Errorf("-connect: %q is neither PATH nor NAME:PATH, where PATH is the absolute path of a socket", s)
}

// printFlags prints the flags: ours one by one, those of the log in short.
func printFlags(fs *flag.FlagSet, out io.Writer) {
	logging := []string{"v", "logtostderr", "alsologtostderr", "log_file", "vmodule"}
	var rest []string
	fs.VisitAll(func(f *flag.Flag) {
		if f.Name != "apiserver" && !isKlog(f.Name) {
			printFlag(out, f, "")
		}
	})
	printFlag(out, fs.Lookup("v"), "how much to log: `LEVEL` 2 calls that fail, 3 calls that change something with request and reply, 4 status calls too, 5 lists too")
	fs.VisitAll(func(f *flag.Flag) {
		if isKlog(f.Name) && !slices.Contains(logging[:1], f.Name) {
			rest = append(rest, "-"+f.Name)
		}
	})
	fmt.Fprintf(out, "  and the other flags of klog: %s\n", strings.Join(rest, " "))
}

func isKlog(name string) bool {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(fs)
	return fs.Lookup(name) != nil
}

func printFlag(out io.Writer, f *flag.Flag, usage string) {
	if usage != "" {
		f = &flag.Flag{Name: f.Name, Usage: usage, Value: f.Value}
	}
	name, text := flag.UnquoteUsage(f)
	fmt.Fprintf(out, "  -%s %s\n%s", f.Name, name, wrap(text, 6, 78))
}

// wrap breaks text into lines of at most width, indented.
func wrap(text string, indent, width int) string {
	var b strings.Builder
	line := strings.Repeat(" ", indent)
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width && strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", indent)
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	return b.String()
}

// saysWhat reports whether the command line says where to find the runtimes.
func (f *flags) saysWhat() bool {
	if f.given["config"] || f.given["connect"] {
		return true
	}
	for name := range f.koord.names() {
		if f.given[name] {
			return true
		}
	}
	return false
}

// readConfig reads the file that -config names, or DefaultConfig, and the flags over it.
func (f *flags) readConfig() (*Config, error) {
	c := &Config{dry: f.dry}
	if _, err := os.Stat(f.fallback); err == nil && !f.saysWhat() {
		f.config = f.fallback // which is watched from here on
	}
	if f.config != "" {
		data, err := os.ReadFile(f.config)
		f.content = string(data)
		if err == nil {
			err = trust.File(f.config)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		if err := c.parse(f.config, data); err != nil {
			return nil, err
		}
	}
	if err := f.apply(c); err != nil {
		return nil, err
	}
	return c, c.check()
}

// prefixLines puts where it was before each line of err.
func prefixLines(where string, err error) error {
	return errors.New(where + ": " + strings.ReplaceAll(err.Error(), "\n", "\n"+where+": "))
}
