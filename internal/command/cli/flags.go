package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/criproxy/criproxy/internal/base/host"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/server"
)

// Flags are the command line of serve and check.
type Flags struct {
	config    string
	content   string // the text of the file config, when readConfig last read it
	fallback  string // the file to read if the command line names none
	connect   string
	apiserver string
	logFormat string
	koord     koordFlags
	typed     config.Config // the values of Options on the command line
	dry       bool          // a configuration without backends is valid
	stdin     bool          // the file - is standard input
	running   string        // the admin socket of the criproxy that has this configuration, or is to get the one from standard input; asRuns sets it
	absent    error         // why the criproxy at the admin socket that says what to examine does not answer; may be nil

	given map[string]bool // :: name of a flag → it was on the command line
	help  func()          // prints the help of the command
}

// NewFlags returns the flags of serve, and the values that parsing them sets.
func NewFlags() (*flag.FlagSet, *Flags) {
	f := &Flags{given: map[string]bool{}, fallback: config.DefaultConfig}
	fs := flag.NewFlagSet("criproxy", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned, and printed once
	fs.StringVar(&f.config, "config", "", "read the configuration from the YAML file `FILE`; flags take precedence over it (default "+config.DefaultConfig+", if it exists and -connect is not given)")
	fs.StringVar(&f.connect, "connect", "", "the sockets of the runtimes, as `PATH,NAME:PATH,...`; the one without a name is the primary, which gets every call that nothing directs elsewhere")
	for _, o := range config.Options() {
		if o.Flag != "" {
			addFlag(fs, o.Value(&f.typed), o.Flag, o.Usage)
		}
	}
	f.koord.register(fs)
	fs.StringVar(&f.logFormat, "log-format", "text", "write the log as `FORMAT` text, or json, one line for each entry")
	fs.StringVar(&f.apiserver, "apiserver", "", "ignored; accepted because old command lines have it")
	klog.InitFlags(fs)
	return fs, f
}

// addFlag adds a flag whose value goes to the field that to points to.
func addFlag(fs *flag.FlagSet, to any, name, usage string) {
	switch to := to.(type) {
	case *string:
		fs.StringVar(to, name, "", usage)
	case *int:
		fs.IntVar(to, name, 0, usage)
	case *int64:
		fs.Int64Var(to, name, 0, usage)
	case *bool:
		fs.BoolVar(to, name, false, usage)
	case *time.Duration:
		fs.Var((*unitDuration)(to), name, usage)
	case *[]string:
		fs.Var((*list)(to), name, usage)
	default:
		panic(fmt.Sprintf("flag -%s: there is no flag for a %T", name, to))
	}
}

// list is the value of a flag that takes several values, separated by commas, and may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds values to the list.
func (l *list) Set(s string) error {
	for one := range strings.SplitSeq(s, ",") {
		if one = strings.TrimSpace(one); one != "" {
			*l = append(*l, one)
		}
	}
	return nil
}

// parse reads args. Its error has one line.
func (f *Flags) parse(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.help()
		return err
	}
	if err != nil {
		return &UsageError{flagError(fs, err)}
	}
	if fs.NArg() > 0 {
		why := "is its dash missing, or does a space follow a comma in -connect?"
		if ext := filepath.Ext(fs.Arg(0)); ext == ".yaml" || ext == ".yml" {
			why = "a configuration follows -config"
		}
		return &UsageError{fmt.Errorf("%q is not a flag; %s", fs.Arg(0), why)}
	}
	fs.Visit(func(one *flag.Flag) { f.given[one.Name] = true })
	if f.logFormat != "text" && f.logFormat != "json" {
		return &UsageError{fmt.Errorf("-log-format %s: want text or json", f.logFormat)}
	}
	return nil
}

// apply replaces values in c, which come from the file, with those of the command line.
func (f *Flags) apply(c *config.Config) error {
	if f.given["connect"] {
		backends, err := config.ParseConnect(f.connect)
		if err != nil {
			return err
		}
		for i := range backends { // a backend of the file keeps its other settings
			for _, b := range c.Backends {
				if b.Name == backends[i].Name {
					b.Address = backends[i].Address
					backends[i] = b
				}
			}
		}
		c.Backends = backends
		c.Override("backends")
	}
	for _, o := range config.Options() {
		if f.given[o.Flag] {
			c.Override(o.Key)
			reflect.ValueOf(o.Value(c)).Elem().Set(reflect.ValueOf(o.Value(&f.typed)).Elem())
		}
	}
	return f.koord.apply(c, f.given)
}

// printServeFlags prints the flags of serve one by one, and the names of the other flags of klog.
func printServeFlags(out io.Writer) {
	fs, _ := NewFlags()
	var rest []string
	fs.VisitAll(func(f *flag.Flag) {
		switch {
		case f.Name == "apiserver", f.Name == "v":
		case IsKlog(f.Name):
			rest = append(rest, "-"+f.Name)
		default:
			printFlag(out, f)
		}
	})
	v := fs.Lookup("v")
	v.Usage = "how much to log: `LEVEL` 2 logs calls that fail, 3 also calls that change something, with request and reply, 4 also status calls, 5 also lists"
	printFlag(out, v)
	fmt.Fprintf(out, "  and the other flags of klog: %s\n", strings.Join(rest, " "))
}

// IsKlog reports whether a flag is one of klog's.
func IsKlog(name string) bool {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(fs)
	return fs.Lookup(name) != nil
}

// saysWhat reports whether the command line names the runtimes, or a file that does.
func (f *Flags) saysWhat() bool {
	return f.given["config"] || f.given["connect"] || f.koord.given(f.given)
}

// read reads the file, which no other user may be able to change.
func (f *Flags) read() ([]byte, error) {
	if f.stdin && f.config == "-" {
		return io.ReadAll(os.Stdin)
	}
	data, err := os.ReadFile(f.config)
	if err == nil {
		err = host.File(f.config)
	}
	return data, err
}

// readConfig reads the file that -config names, or the default one, and puts the flags over it.
func (f *Flags) readConfig() (*config.Config, error) {
	c := &config.Config{NoBackends: f.dry}
	if _, err := os.Stat(f.fallback); err == nil && !f.saysWhat() {
		f.config = f.fallback // a watcher watches it from now on
	}
	if f.config != "" {
		data, err := f.read()
		f.content = string(data)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		_ = c.Parse(f.config, data) // Check reports the error, with all others
	}
	if err := f.apply(c); err != nil {
		c.Fail(err)
	}
	return c, server.Check(c)
}
