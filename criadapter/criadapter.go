// Package criadapter says what CRI is, for director. Nearly all of it is data, in cri.yaml;
// what no table can say is in the files beside it:
//
//	cfg, err := criadapter.Config(criadapter.Options{})
//	cfg.Backends = backends
//	d, err := director.New(cfg)
//
// The names, methods and fields of CRI are those of k8s.io/cri-api; what kubelet, containerd and CRI-O
// make of them is noted in cri.yaml where a rule is surprising.
//
// # Stability
//
// Programs may use [Config] with director and codec, as those packages promise. The rest is there for
// criproxy itself and may change.
package criadapter

import (
	_ "embed"
	"fmt"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/director"
)

//go:embed cri.yaml
var criYAML []byte

// Handlers is the table in the Maps of a [director.Backend] that translates runtime
// handlers: the handler in front → the backend's own.
const Handlers = "handlers"

// Options change what CRI is taken for. The zero value is CRI as this program is built with it.
type Options struct {
	// StreamURL completes the URLs of exec, attach and port-forward that a runtime returns
	// without a host. Empty means "http://ADDRESS:11250", with [NodeAddress] and the port of
	// dockershim's streaming server.
	StreamURL string

	// Schema describes a newer CRI, or another one, than this program is built with. Its
	// methods go before those of this program. Optional.
	Schema *codec.Schema

	// BuiltIn replaces the CRI that this program is built with, by that of another release.
	// Optional.
	BuiltIn *codec.Schema

	// Rules are added to cri.yaml and go before what it says: for fields and methods that
	// Schema adds, or in place of the built-in ones. Optional.
	Rules *director.Profile

	// Panicked is as in [director.Config], which gets it as well. Optional.
	Panicked func(doing string, value any, stack []byte)
}

// Config returns the configuration of a director for CRI. The caller adds the backends. Its error names
// the mistakes in o.Rules, or in o.StreamURL. The functions in the configuration are safe for concurrent
// use; what they remember belongs to that configuration.
func Config(o Options) (director.Config, error) {
	p, err := director.ParseProfile(criYAML)
	if err != nil {
		return director.Config{}, fmt.Errorf("the built-in cri.yaml: %w", err)
	}
	schema := Schema()
	if o.BuiltIn != nil {
		schema = o.BuiltIn
		p, _ = p.Fit(schema)
	}
	if o.Schema != nil {
		schema = o.Schema.Join(schema)
		p, _ = p.Fit(schema) // leave out what this CRI does not have
	}
	if o.Rules != nil {
		if p, err = p.Extend(o.Rules); err != nil {
			return director.Config{}, err
		}
	}
	base, err := parseStreamURL(o.StreamURL)
	if err != nil {
		return director.Config{}, err
	}
	image, err := asWritten(p, schema)
	if err != nil {
		return director.Config{}, err
	}
	m := &metrics{last: map[string]*descriptors{}}
	return director.Config{
		Profile: p,
		Schema:  schema,
		Edits: map[string]func(director.EditContext) director.Edit{
			"stream-url":    func(director.EditContext) director.Edit { return base.complete },
			"metric-labels": m.edit,
			"as-written":    image,
		},
		Merges: map[string]director.Merge{
			"runtime-status":     mergeStatus,
			"metric-descriptors": m.descriptors,
			"image-fs-info":      mergeImageFsInfo,
		},
		Recaps: map[string]func() director.Recap{"container-events": newEvents(o.Panicked)},
		Conversions: map[string]director.Conversion{
			"v1alpha1": v1alpha1,
			"seccomp":  seccomp,
		},
		Panicked: o.Panicked,
	}, nil
}

// builtIn is cri.yaml, for reading.
var builtIn = sync.OnceValue(func() *director.Profile {
	p, err := director.ParseProfile(criYAML)
	if err != nil {
		panic(fmt.Sprintf("the built-in cri.yaml: %v", err)) // the tests read it
	}
	return p
})

// Schema returns the schema of the newest CRI that this program is built with.
func Schema() *codec.Schema {
	return codec.NewSchema(runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto)
}
