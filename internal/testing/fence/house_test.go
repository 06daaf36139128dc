package fence

import (
	"flag"
	"fmt"
	"go/doc"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// A room is a package of the product: not of the tests, and not the few lines that describe a wing.
type room struct {
	name, purpose string // purpose is the first sentence of its documentation, without its name
	floor         int    // 0: it imports no other one
}

// rooms returns the packages of the product, sorted by floor and name.
func rooms(t *testing.T) []room {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}}\t{{.Doc}}", module+"...").Output()
	require.NoError(t, err)
	docs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, text, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), module), "\t")
		docs[name] = text
	}
	imported := imports(t)
	floors := map[string]int{}
	var floor func(name string) int
	floor = func(name string) int {
		if _, done := floors[name]; !done {
			floors[name] = 0
			for _, one := range imported[name] {
				if ours, ok := strings.CutPrefix(one, module); ok {
					floors[name] = max(floors[name], 1+floor(ours))
				}
			}
		}
		return floors[name]
	}
	var all []room
	for name, text := range docs {
		if wingOf(name) == "internal/testing" || strings.Contains(text, " is the wing of ") {
			continue
		}
		all = append(all, room{name, purpose(text), floor(name)})
	}
	slices.SortFunc(all, func(a, b room) int {
		if a.floor != b.floor {
			return a.floor - b.floor
		}
		return strings.Compare(a.name, b.name)
	})
	return all
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
	table := "| floor | package | which |\n|---|---|---|\n"
	for _, r := range rooms(t) {
		table += fmt.Sprintf("| %d | `%s` | %s |\n", r.floor, r.name, r.purpose)
	}
	if *update {
		require.NoError(t, markdown.Between(architecture, tableBegin, tableEnd, table))
	}
	text, err := os.ReadFile(architecture)
	require.NoError(t, err)
	assert.Contains(t, string(text), tableBegin+table+tableEnd, "go test ./internal/testing/fence -update")
}

func TestPackagesForTestsAreNotInTheProgram(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/criproxy", module+"director/dial", module+"criadapter", module+"hook/plugin").Output()
	require.NoError(t, err)
	linked := strings.Fields(string(out))
	for _, name := range linked {
		assert.NotContains(t, name, module+"internal/testing/")
	}
	for _, r := range rooms(t) {
		if strings.HasPrefix(r.name, "internal/") {
			assert.Contains(t, linked, module+r.name, "nothing uses it")
		}
	}
}
