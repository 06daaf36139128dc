package criadapter

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/wire"
)

var statusFields = (&runtimeapi.StatusResponse{}).ProtoReflect().Descriptor().Fields()

// mergeStatus makes the status of a node with several runtimes.
//
// The conditions are the primary's alone: with another runtime's problem among them, kubelet would
// stop the whole node within seconds. The handlers are the primary's and those of the others that
// RuntimeClasses can name, under their front names. Handler "" and the runtime as a whole have only
// the features that all runtimes have: annotations can send a pod of handler "" to any runtime, and
// a runtime silently ignores a feature that it does not know, such as user namespaces or read-only
// mounts.
func mergeStatus(parts []director.Part) (*codec.Frame, error) {
	primary := parts[0]
	if primary.Err != nil {
		return nil, primary.Err
	}
	if primary.Remembered {
		return nil, status.Errorf(codes.Unavailable, "criproxy: Status: backend %s does not answer, and its cached status cannot tell its conditions", primary.Backend)
	}
	rest, merged, err := splitStatus(primary.Reply.Bytes())
	if err != nil {
		return nil, fmt.Errorf("status of backend %s: %w", primary.Backend, err)
	}
	for _, other := range parts[1:] {
		if other.Err != nil || other.Reply.Len() == 0 {
			continue // the runtime has no pods, or its features are not known
		}
		_, theirs, err := splitStatus(other.Reply.Bytes())
		if err != nil {
			continue
		}
		merged.add(theirs, other.Backend.Maps[Handlers])
	}
	if merged.same {
		return primary.Reply, nil
	}
	return codec.NewFrame(merged.append(rest)), nil
}

// abilities are the parts of a status that are merged.
type abilities struct {
	handlers []*runtimeapi.RuntimeHandler
	features *runtimeapi.RuntimeFeatures
	same     bool // nothing was added or removed
}

// splitStatus splits a status into its abilities and the bytes of all other fields.
func splitStatus(reply []byte) (rest []byte, a *abilities, err error) {
	a = &abilities{same: true}
	for f, err := range wire.Fields(reply) {
		if err != nil {
			return nil, nil, err
		}
		switch {
		case f.Type == protowire.BytesType && f.Number == statusFields.ByName("runtime_handlers").Number():
			h := &runtimeapi.RuntimeHandler{}
			err = proto.Unmarshal(f.Bytes(), h)
			a.handlers = append(a.handlers, h)
		case f.Type == protowire.BytesType && f.Number == statusFields.ByName("features").Number():
			if a.features == nil {
				a.features = &runtimeapi.RuntimeFeatures{}
			}
			err = proto.UnmarshalOptions{Merge: true}.Unmarshal(f.Bytes(), a.features)
		default:
			rest = append(rest, f.Raw...)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return rest, a, nil
}

// add merges the abilities of another runtime. handlers are the front names for its handlers:
// front name → back name.
func (a *abilities) add(theirs *abilities, handlers map[string]string) {
	for _, h := range theirs.handlers {
		own, mapped := handlers[h.GetName()] // the director has translated the name, unless it is empty
		if !mapped {
			own = h.GetName()
		}
		for _, front := range slices.Sorted(maps.Keys(handlers)) {
			if handlers[front] != own {
				continue
			}
			// The primary may have a handler with that name, too. No pod reaches it.
			a.handlers = slices.DeleteFunc(a.handlers, func(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == front })
			named := proto.Clone(h).(*runtimeapi.RuntimeHandler)
			named.Name = front
			a.handlers = append(a.handlers, named)
			a.same = false
		}
	}
	if def := a.handler(""); def != nil && len(theirs.handlers) > 0 {
		if other := theirs.handler(""); both(def.GetFeatures(), other.GetFeatures()) {
			a.same = false
		}
	} else if def == nil && len(a.handlers) > 0 {
		// If a list has handlers, kubelet refuses pods of a handler that it lacks.
		a.handlers = append(a.handlers, &runtimeapi.RuntimeHandler{})
		a.same = false
	}
	if a.features != nil && both(a.features, theirs.features) {
		a.same = false
	}
}

func (a *abilities) handler(name string) *runtimeapi.RuntimeHandler {
	if i := slices.IndexFunc(a.handlers, func(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == name }); i >= 0 {
		return a.handlers[i]
	}
	return nil
}

// both clears the features in m that other does not have, and reports whether that changed m.
func both(m, other proto.Message) (changed bool) {
	a, b := m.ProtoReflect(), other.ProtoReflect()
	a.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if fd.Kind() == protoreflect.BoolKind && !b.Get(fd).Bool() {
			a.Clear(fd)
			changed = true
		}
		return true
	})
	return changed
}

// append appends the abilities to the rest of a status.
func (a *abilities) append(rest []byte) []byte {
	b, err := proto.MarshalOptions{}.MarshalAppend(rest, &runtimeapi.StatusResponse{RuntimeHandlers: a.handlers, Features: a.features})
	if err != nil {
		return rest // cannot happen: all strings were decoded
	}
	return b
}
