package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"time"
)

// A remote is the criproxy of another node, which ssh or kubectl reaches: they know how to connect and who may, and
// nothing listens for it.
type remote struct {
	user, host, port, path string // of ssh; the path is that of the admin socket, empty for the node's usual one

	kube           Kube   // of kubectl
	node           string // empty if a pod is given
	namespace, pod string
}

// IsRemote reports whether an address of an admin socket is one of another node, such as ssh://HOST or kube://NODE.
func IsRemote(address string) bool { return strings.Contains(address, "://") }

// NodeName returns what people call the node at an address: its host or its name in Kubernetes, or the path of the
// socket.
func NodeName(address string) string {
	r, err := parseRemote(address)
	switch {
	case err != nil || r == nil:
		return address
	case r.host != "":
		return r.host + r.path
	case r.node != "":
		return r.node
	}
	return r.namespace + "/" + r.pod
}

// CheckAddress returns an error if address is neither the path of a socket, nor ssh://[USER@]HOST[:PORT][/PATH],
// kube://NODE or kube://NAMESPACE/POD.
func CheckAddress(address string) error {
	_, err := parseRemote(address)
	return err
}

// These names reach the command lines of ssh and kubectl. None begins with a dash, so none can be an option.
var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_:][A-Za-z0-9_.:%-]*$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@\\-]*$`)
	kubeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

// parseRemote returns nil for a path.
func parseRemote(address string) (*remote, error) {
	if !IsRemote(address) {
		return nil, nil
	}
	refuse := func(why string) (*remote, error) {
		return nil, fmt.Errorf("invalid address %q: %s; want a path, ssh://[USER@]HOST[:PORT][/PATH], kube://NODE or kube://NAMESPACE/POD", address, why)
	}
	u, err := url.Parse(address)
	if err != nil {
		return refuse(errors.Unwrap(err).Error())
	}
	r := &remote{}
	switch query := u.Query(); {
	case u.Fragment != "":
		return refuse("nothing may follow a #")
	case u.Scheme == "ssh":
		password := false
		if u.User != nil {
			r.user = u.User.Username()
			_, password = u.User.Password()
		}
		r.host, r.port, r.path = u.Hostname(), u.Port(), strings.TrimSuffix(u.Path, "/")
		switch {
		case password:
			return refuse("a password does not belong there: use a key, or ssh's agent")
		case len(query) > 0:
			return refuse("nothing may follow a ?")
		case !hostName.MatchString(r.host):
			return refuse(fmt.Sprintf("invalid host %q", r.host))
		case u.User != nil && !userName.MatchString(r.user):
			return refuse(fmt.Sprintf("invalid user %q", r.user))
		case r.path != "" && r.path != path.Clean(r.path):
			return refuse(fmt.Sprintf("invalid path %q: it has a part too many, such as . or a second slash", r.path))
		}
	case u.Scheme == "kube":
		r.kube = Kube{Context: query.Get("context"), Kubeconfig: query.Get("kubeconfig")}
		r.namespace, r.pod = u.Host, strings.TrimPrefix(u.Path, "/")
		if r.pod == "" {
			r.namespace, r.node = "", u.Host
		}
		for key := range query {
			if key != "context" && key != "kubeconfig" {
				return refuse(fmt.Sprintf("%q is unknown", key))
			}
		}
		if err := r.kube.Check(); err != nil {
			return refuse(err.Error())
		}
		for _, name := range []string{u.Host, r.pod} {
			if name != "" && !kubeName.MatchString(name) || u.Host == "" || u.User != nil {
				return refuse(fmt.Sprintf("invalid name %q for Kubernetes", name))
			}
		}
	default:
		return refuse(fmt.Sprintf("%q is unknown", u.Scheme))
	}
	return r, nil
}

// command returns the program, and its arguments, that runs criproxy with args on the node.
func (r *remote) command(ctx context.Context, args ...string) (argv []string, err error) {
	if r.path != "" {
		args = append(args, "-admin="+r.path)
	}
	if r.host != "" {
		argv = []string{"ssh", "-T", "-o", "BatchMode=yes"}
		if r.port != "" {
			argv = append(argv, "-p", r.port)
		}
		if r.user != "" {
			argv = append(argv, "-l", r.user)
		}
		argv = append(argv, "--", r.host, "criproxy")
		for _, arg := range args {
			argv = append(argv, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'") // sshd passes them to a shell
		}
		return argv, nil
	}
	if r.node != "" {
		nodes, err := r.kube.Nodes(ctx, r.node)
		if err != nil {
			return nil, err
		}
		if len(nodes) == 0 {
			return nil, fmt.Errorf("node %s has no pod of criproxy in namespace %s", r.node, kubeNamespace())
		}
		if nodes[0].Err != nil {
			return nil, nodes[0].Err
		}
		if r, err = parseRemote(nodes[0].Address); err != nil {
			return nil, err
		}
	}
	return append(r.kube.command("exec", "-i", "--namespace="+r.namespace, r.pod, "--", "criproxy-on-node"), args...), nil
}

// Run runs criproxy with args on the node at a remote address. in is its standard input, out gets its output. The error
// of a criproxy that fails has the last of what it printed as errors.
func Run(ctx context.Context, address string, in io.Reader, out io.Writer, args ...string) error {
	r, err := parseRemote(address)
	if err != nil {
		return err
	}
	argv, err := r.command(ctx, args...)
	if err != nil {
		return err
	}
	return runProgram(ctx, argv, in, out)
}

// runProgram runs a program. The error says what failed, with the last of what the program printed as errors.
func runProgram(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	said := &tailBuffer{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, said
	cmd.WaitDelay = time.Second // a grandchild may have its output open
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return ctx.Err() // it was killed
	case err != nil:
		return &childError{argv[0], err, said.String()}
	}
	return nil
}

// A childError is the end of a program that reaches a node, in the program's own words.
type childError struct {
	program string
	err     error
	said    string
}

func (e *childError) Error() string {
	if e.said == "" {
		return fmt.Sprintf("%s: %v", e.program, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.said)
}

func (e *childError) Unwrap() error { return e.err }

// tailBuffer keeps the last of what is written to it.
type tailBuffer struct{ kept []byte }

const keptOutput = 2 << 10 // bytes

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p...)
	b.kept = b.kept[max(len(b.kept)-keptOutput, 0):]
	return len(p), nil
}

// String returns what was kept in one line.
func (b *tailBuffer) String() string {
	return strings.Join(strings.FieldsFunc(string(bytes.TrimSpace(b.kept)), func(c rune) bool { return c == '\n' || c == '\r' }), "; ")
}
