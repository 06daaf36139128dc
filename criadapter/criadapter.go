// Package criadapter configures a director for CRI, the API between kubelet and container runtimes:
//
//	cfg, err := criadapter.Config(criadapter.Options{})
//	cfg.Backends = backends
//	d, err := director.New(cfg)
//
// Nearly all of the configuration is in cri.yaml. The package adds the functions that a table cannot
// express. Methods and fields have the names of k8s.io/cri-api. Comments in cri.yaml say how kubelet,
// containerd and CRI-O use a field if that explains a rule.
//
// # Stability
//
// Programs may build on [Config], [Options], [Handlers] and [Schema], with director and codec. They follow
// semantic versioning: docs/stability.md says what stays the same. The other names are for criproxy itself
// and may change at any time.
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

// Handlers is the key, in the Maps of a [director.Backend], of the table that translates runtime
// handlers: front name → back name.
const Handlers = "handlers"

// Options change the configuration for CRI. The zero value is for the CRI that this program was
// built with.
type Options struct {
	// StreamURL completes the URLs of exec, attach and port-forward that a runtime returns
	// without a host. Empty means "http://ADDRESS:11250", with [NodeAddress] and the port of
	// dockershim's streaming server.
	StreamURL string

	// StreamPort is the port in the default of StreamURL. Zero means 11250.
	StreamPort int

	// Schema describes a newer or different CRI than the one that this program was built with.
	// Its methods go before the built-in ones. Optional.
	Schema *codec.Schema

	// BuiltIn replaces the built-in CRI by that of another release. Optional.
	BuiltIn *codec.Schema

	// Rules are added to cri.yaml and go before its rules. They are for fields and methods that
	// Schema adds, or replace built-in rules. Optional.
	Rules *director.Profile

	// Panicked is the Panicked of the [director.Config]. Optional.
	Panicked func(doing string, value any, stack []byte)
}

// Config returns the configuration of a director for CRI. The caller adds the backends. The error names
// the mistakes in o.Rules or o.StreamURL. The functions in the configuration are safe for concurrent
// use. They remember label keys of metrics, so two directors need two configurations.
func Config(o Options) (director.Config, error) {
	p, err := director.ParseProfile(criYAML)
	if err != nil {
		return director.Config{}, fmt.Errorf("the built-in cri.yaml: %w", err)
	}
	schema := Schema()
	if o.BuiltIn != nil {
		schema = o.BuiltIn
		p = p.Fit(schema)
	}
	if o.Schema != nil {
		schema = o.Schema.Join(schema)
		p = p.Fit(schema) // leave out the rules for what this CRI does not have
	}
	if o.Rules != nil {
		if p, err = p.Extend(o.Rules); err != nil {
			return director.Config{}, err
		}
	}
	base, err := parseStreamURL(o.StreamURL, o.StreamPort)
	if err != nil {
		return director.Config{}, err
	}
	image, err := asWritten(p, schema)
	if err != nil {
		return director.Config{}, err
	}
	m := &metrics{}
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
		Resyncs: map[string]func() director.Resync{"container-events": newEvents(o.Panicked)},
		Conversions: map[string]director.Conversion{
			"v1alpha1": v1alpha1,
			"seccomp":  seccomp,
		},
		Panicked: o.Panicked,
	}, nil
}

// builtIn is the profile in cri.yaml. Callers must not change it.
var builtIn = sync.OnceValue(func() *director.Profile {
	p, err := director.ParseProfile(criYAML)
	if err != nil {
		panic(fmt.Sprintf("the built-in cri.yaml: %v", err)) // cannot happen: the tests parse it
	}
	return p
})

// Schema returns the schema of CRI, runtime.v1, that this program was built with.
func Schema() *codec.Schema {
	return codec.NewSchema(runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto)
}
