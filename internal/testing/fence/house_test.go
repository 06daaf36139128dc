package fence

import (
	"flag"
	"fmt"
	"go/doc"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/testing/bounded"
	"github.com/criproxy/criproxy/internal/testing/markdown"
)

// The table of packages is between these lines of docs/architecture.md.
const (
	root         = "../../.."
	architecture = root + "/docs/architecture.md"
	tableBegin   = "<!-- made by go test ./internal/testing/fence -update -->\n"
	tableEnd     = "<!-- to here -->\n"
)

var update = flag.Bool("update", false, "write the table of packages into docs/architecture.md")

// purposes returns what each package is, the first sentence of its documentation without its name.
func purposes(t *testing.T) map[string]string {
	t.Helper()
	out, err := bounded.Command(t, "go", "list", "-f", "{{.ImportPath}}\t{{.Name}}\t{{.Doc}}", module+"...").Output()
	require.NoError(t, err)
	docs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.SplitN(strings.TrimPrefix(strings.TrimSpace(line), module), "\t", 3)
		path, name, text := words[0], words[1], words[len(words)-1]
		if slices.Contains(order, path) && name != "main" {
			assert.True(t, strings.HasPrefix(text, "Package "+name+" "), "the documentation of %s does not begin with its name: %s", path, text)
		}
		docs[path] = purpose(text)
	}
	return docs
}

// purpose returns the first sentence of a package's documentation, without its name.
func purpose(text string) string {
	sentence := new(doc.Package).Synopsis(text)
	if words := strings.SplitN(sentence, " ", 3); len(words) == 3 && (words[0] == "Package" || words[0] == "Command") {
		sentence = words[2]
	}
	sentence, _, _ = strings.Cut(sentence, ": ")
	return strings.NewReplacer("[", "`", "]", "`").Replace(strings.TrimRight(sentence, ".:"))
}

// The table has nothing in it that most changes change, such as numbers of lines.
func TestArchitectureHasTheTableOfPackages(t *testing.T) {
	table := "| package | what it does |\n|---|---|\n"
	docs := purposes(t)
	for _, name := range order {
		assert.NotEmpty(t, docs[name], "%s is gone, or has no documentation", name)
		table += fmt.Sprintf("| `%s` | %s |\n", name, docs[name])
	}
	if *update {
		require.NoError(t, markdown.Between(architecture, tableBegin, tableEnd, table))
	}
	text, err := os.ReadFile(architecture)
	require.NoError(t, err)
	assert.Contains(t, string(text), tableBegin+table+tableEnd, "go test ./internal/testing/fence -update")
}

func TestPackagesForTestsAreNotInTheProgram(t *testing.T) {
	out, err := bounded.Command(t, "go", "list", "-deps", module+"cmd/criproxy", module+"director/dial", module+"criadapter", module+"hook/plugin").Output()
	require.NoError(t, err)
	linked := strings.Fields(string(out))
	for _, name := range linked {
		assert.NotContains(t, name, module+"internal/testing/")
	}
	for _, name := range order {
		if strings.HasPrefix(name, "internal/") {
			assert.Contains(t, linked, module+name, "nothing uses it")
		}
	}
}
