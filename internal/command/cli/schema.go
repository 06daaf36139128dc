package cli

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/base/dump"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// schemaFlags are the flags that describe the messages of other APIs than CRI.
type schemaFlags struct {
	protos  list
	folders list
	sets    list
}

func (s *schemaFlags) flags(fs *flag.FlagSet) {
	fs.Var(&s.protos, "proto", "a .proto `FILE` that describes calls of another API than CRI; may be repeated")
	fs.Var(&s.folders, "proto-path", "a `FOLDER` with the files that -proto imports; may be repeated")
	fs.Var(&s.sets, "descriptor-set", "a `FILE` of descriptors that describes such calls, as protoc --descriptor_set_out --include_imports writes it; may be repeated")
}

// load returns CRI's profile, and a schema of CRI and of the files that the flags name. more is a set of descriptors
// from a recording, which load adds to the schema; it may be empty.
func (s *schemaFlags) load(more []byte) (*director.Profile, *codec.Schema, error) {
	d, err := criadapter.Config(criadapter.Options{})
	if err != nil {
		return nil, nil, err
	}
	schema, err := s.own()
	if err != nil {
		return nil, nil, err
	}
	schema = schema.Join(d.Profile.AllVersions(d.Schema))
	if len(more) > 0 {
		found, err := codec.ParseSchema(more)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the descriptors in the recording: %w", err)
		}
		schema = schema.Join(found)
	}
	return d.Profile, schema, nil
}

// own returns a schema of the files that the flags name, which is empty if they name none.
func (s *schemaFlags) own() (*codec.Schema, error) {
	schema := codec.NewSchema()
	if len(s.protos) > 0 {
		compiled, err := codec.CompileProto(context.Background(), s.folders, s.protos...)
		if err != nil {
			return nil, fmt.Errorf("-proto: %w", err)
		}
		schema = schema.Join(compiled)
	}
	for _, path := range s.sets {
		set, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("-descriptor-set: %w", err)
		}
		parsed, err := codec.ParseSchema(set)
		if err != nil {
			return nil, fmt.Errorf("-descriptor-set %s: %w", path, err)
		}
		schema = schema.Join(parsed)
	}
	return schema, nil
}

// meaning says what the messages of a recording mean.
type meaning struct {
	profile *director.Profile
	schema  *codec.Schema
	names   *cri.Names
	text    dump.Text // shows messages; without secrets, unless the recording has them
}

// meaning returns the meaning of the messages of a recording, from its header and the flags.
func (s *schemaFlags) meaning(h *capture.FileHeader) (m *meaning, err error) {
	m = &meaning{}
	if m.profile, m.schema, err = s.load(h.Descriptors); err != nil {
		return nil, err
	}
	secrets, err := m.profile.Secrets(m.schema)
	if err != nil {
		return nil, err
	}
	m.text = dump.Text{Secrets: secrets, Unsafe: h.UnsafeRaw}
	m.names, err = cri.NewNames(m.profile, m.schema, h.About)
	return m, err
}
