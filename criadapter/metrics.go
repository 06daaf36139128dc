package criadapter

import (
	"bytes"
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
	"github.com/criproxy/criproxy/internal/wire"
	"github.com/criproxy/criproxy/rewrite"
)

// metrics makes the samples of all runtimes fit one set of descriptors. The values of a sample's
// labels stand in the order of its descriptor's keys. For metrics of the same name, runtimes
// differ in that order and in their labels. kubelet asks for the descriptors once, when it
// starts: it would silently mix up values in another order, and it drops a sample with another
// number of values.
//
// So the descriptor of a metric is that of the first runtime which has it:
//
//   - The primary's descriptors and samples pass as they are.
//   - The samples of another runtime get the values of the descriptor's labels, in its order,
//     empty for labels that the runtime does not have. A label that the descriptor does not
//     have is dropped if it has no value, or the value "total", which says that the sample is
//     the whole. Any other sample with such a label is one of several parts that nothing would
//     tell apart any more, and is left out.
//   - A sample whose own descriptor is not known is left out.
//
// The descriptors come from the memory of the backends, so that they survive reloads and
// restarts without a memory of clients. The descriptor of a metric that the primary lacks may
// change when a runtime appears that stands before the one that had it.
type metrics struct {
	mu   sync.Mutex
	last map[string]*descriptors // :: backend → its latest answer
}

// descriptors are what one backend says.
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
			if failure == nil {
				failure = p.Err
			}
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
		if i == 0 { // what a newer CRI has besides is the primary's
			merged.ProtoReflect().SetUnknown(theirs.ProtoReflect().GetUnknown())
		}
		if p.Backend.Known == nil {
			m.learn(p.Backend.Name, bytes.Clone(p.Reply.Bytes()), &theirs)
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

// learn takes note of a backend's descriptors.
func (m *metrics) learn(backend string, reply []byte, list *runtimeapi.ListMetricDescriptorsResponse) *descriptors {
	d := &descriptors{reply, map[string][]string{}}
	for _, one := range list.GetDescriptors() {
		d.keys[one.GetName()] = append([]string{}, one.GetLabelKeys()...) // never nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[backend] = d
	return d
}

// keys returns the label keys of a metric as the backend has them, nil if it is not
// known to have it.
func (m *metrics) keys(b director.Backend, metric string) []string {
	m.mu.Lock()
	d := m.last[b.Name]
	m.mu.Unlock()
	if b.Known != nil {
		if reply, ok := b.Known.Reply(descriptorsMethod); ok && (d == nil || !bytes.Equal(d.reply, reply)) {
			var list runtimeapi.ListMetricDescriptorsResponse
			if proto.Unmarshal(reply, &list) == nil {
				d = m.learn(b.Name, reply, &list)
			}
		}
	}
	if d == nil {
		return nil
	}
	return d.keys[metric]
}

// labelsOf returns the label keys of a metric that clients get.
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
			return dst, rewrite.ErrDrop // nothing says which label each value is of
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
			case key == "id" && !bytes.HasPrefix(v, []byte("/")): // some have a cgroup there
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
	for f := range wire.Fields(sample) { // splitSample has seen all of it
		if f.Number != sampleValues {
			dst = append(dst, f.Raw...)
		}
	}
	for _, v := range values {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, sampleValues, protowire.BytesType), v)
	}
	return dst
}
