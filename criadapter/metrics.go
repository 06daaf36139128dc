package criadapter

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// metrics makes the samples of all runtimes fit one set of descriptors. A sample has the values of
// its labels in the order of the keys in its descriptor. Runtimes differ in that order, and in the
// labels, for metrics of the same name. kubelet asks for the descriptors once, when it starts. It
// would silently mix up values in another order, and it drops a sample with another number of
// values.
//
// So the descriptor of a metric is that of the first runtime that has it:
//
//   - The primary's descriptors and samples pass as they are.
//   - A sample of another runtime gets the labels of the descriptor, in their order. A label that
//     the runtime does not have gets an empty value. A label that the descriptor does not have
//     is dropped if its value is empty or "total", which says that the sample is the whole. With
//     any other value, the sample is one of several parts that would look the same without the
//     label, so metrics drops the sample.
//   - metrics drops a sample whose own descriptor it does not know.
//
// The descriptors come from the cache of the backends, and so survive reloads and restarts. The
// descriptor of a metric that the primary lacks may change when another runtime appears before the
// one that it came from.
//
// last holds them parsed, because samples are many and descriptors few. It keeps a value until the reply in the cache is
// another one. Reading needs no lock. A metrics belongs to one director.
type metrics struct {
	last sync.Map // :: name of a backend → its latest *descriptors
}

// descriptors are the metric descriptors of one backend.
type descriptors struct {
	reply []byte              // as it came
	keys  map[string][]string // :: metric → label keys
}

const (
	descriptorsMethod = "ListMetricDescriptors"
	wholeValue        = "total" // cAdvisor's word, as in cpu="total"
)

// descriptors is the merge of ListMetricDescriptors: each name once, as the first
// runtime has it.
func (m *metrics) descriptors(parts []director.Part) (*codec.Frame, error) {
	merged := &runtimeapi.ListMetricDescriptorsResponse{}
	named := map[string]bool{}
	var failure error
	answered := false
	for i, p := range parts {
		if p.Err != nil {
			failure = cmp.Or(failure, p.Err)
			if i == 0 && status.Code(p.Err) != codes.Unimplemented {
				return nil, p.Err
			}
			continue
		}
		answered = true
		var theirs runtimeapi.ListMetricDescriptorsResponse
		if err := proto.Unmarshal(p.Reply.Bytes(), &theirs); err != nil {
			return nil, fmt.Errorf("metric descriptors of backend %s: %w", p.Backend, err)
		}
		if i == 0 { // fields of a newer CRI are the primary's
			merged.ProtoReflect().SetUnknown(theirs.ProtoReflect().GetUnknown())
		}
		if p.Backend.Known == nil {
			m.store(p.Backend.Name, bytes.Clone(p.Reply.Bytes()), &theirs)
		}
		for _, d := range theirs.GetDescriptors() {
			if !named[d.GetName()] {
				named[d.GetName()] = true
				merged.Descriptors = append(merged.Descriptors, d)
			}
		}
	}
	if !answered {
		return nil, failure
	}
	b, err := proto.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("merging metric descriptors: %w", err)
	}
	return codec.NewFrame(b), nil
}

// store keeps a backend's descriptors, and returns them.
func (m *metrics) store(backend string, reply []byte, list *runtimeapi.ListMetricDescriptorsResponse) *descriptors {
	d := &descriptors{reply, map[string][]string{}}
	for _, one := range list.GetDescriptors() {
		d.keys[one.GetName()] = append([]string{}, one.GetLabelKeys()...) // never nil
	}
	m.last.Store(backend, d)
	return d
}

// keys returns the label keys of a metric in the backend's own descriptor, or nil if metrics does
// not know it.
func (m *metrics) keys(b director.Backend, metric string) []string {
	last, _ := m.last.Load(b.Name)
	d, _ := last.(*descriptors) // nil: there is none yet
	if b.Known != nil {
		if reply, ok := b.Known.Reply(descriptorsMethod); ok && (d == nil || !bytes.Equal(d.reply, reply)) {
			var list runtimeapi.ListMetricDescriptorsResponse
			if proto.Unmarshal(reply, &list) == nil {
				d = m.store(b.Name, reply, &list)
			}
		}
	}
	if d == nil {
		return nil
	}
	return d.keys[metric]
}

// labelsOf returns the label keys of a metric in the descriptor that clients get.
func (m *metrics) labelsOf(all []director.Backend, metric string) []string {
	for _, b := range all {
		if keys := m.keys(b, metric); keys != nil {
			return keys
		}
	}
	return nil
}

// edit returns the edit for the samples of a backend; nil for the primary, whose samples stay.
func (m *metrics) edit(c director.EditContext) director.Edit {
	if c.Backend.Name == c.Backends[0].Name {
		return nil
	}
	return func(dst, sample []byte) ([]byte, error) {
		name, values, err := splitSample(sample)
		if err != nil {
			return dst, err
		}
		own := m.keys(c.Backend, name)
		if own == nil || len(own) != len(values) {
			return dst, rewrite.ErrDrop // it is not known which value belongs to which label
		}
		labels := m.labelsOf(c.Backends, name)
		fitting := make([][]byte, len(labels))
		for i, key := range own {
			v := values[i]
			at := slices.Index(labels, key)
			switch {
			case at < 0 && len(v) > 0 && string(v) != wholeValue:
				return dst, rewrite.ErrDrop
			case at < 0:
				continue
			case key == "id" && !bytes.HasPrefix(v, []byte("/")): // with a slash it is a cgroup
				v = c.Front(nil, "container", v)
			case key == "image":
				v = c.Front(nil, "image", v)
			}
			fitting[at] = v
		}
		return joinSample(dst, sample, fitting), nil
	}
}

var (
	sampleName   = (&runtimeapi.Metric{}).ProtoReflect().Descriptor().Fields().ByName("name").Number()
	sampleValues = (&runtimeapi.Metric{}).ProtoReflect().Descriptor().Fields().ByName("label_values").Number()
)

// splitSample returns the name and the label values of a Metric.
func splitSample(sample []byte) (name string, values [][]byte, err error) {
	for f, err := range wire.Fields(sample) {
		switch {
		case err != nil:
			return "", nil, fmt.Errorf("a metric: %w", err)
		case f.Type != protowire.BytesType:
		case f.Number == sampleName:
			name = string(f.Bytes())
		case f.Number == sampleValues:
			values = append(values, f.Bytes())
		}
	}
	return name, values, nil
}

// joinSample appends a Metric with other label values, all else as it is.
func joinSample(dst, sample []byte, values [][]byte) []byte {
	for f := range wire.Fields(sample) { // splitSample has checked it
		if f.Number != sampleValues {
			dst = append(dst, f.Raw...)
		}
	}
	for _, v := range values {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, sampleValues, protowire.BytesType), v)
	}
	return dst
}
