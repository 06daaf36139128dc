package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
)

// own returns a schema of what the flags name, which is nothing if there are none.
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

// criSchema returns profile and schema of CRI, for commands that read captures.
func criSchema() (*director.Profile, *codec.Schema, error) {
	d, err := criadapter.Config(criadapter.Options{})
	if err != nil {
		return nil, nil, err
	}
	return d.Profile, d.Profile.AllVersions(d.Schema), nil
}
