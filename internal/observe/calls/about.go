package calls

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// About says what a message or a call is about, in the names that clients see. Any of its fields may
// be empty.
type About struct {
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	UID       string    `json:"uid,omitempty"` // of the pod
	Container string    `json:"container,omitempty"`
	Name      string    `json:"name,omitempty"` // in an API without pods
	Image     string    `json:"image,omitempty"`
	IDs       []string  `json:"ids,omitempty"` // the main one first
	Items     int       `json:"items,omitempty"`
	Created   time.Time `json:"-"` // the pod's sandbox
	Running   bool      `json:"-"` // the container
	Started   time.Time `json:"-"` // the container that runs or, if nobody said that, when it was created
}

// A Namer finds out what messages of an API are about, and remembers the names of ids.
type Namer interface {
	// Message returns what a message is about, and the items that it lists.
	Message(md protoreflect.MessageDescriptor, payload []byte) (about About, items []About)
	// Learn remembers a under the first of its IDs.
	Learn(a About)
	// Bare returns an id without its backend's prefix, or "" if it has no prefix.
	Bare(id string) string
	// Complete returns a, with the names that Learn has remembered for its IDs.
	Complete(a About) About
}

// add fills in empty fields of a from more.
func (a *About) add(more About) {
	a.Namespace, a.Pod, a.UID = cmp.Or(a.Namespace, more.Namespace), cmp.Or(a.Pod, more.Pod), cmp.Or(a.UID, more.UID)
	a.Container, a.Name, a.Image = cmp.Or(a.Container, more.Container), cmp.Or(a.Name, more.Name), cmp.Or(a.Image, more.Image)
	if a.Created.IsZero() {
		a.Created = more.Created
	}
	if more.Running && !a.Running {
		a.Running, a.Started = true, more.Started
	}
	for _, id := range more.IDs {
		if !slices.Contains(a.IDs, id) && len(a.IDs) < maxIDs {
			a.IDs = append(a.IDs, id)
		}
	}
}

// Unnamed reports whether it has the id of something whose name is not known.
func (a About) Unnamed() bool {
	return len(a.IDs) > 0 && a.Pod == "" && a.Name == "" && a.Image == ""
}

// maxIDs bounds the number of ids of one call.
const maxIDs = 16

// String returns what a reader looks for: pod and container, or else an id or an image.
func (a About) String() string {
	var words []string
	name := cmp.Or(a.Pod, a.Name)
	if a.Namespace != "" && name != "" {
		name = a.Namespace + "/" + name
	}
	if a.Container != "" {
		name = strings.TrimPrefix(name+"/"+a.Container, "/")
	}
	if name != "" {
		words = append(words, name)
	}
	if len(a.IDs) > 0 {
		words = append(words, ShortID(a.IDs[0]))
	}
	if a.Image != "" && a.Container == "" {
		words = append(words, ShortID(a.Image))
	}
	return strings.Join(words, " ")
}

// ShortID cuts the hexadecimal end of an id to 13 characters, as crictl does.
func ShortID(id string) string {
	hex := len(id) - len(strings.TrimRight(id, "0123456789abcdef"))
	if hex > 13 {
		return id[:len(id)-hex+13]
	}
	return id
}
