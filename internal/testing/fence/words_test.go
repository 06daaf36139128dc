package fence

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eachFile calls f with each file of the repository whose name has the suffix.
func eachFile(t *testing.T, suffix string, f func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(strings.TrimPrefix(path, root+"/"), string(text))
		}
		return err
	}))
}

// A test name that does not fit into a line of output is too long for a claim.
func TestNamesOfTestsAreShort(t *testing.T) {
	name := regexp.MustCompile(`(?m)^func (Test\w*)\(`)
	eachFile(t, "_test.go", func(path, text string) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			assert.Less(t, len(m[1]), 50, "%s: %s", path, m[1])
		}
	})
}

// Tables, code and links cannot be broken, and programs write their reports as they like. Everything
// else must be readable in a terminal.
func TestLinesOfMarkdownAreShort(t *testing.T) {
	const most = 120
	var (
		whole        = regexp.MustCompile(`^\s*([|<]|\[.*\]: |    )|^\S*$`)
		reportBegins = regexp.MustCompile("^<!-- (.*: )?(made by|measured: begin)|` made this\\.$")
		reportEnds   = regexp.MustCompile("^<!-- (.*: )?(to here|measured: end)|^## ")
	)
	eachFile(t, ".md", func(path, text string) {
		code, report := false, false
		for i, line := range strings.Split(text, "\n") {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				code = !code
			case reportBegins.MatchString(line):
				report = true
			case reportEnds.MatchString(line):
				report = false
			}
			if !code && !report && !whole.MatchString(line) {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), most, "%s:%d: break the line before column %d", path, i+1, most)
			}
		}
	})
}

// Programs that are not about CRI import these packages: CRI is one profile of them.
func TestGenericPackagesDoNotSpeakOfKubelet(t *testing.T) {
	eachFile(t, ".go", func(path, text string) {
		generic := strings.HasPrefix(path, "internal/settings/profile/") || strings.HasPrefix(path, "internal/settings/drift/") ||
			slices.Contains([]string{"rewrite", "codec", "director", "internal/base", "internal/memory", "internal/hook"}, wingOf(path))
		if generic && !strings.HasSuffix(path, "_test.go") {
			assert.NotContains(t, text, "kubelet", path)
		}
	})
}

// A backend is up, slow or gone, and what it said last is memory: see the table of words in CONTRIBUTING.md. Who reads
// two words looks for two things.
func TestDocsAndMessagesUseTheOneWord(t *testing.T) {
	other := regexp.MustCompile(`(?i)\b(is|are|was|were|be|goes|went) down\b|\blastknown\.`)
	eachFile(t, ".md", func(path, text string) {
		if path != "CHANGELOG.md" && !strings.HasPrefix(path, "docs/evidence/") && !strings.HasPrefix(path, "testbed/") {
			assert.Empty(t, other.FindAllString(strings.Join(strings.Fields(text), " "), -1), path)
		}
	})
	eachFile(t, ".go", func(path, text string) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "testbed/") || strings.HasPrefix(path, "internal/testing/") {
			return
		}
		files := token.NewFileSet()
		var s scanner.Scanner
		s.Init(files.AddFile(path, -1, len(text)), []byte(text), nil, 0)
		for pos, kind, value := s.Scan(); kind != token.EOF; pos, kind, value = s.Scan() {
			if kind == token.STRING {
				assert.Empty(t, other.FindString(value), "%s: %s", files.Position(pos), value)
			}
		}
	})
}
