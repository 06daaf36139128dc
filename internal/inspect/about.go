package inspect

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// About is what a message or a call is about, in the words of its API. All of it may
// be missing.
type About struct {
	Namespace string   `json:"namespace,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	UID       string   `json:"uid,omitempty"` // of the pod
	Container string   `json:"container,omitempty"`
	Name      string   `json:"name,omitempty"` // of what it is about, in an API that has no pods
	Image     string   `json:"image,omitempty"`
	IDs       []string `json:"ids,omitempty"` // with the one that it is mainly about first
	Items     int      `json:"items,omitempty"`
}

// A Namer finds out what messages of an API are about, and remembers the names that belong to ids.
type Namer interface {
	// Message returns what a message is about, and the things that it lists.
	Message(md protoreflect.MessageDescriptor, payload []byte) (about About, items []About)
	// Learn remembers a by the first of its IDs.
	Learn(a About)
	// Bare returns an id as its backend has it, empty if it has no backend's prefix.
	Bare(id string) string
	// Complete returns a with the names that are remembered of its ids.
	Complete(a About) About
}

// add fills in what a lacks.
func (a *About) add(more About) {
	a.Namespace, a.Pod, a.UID = cmp.Or(a.Namespace, more.Namespace), cmp.Or(a.Pod, more.Pod), cmp.Or(a.UID, more.UID)
	a.Container, a.Name, a.Image = cmp.Or(a.Container, more.Container), cmp.Or(a.Name, more.Name), cmp.Or(a.Image, more.Image)
	for _, id := range more.IDs {
		if !slices.Contains(a.IDs, id) && len(a.IDs) < maxIDs {
			a.IDs = append(a.IDs, id)
		}
	}
}

// maxIDs is how many ids one call is about at most.
const maxIDs = 16

// String is what people look for: pod and container, else an id, or an image.
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
