package fence

import (
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
)

// public are the packages that other programs import.
var public = []string{"codec", "criadapter", "director", "director/dial", "hook/hookapi", "hook/plugin", "rewrite"}

// A program must be able to name what a public package gives it and takes from it. So a type of an internal package has
// another name in a public one, as director.Profile, and what is public uses that name.
func TestPublicNamesShowNoInternalType(t *testing.T) {
	files := map[string]string{} // by package
	out, err := bounded.Command(t, "go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, under(module, public)...)...).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[pkg] = file
	}
	load := importer.ForCompiler(token.NewFileSet(), "gc", func(pkg string) (io.ReadCloser, error) { return os.Open(files[pkg]) })
	shown := 0
	for _, name := range under(module, public) {
		pkg, err := load.Import(name)
		require.NoError(t, err)
		for _, id := range pkg.Scope().Names() {
			if object := pkg.Scope().Lookup(id); object.Exported() {
				shown++
				for _, found := range internalTypes(object) {
					assert.Fail(t, "internal type", "%s shows %s", types.ObjectString(object, nil), found)
				}
			}
		}
	}
	assert.Greater(t, shown, 100)
}

func under(prefix string, names []string) (all []string) {
	for _, name := range names {
		all = append(all, prefix+name)
	}
	return all
}

// internalTypes returns the types of internal packages that the declaration of object, its exported fields and its
// exported methods mention by the names that they have there.
func internalTypes(object types.Object) (all []string) {
	var walk func(types.Type)
	walk = func(t types.Type) {
		switch t := t.(type) {
		case *types.Named:
			if pkg := t.Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), module+"internal/") {
				all = append(all, t.String())
			}
			for arg := range t.TypeArgs().Types() {
				walk(arg)
			}
		case *types.Signature:
			walk(t.Params())
			walk(t.Results())
		case *types.Tuple:
			for v := range t.Variables() {
				walk(v.Type())
			}
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					walk(f.Type())
				}
			}
		case *types.Interface:
			for m := range t.ExplicitMethods() {
				walk(m.Type())
			}
		case *types.Map:
			walk(t.Key())
			walk(t.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			walk(t.Elem())
		}
	}
	name, ok := object.(*types.TypeName)
	if !ok {
		walk(object.Type())
		return all
	}
	if named, ok := name.Type().(*types.Named); ok { // an alias is another name, and shows nothing
		walk(named.Underlying())
		for m := range named.Methods() {
			if m.Exported() {
				walk(m.Type())
			}
		}
	}
	return all
}
