package backend

import (
	"fmt"
	"strings"

	"github.com/criproxy/criproxy/internal/transport"
)

// Errors say in these words why a backend is not there. Whoever has only the text, as in a recording, asks the functions
// below what it says.
const (
	ofBackend   = "criproxy: backend " // and its name: begins what criproxy itself says to a client
	goneSince   = "is gone since "
	unreachedAt = "cannot be reached at "

	// CameBack is what the criproxy says that gets a call which it has passed on itself.
	CameBack = "came back to the criproxy that passed it on"
)

// UnreachedError is the error about a backend that cannot be reached at an address.
func UnreachedError(address string, why error) error {
	return fmt.Errorf(unreachedAt+"%s: %w", address, why)
}

// NameIn returns the backend in a message that criproxy made without an answer of the backend, or "".
func NameIn(message string) string {
	name, _ := about(message)
	return strings.TrimSuffix(name, ":")
}

// NotReachedIn returns the backend that criproxy could not reach, as it says in a message, or "". What another part of criproxy
// was doing meanwhile may come first.
func NotReachedIn(message string) string {
	message = message[max(strings.Index(message, ofBackend), 0):]
	if name, why := about(message); strings.HasPrefix(why, unreachedAt) || strings.HasPrefix(why, goneSince) {
		return name
	}
	return ""
}

// about returns what criproxy itself says in a message: of which backend, and what.
func about(message string) (name, why string) {
	rest, ours := strings.CutPrefix(message, ofBackend)
	name, why, whole := strings.Cut(rest, " ")
	if !ours || !whole {
		return "", ""
	}
	return name, why
}

// Hangs reports whether a backend is gone, for this reason, because it answers nothing.
func Hangs(why string) bool { return strings.Contains(why, transport.Silent) }

// SameTrouble reports whether two reasons say the same: that a backend cannot be reached at one address, or that it hangs. A
// runtime that is killed ends its connection and then refuses others; one that hangs does so for longer and longer.
func SameTrouble(a, b string) bool {
	at, _, _ := strings.Cut(a, ": ")
	other, _, _ := strings.Cut(b, ": ")
	return a == b || at == other && strings.HasPrefix(at, unreachedAt) || Hangs(a) && Hangs(b)
}
