package criadapter

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/rewrite"
)

// metrics makes the samples of all runtimes fit one set of descriptors. The
// values of a sample's labels stand in the order of its descriptor's keys, and
// runtimes differ in that order for metrics of the same name: kubelet, which keeps
// one descriptor a name, would swap them without a word.
//
// It learns the descriptors from what is known of the backends.
type metrics struct {
	mu      sync.Mutex
	merged  map[string][]string            // :: metric → label keys, in the order told to clients
	backend map[string]map[string][]string // :: backend → metric → its own label keys
	raw     map[string]string              // :: backend → the reply that is in backend
}

func newMetrics() *metrics {
	return &metrics{merged: map[string][]string{}, backend: map[string]map[string][]string{}, raw: map[string]string{}}
}

const descriptorsMethod = "ListMetricDescriptors"

// descriptors is the merge of ListMetricDescriptors: each name once, as the first
// runtime has it, with the label keys that only others have behind its own.
func (m *metrics) descriptors(parts []director.Part) (*codec.Frame, error) {
	merged := &runtimeapi.ListMetricDescriptorsResponse{}
	byName := map[string]*runtimeapi.MetricDescriptor{}
	var failure error
	answered := false
	for _, p := range parts {
		if p.Err != nil {
			if failure == nil {
				failure = p.Err
			}
			if p.Backend.Name == parts[0].Backend.Name && !isUnimplemented(p.Err) {
				return nil, p.Err
			}
			continue
		}
		answered = true
		var theirs runtimeapi.ListMetricDescriptorsResponse
		if err := proto.Unmarshal(p.Reply.Bytes(), &theirs); err != nil {
			return nil, fmt.Errorf("metric descriptors of backend %s: %w", p.Backend, err)
		}
		if p.Backend.Name == parts[0].Backend.Name { // what a newer CRI has besides is the primary's
			merged.ProtoReflect().SetUnknown(theirs.ProtoReflect().GetUnknown())
		}
		m.learn(p.Backend.Name, string(p.Reply.Bytes()), &theirs)
		for _, d := range theirs.GetDescriptors() {
			if byName[d.GetName()] == nil {
				byName[d.GetName()] = d
				merged.Descriptors = append(merged.Descriptors, d)
			}
		}
	}
	if !answered {
		return nil, failure
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range merged.GetDescriptors() {
		d.LabelKeys = slices.Clone(m.merged[d.GetName()])
	}
	b, err := proto.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("merging metric descriptors: %w", err)
	}
	return codec.NewFrame(b), nil
}

// learn takes note of a backend's descriptors. Keys that clients have been told of
// keep their places.
func (m *metrics) learn(backend, raw string, list *runtimeapi.ListMetricDescriptorsResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := map[string][]string{}
	for _, d := range list.GetDescriptors() {
		keys[d.GetName()] = d.GetLabelKeys()
		for _, k := range d.GetLabelKeys() {
			if !slices.Contains(m.merged[d.GetName()], k) {
				m.merged[d.GetName()] = append(m.merged[d.GetName()], k)
			}
		}
	}
	m.backend[backend], m.raw[backend] = keys, raw
}

// keys returns the label keys of a metric, the backend's own and the merged ones,
// nil if its descriptor is not known.
func (m *metrics) keys(b director.Backend, metric string) (own, merged []string) {
	if b.Known != nil {
		if reply, ok := b.Known.Reply(descriptorsMethod); ok {
			m.mu.Lock()
			same := m.raw[b.Name] == string(reply)
			m.mu.Unlock()
			var list runtimeapi.ListMetricDescriptorsResponse
			if !same && proto.Unmarshal(reply, &list) == nil {
				m.learn(b.Name, string(reply), &list)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.backend[b.Name][metric], m.merged[metric]
}

// edit is the edit of one sample of a backend; of a single one there is nothing
// to do.
func (m *metrics) edit(c director.EditContext) director.Edit {
	if c.Backends == 1 {
		return nil
	}
	return func(dst, sample []byte) ([]byte, error) {
		name, values, err := splitSample(sample)
		if err != nil {
			return dst, err
		}
		own, merged := m.keys(c.Backend, name)
		if own == nil || len(own) != len(values) {
			return dst, rewrite.ErrDrop // nobody can tell what its values are of
		}
		permuted := make([][]byte, len(merged))
		for i, key := range own {
			v := values[i]
			switch {
			case key == "id" && !bytes.HasPrefix(v, []byte("/")): // some have a cgroup there
				v = c.Front(nil, "container", v)
			case key == "image":
				v = c.Front(nil, "image", v)
			}
			permuted[slices.Index(merged, key)] = v
		}
		return joinSample(dst, sample, permuted), nil
	}
}

var (
	sampleName   = (&runtimeapi.Metric{}).ProtoReflect().Descriptor().Fields().ByName("name").Number()
	sampleValues = (&runtimeapi.Metric{}).ProtoReflect().Descriptor().Fields().ByName("label_values").Number()
)

// splitSample returns the name and the label values of a Metric.
func splitSample(sample []byte) (name string, values [][]byte, err error) {
	for len(sample) > 0 {
		num, typ, n := protowire.ConsumeField(sample)
		if n < 0 {
			return "", nil, fmt.Errorf("a metric: %w", protowire.ParseError(n))
		}
		if typ == protowire.BytesType && (num == sampleName || num == sampleValues) {
			_, _, tag := protowire.ConsumeTag(sample)
			v, _ := protowire.ConsumeBytes(sample[tag:])
			if num == sampleName {
				name = string(v)
			} else {
				values = append(values, v)
			}
		}
		sample = sample[n:]
	}
	return name, values, nil
}

// joinSample appends a Metric with other label values, all else as it is.
func joinSample(dst, sample []byte, values [][]byte) []byte {
	for len(sample) > 0 {
		num, _, n := protowire.ConsumeField(sample) // splitSample has seen it
		if num != sampleValues {
			dst = append(dst, sample[:n]...)
		}
		sample = sample[n:]
	}
	for _, v := range values {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, sampleValues, protowire.BytesType), v)
	}
	return dst
}
