package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/profile"
)

// WiresharkProfile is the subcommand that writes a profile with which Wireshark shows the names of fields.
func WiresharkProfile(_ context.Context, args []string, out, _ io.Writer) error {
	fs := subFlags("wireshark-profile")
	var flags schemaFlags
	flags.flags(fs)
	err := parseSub(fs, args, out, `wireshark-profile DIR writes a profile with which Wireshark and tshark show the names of fields in
messages, and can filter by them, as in pbf.runtime.v1.ImageSpec.image contains "nginx":

  criproxy wireshark-profile ~/.config/wireshark/profiles/criproxy
  wireshark -C criproxy FILE.pcapng`, 1, 1)
	if err != nil {
		return err
	}
	_, schema, err := flags.load(nil)
	if err != nil {
		return err
	}
	return writeProfile(fs.Arg(0), schema)
}

// preferences of Wireshark. pbf_as_hf makes the fields of messages available to filters. It works only in a profile,
// because Wireshark reads profiles before it registers the fields.
const preferences = `# Written by criproxy wireshark-profile.
protobuf.preload_protos: TRUE
protobuf.pbf_as_hf: TRUE
http2.heuristic_http2: TRUE
`

// writeProfile writes the files of a profile into the folder dir.
func writeProfile(dir string, schema *codec.Schema) error {
	protos, err := filepath.Abs(filepath.Join(dir, "protos"))
	if err != nil {
		return err
	}
	if strings.ContainsAny(protos, "\"\n") {
		return fmt.Errorf("wireshark-profile: Wireshark does not accept %q in the name of a folder; choose another one", `"`)
	}
	files, err := protoFiles(schema)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(protos, filepath.FromSlash(name)), text); err != nil {
			return err
		}
	}
	return errors.Join(
		writeFile(filepath.Join(dir, "preferences"), preferences),
		writeFile(filepath.Join(dir, "protobuf_search_paths"), fmt.Sprintf("\"%s\",\"TRUE\"\n", protos)),
	)
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// protoFiles returns the .proto files of a schema, and the files that they import.
func protoFiles(schema *codec.Schema) (map[string]string, error) {
	files := map[string]string{} // :: name → text
	p := protoprint.Printer{Compact: true}
	var add func(fd protoreflect.FileDescriptor) error
	add = func(fd protoreflect.FileDescriptor) error {
		if _, twice := files[fd.Path()]; twice || fd.IsPlaceholder() || !filepath.IsLocal(fd.Path()) {
			return nil
		}
		text, err := p.PrintProtoToString(fd)
		if err != nil {
			return fmt.Errorf("writing %s: %w", fd.Path(), err)
		}
		files[fd.Path()] = text
		for i := range fd.Imports().Len() {
			if err := add(fd.Imports().Get(i).FileDescriptor); err != nil {
				return err
			}
		}
		return nil
	}
	for _, m := range schema.Methods() {
		fd := m.File()
		if err := add(fd); err != nil {
			return nil, err
		}
		// An older version with the same messages gets a file of its own.
		pkg, was := profile.PackageOf(m.Name), string(fd.Package())
		if name := strings.TrimSuffix(fd.Path(), ".proto") + "-" + pkg + ".proto"; pkg != was && files[name] == "" {
			files[name] = strings.ReplaceAll(files[fd.Path()], "package "+was+";", "package "+pkg+";")
		}
	}
	return files, nil
}
