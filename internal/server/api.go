// This file makes the configuration of a director from the settings for the API: the built-in CRI,
// CRI with newer descriptors, or the API of another profile.

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/director/dial"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/base/strict"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/cri"
	"github.com/criproxy/criproxy/internal/server/listen"
)

// fromReflection, in place of a file, asks the backends for their services.
const fromReflection = "reflection"

// reflectTimeout bounds how long a start waits for a backend that answers.
const reflectTimeout = 15 * time.Second

// An API is the configuration of a director for an API, without backends. Read makes it for one configuration, and nothing
// changes it.
type API struct {
	director.Config               // without backends
	Own             *codec.Schema // the configured descriptors; nil for the built-in ones
}

// Read returns the API of a configuration: the built-in CRI, CRI with newer descriptors, or the API
// of a profile. With reflection it asks the backends, and may take as long as reflectTimeout. The same files yield the same API, so a
// reload reads it again.
func Read(c *config.Config) (API, error) {
	schema, err := readSchema(c)
	if err != nil {
		return API{}, err
	}
	d, err := configureDirector(c, schema)
	return API{d, schema}, err
}

// configureDirector returns the configuration of a director for CRI, or for the profile that c names, with the rules of c added.
func configureDirector(c *config.Config, schema *codec.Schema) (director.Config, error) {
	o := criadapter.Options{Schema: schema, StreamURL: c.StreamURL, StreamPort: c.StreamPort, BuiltIn: c.BuiltIn, Panicked: recovery.Report}
	if c.Profile == "" {
		o.Rules = c.Rules
		return criadapter.Config(o)
	}
	d, err := criadapter.Config(o) // for its functions, which a profile for CRI may name
	if err != nil {
		return director.Config{}, err
	}
	data, err := os.ReadFile(c.Profile)
	if err != nil {
		return director.Config{}, fmt.Errorf("reading the profile: %w", err)
	}
	d.Schema = schema.Join(codec.LinkedIn())
	d.Profile, err = director.ParseProfile(data)
	if err != nil {
		err = config.PrefixLines(c.Profile, err)
	}
	if d.Profile != nil {
		d.Profile.From(c.Profile, nil)
		err = mistakes(d, err)
	}
	if err != nil {
		return director.Config{}, err
	}
	if c.Rules != nil {
		if d.Profile, err = d.Profile.Extend(c.Rules); err != nil {
			return director.Config{}, err
		}
	}
	return d, nil
}

// mistakes returns all mistakes in a profile, so that they can be mended at once: those that were found while reading it,
// those in its rules for the schema, and those that compiling it for two backends finds.
func mistakes(d director.Config, reading error) error {
	d.Backends = []director.Backend{{}, {Name: "NAME"}}
	_, compiling := director.New(d)
	var all []string
	for _, err := range []error{reading, d.Profile.Misfits(d.Schema), compiling} {
		if err != nil {
			all = append(all, strings.Split(err.Error(), "\n")...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	var once []string
	for _, one := range all {
		if !slices.ContainsFunc(once, func(said string) bool { return said == one || strings.HasSuffix(said, ": "+one) }) { // with its place
			once = append(once, one)
		}
	}
	return strict.InOrder(errors.New(strings.Join(once, "\n")))
}

// Mistakes returns the mistakes in the profile of a configuration that has other mistakes. It asks
// no backend.
func Mistakes(c *config.Config) error {
	if c.Profile == "" || slices.Contains(c.Proto, fromReflection) {
		return nil
	}
	_, err := Read(c)
	return err
}

// Sources returns the contents of the files from which Read reads the API, to find out whether they
// have changed.
func Sources(c *config.Config) []string {
	var all []string
	for _, file := range append([]string{c.Profile}, c.Proto...) {
		data, _ := os.ReadFile(file) // Read reports the error
		all = append(all, string(data))
	}
	return all
}

// IsCRI reports whether a profile is for CRI, for which criproxy does more than the profile says.
func IsCRI(p *director.Profile) bool { return cri.Is(p) }

// readSchema reads the configured descriptors. It returns nil if there are none.
func readSchema(c *config.Config) (*codec.Schema, error) {
	var schema *codec.Schema
	var sources []string
	for _, from := range c.Proto {
		switch {
		case from == fromReflection:
			s, err := reflectSchema(c)
			if err != nil {
				return nil, err
			}
			schema = schema.Join(s)
		case filepath.Ext(from) == ".proto":
			sources = append(sources, from)
		default:
			s, err := readSet(from)
			if err != nil {
				return nil, err
			}
			schema = schema.Join(s)
		}
	}
	if len(sources) > 0 {
		s, err := codec.CompileProto(context.Background(), c.ProtoPath, sources...)
		if err != nil {
			return nil, err
		}
		schema = schema.Join(s)
	}
	return schema, nil
}

// readSet reads a descriptor set, in protobuf's text format if the file's name ends so: in .txtpb or .textproto.
func readSet(file string) (*codec.Schema, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading descriptors: %w", err)
	}
	parse := codec.ParseSchema
	if ext := filepath.Ext(file); ext == ".txtpb" || ext == ".textproto" {
		parse = codec.ParseSchemaText
	}
	s, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; want a .proto file, a descriptor set from protoc --descriptor_set_out --include_imports, or such a set as text in a .txtpb", file, err)
	}
	return s, nil
}

// reflectSchema asks one backend after another for its services until one answers, and all of them again, for reflectTimeout:
// after a boot they may just be starting. Its error has the reason of each.
func reflectSchema(c *config.Config) (*codec.Schema, error) {
	if len(c.Backends) == 0 {
		return nil, errors.New("proto: reflection asks a backend, and there is none: use -connect, or name a file")
	}
	ctx, cancel := context.WithTimeout(context.Background(), reflectTimeout)
	defer cancel()
	for {
		var errs []error
		for _, b := range c.Backends {
			conn, err := dial.New(dial.Config{
				Name: b.Name, Address: b.Address, More: b.Addresses, Balance: b.Balance, Credentials: listen.NewCredentials(b.TLS), MaxMessage: c.MaxMessageBytes,
			})
			if err != nil {
				return nil, err
			}
			s, err := codec.Reflect(ctx, conn)
			_ = conn.Close()
			if err == nil {
				return s, nil
			}
			errs = append(errs, fmt.Errorf("proto: asking backend %s for its services by reflection: %w", director.Backend{Name: b.Name}, err))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(errs...)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
