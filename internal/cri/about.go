package cri

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/internal/observe/calls"
	"github.com/criproxy/criproxy/internal/profile"
)

// Names finds out which pods, containers and images messages of CRI are about, and remembers to
// which pod and container an id belongs. Reading a message needs no lock; what Names remembers is under mu. It is safe for
// concurrent use.
type Names struct {
	profile *director.Profile
	kind    func(protoreflect.FieldDescriptor) string
	other   map[string]string // :: full name of a field of another API → its part, as in profile.Profile.Shown

	mu       sync.Mutex
	now, old map[string]calls.About // :: id → its pod and container; old is dropped when now is full
}

// maxNames is how many of the latest ids Names remembers at least.
const maxNames = 10_000

// NewNames returns names for a profile and its schema, which say which fields hold ids. other says
// it for the fields of another API; it is the result of [profile.Profile.Shown].
func NewNames(p *director.Profile, s *codec.Schema, other map[string]string) (*Names, error) {
	fields, err := profile.FieldsOf(p, s)
	if err != nil {
		return nil, err
	}
	return &Names{profile: p, kind: fields.Kind, other: other, now: map[string]calls.About{}}, nil
}

// Message implements [calls.Namer].
func (n *Names) Message(md protoreflect.MessageDescriptor, payload []byte) (about calls.About, items []calls.About) {
	r := aboutReader{names: n}
	r.message(md, payload, &about, 0)
	return about, r.items
}

// Given reports whether a field holds a name that a backend gives, of whatever kind.
func (n *Names) Given(fd protoreflect.FieldDescriptor) bool {
	form, named := n.profile.Names[n.kind(fd)]
	return named && form.Map == ""
}

// Bare returns an id without the prefix of its runtime, or "" for an id without a prefix.
func (n *Names) Bare(id string) string { return n.profile.Bare(id) }

// An aboutReader reads one message. What it finds in a list goes to items, one for each item of the list; all else is about
// the message as a whole.
type aboutReader struct {
	names *Names
	items []calls.About
}

func (r *aboutReader) message(md protoreflect.MessageDescriptor, b []byte, a *calls.About, depth int) {
	if depth > 10 { // no message of CRI nests so deep
		return
	}
	var created, started time.Time
	for f, err := range wire.Fields(b) {
		if err != nil {
			break
		}
		switch fd := md.Fields().ByNumber(f.Number); {
		case fd == nil:
		case f.Type == protowire.BytesType:
			r.field(md, fd, f.Bytes(), a, depth)
		case fd.Name() == "created_at" && f.Uint() > 0:
			created = time.Unix(0, int64(f.Uint()))
		case fd.Name() == "started_at" && f.Uint() > 0:
			started = time.Unix(0, int64(f.Uint()))
		case fd.Name() == "state" && fd.Enum() != nil:
			v := fd.Enum().Values().ByNumber(protoreflect.EnumNumber(f.Uint()))
			a.Running = v != nil && v.Name() == "CONTAINER_RUNNING"
		}
	}
	switch md.Name() {
	case "PodSandbox", "PodSandboxStatus":
		a.Created = created
	case "Container", "ContainerStatus":
		if a.Running {
			a.Started = cmp.Or(started, created)
		}
	}
}

func (r *aboutReader) field(md protoreflect.MessageDescriptor, fd protoreflect.FieldDescriptor, v []byte, a *calls.About, depth int) {
	switch {
	case fd.IsMap():
		if fd.Name() == "labels" {
			label(a, v)
		}
	case fd.IsList() && fd.Message() != nil:
		var item calls.About
		r.message(fd.Message(), v, &item, depth+1)
		if len(item.IDs) > 0 {
			r.items = append(r.items, item)
		}
	case fd.Message() != nil:
		r.message(fd.Message(), v, a, depth+1)
	case fd.Kind() == protoreflect.StringKind && len(v) > 0:
		r.text(md, fd, string(v), a)
	}
}

func (r *aboutReader) text(md protoreflect.MessageDescriptor, fd protoreflect.FieldDescriptor, v string, a *calls.About) {
	name := string(md.Name()) + "." + string(fd.Name())
	kind, part := r.names.kind(fd), r.names.other[string(fd.FullName())]
	switch {
	case name == "PodSandboxMetadata.name":
		a.Pod = v
	case name == "PodSandboxMetadata.namespace":
		a.Namespace = v
	case name == "PodSandboxMetadata.uid":
		a.UID = v
	case name == "ContainerMetadata.name":
		a.Container = v
	case part == profile.AboutName:
		a.Name = cmp.Or(a.Name, v)
	case part == profile.AboutNamespace:
		a.Namespace = cmp.Or(a.Namespace, v)
	case kind == "image":
		if name == "Image.id" {
			a.IDs = append(a.IDs, v)
		}
		if a.Image == "" || name == "ImageSpec.user_specified_image" {
			a.Image = v
		}
	case part != profile.AboutID && !r.names.Given(fd):
	case slices.Contains(a.IDs, v): // both fields of an event may hold the sandbox's id
	case kind == "container": // put it before the id of its pod
		a.IDs = append([]string{v}, a.IDs...)
	default:
		a.IDs = append(a.IDs, v)
	}
}

// label takes in an entry of the labels that kubelet gives to pods and containers.
func label(a *calls.About, entry []byte) {
	k, v, ok := wire.MapEntry(entry)
	if !ok {
		return
	}
	key, value := string(k), string(v)
	switch key {
	case "io.kubernetes.pod.name":
		a.Pod = value
	case "io.kubernetes.pod.namespace":
		a.Namespace = value
	case "io.kubernetes.pod.uid":
		a.UID = value
	case "io.kubernetes.container.name":
		a.Container = value
	}
}

// Learn implements [calls.Namer].
func (n *Names) Learn(a calls.About) {
	if len(a.IDs) == 0 || a.Pod == "" && a.Container == "" && a.Name == "" && len(a.IDs) < 2 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, id := range a.IDs {
		one := calls.About{Namespace: a.Namespace, Pod: a.Pod, UID: a.UID, Name: a.Name, IDs: a.IDs[i:]}
		if i == 0 {
			one.Container = a.Container
		}
		n.put(strings.Clone(id), one)
	}
}

// put remembers what an id belongs to. n.mu is held.
func (n *Names) put(id string, a calls.About) {
	if was, ok := n.get(id); ok { // an earlier message may have had what this one lacks
		complete(&a, was, true)
		if len(a.IDs) < len(was.IDs) {
			a.IDs = was.IDs
		}
	}
	a.Image, a.Items = "", 0
	if len(n.now) >= maxNames {
		n.old, n.now = n.now, map[string]calls.About{}
	}
	n.now[id] = a
}

// complete gives a the names that it lacks and known has. It only gives the name of the container if container is set.
func complete(a *calls.About, known calls.About, container bool) {
	if a.Pod == "" {
		a.Namespace, a.Pod, a.UID = known.Namespace, known.Pod, known.UID
	}
	if container {
		a.Container = cmp.Or(a.Container, known.Container)
	}
	if a.Name == "" {
		a.Namespace, a.Name = cmp.Or(a.Namespace, known.Namespace), known.Name
	}
}

// get returns what an id, as it is, belongs to. n.mu is held.
func (n *Names) get(id string) (calls.About, bool) {
	if a, ok := n.now[id]; ok {
		return a, true
	}
	a, ok := n.old[id]
	return a, ok
}

// Complete implements [calls.Namer].
func (n *Names) Complete(a calls.About) calls.About {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := 0; i < len(a.IDs) && (i == 0 || a.Pod == "" && a.Name == ""); i++ { // it gets more ids: the pod may be known by another one
		id := a.IDs[i]
		known, ok := n.known(id)
		if !ok {
			continue
		}
		complete(&a, known, i == 0)
		for _, more := range known.IDs {
			if !slices.Contains(a.IDs, more) {
				a.IDs = append(a.IDs[:len(a.IDs):len(a.IDs)], more)
			}
		}
	}
	return a
}

// known finds what an id, or its beginning, belongs to. criproxy's own lists have ids without the prefixes of runtimes.
func (n *Names) known(id string) (calls.About, bool) {
	a, ok := n.find(id)
	bare := n.Bare(id)
	if ok || bare == "" {
		return a, ok
	}
	a, ok = n.find(bare)
	native := a.IDs
	a.IDs = nil
	for _, one := range native {
		a.IDs = append(a.IDs, strings.TrimSuffix(id, bare)+one)
	}
	return a, ok
}

// find is get also for the beginning of an id, if only one id begins so: crictl sends short ids.
func (n *Names) find(start string) (found calls.About, ok bool) {
	if found, ok = n.get(start); ok || len(start) >= 64 {
		return found, ok
	}
	for _, m := range []map[string]calls.About{n.now, n.old} {
		for id, a := range m {
			if strings.HasPrefix(id, start) {
				if ok {
					return calls.About{}, false
				}
				found, ok = a, true
			}
		}
		if ok {
			break
		}
	}
	return found, ok
}
