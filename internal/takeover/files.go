package takeover

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
)

// Lines that install takes out of a file stay in it as comments, and those that it puts
// in are marked, so that uninstall leaves the file as it was, whatever has been changed
// elsewhere in it meanwhile.
const (
	takenOut = "#criproxy install# "
	putIn    = " # criproxy install"
	unended  = "# The line above had no end." + putIn + "\n" // the last line, where that is so
)

// made begins a file that install makes where there is none. Without what install puts in, it
// is one that a person could have written, and remains that when a person adds to it.
const made = "# Made by criproxy install; criproxy uninstall removes it, unless more is in it.\n"

// onlyMade is such a file to which nothing has been added.
var onlyMade = regexp.MustCompile("^" + regexp.QuoteMeta(made) + `(?:version = 2|backends:\n- address: .*)\n$`)

// undoLines is text without the changes of install.
func undoLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if original, ok := strings.CutPrefix(line, takenOut); ok {
			b.WriteString(original)
		} else if !strings.HasSuffix(strings.TrimRight(line, "\n"), putIn) {
			b.WriteString(line)
		}
	}
	before := b.String()
	if strings.HasSuffix(text, "\n"+unended) { // still the last: no line was added
		before = strings.TrimSuffix(before, "\n")
	}
	if onlyMade.MatchString(before) {
		return ""
	}
	return before
}

// splitLines are the lines of text, each with its end, also the last one.
func splitLines(text string) []string {
	if !strings.HasSuffix(text, "\n") {
		text += "\n" + unended
	}
	return strings.SplitAfter(text, "\n")
}

// top is where lines are put in that could stand anywhere: not above the comment of a file
// that install has made, and inside a YAML document that begins with ---.
func top(lines []string) int {
	at := 0
	if lines[0] == made {
		at = 1
	}
	for i, line := range lines {
		switch code := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "---"):
			return i + 1
		case code != "" && code[0] != '#' && code[0] != '%':
			return at
		}
	}
	return at
}

// replaceLines removes n lines from the i-th on, and inserts one.
func replaceLines(lines []string, i, n int, line string) []string {
	next := slices.Clone(lines[:i])
	for _, old := range lines[i : i+n] {
		next = append(next, takenOut+old)
	}
	next = append(next, line+putIn+"\n")
	return append(next, lines[i+n:]...)
}

var (
	tomlTable   = regexp.MustCompile(`^\s*\[`)
	tomlVersion = regexp.MustCompile(`^\s*version\s*=\s*(\d+)`)
	tomlImports = regexp.MustCompile(`^\s*["']?imports["']?\s*=`)
	tomlAddress = regexp.MustCompile(`^\s*address\s*=\s*["']([^"']*)["']`)
)

// containerdFiles returns containerd's configuration with an import, and what is
// imported: only the address changes. Where running containers report to must not.
func (t *Takeover) containerdFiles(main string) (imports, imported string, err error) {
	if main == "" {
		main = made + "version = 2\n"
	}
	lines := splitLines(main)
	statements, err := tomlStatements(strings.Join(lines, ""))
	if err != nil {
		return "", "", err
	}
	var paths []string
	version, at, n := 0, top(lines), 0
	for _, s := range statements {
		if tomlTable.MatchString(s.text) {
			break
		}
		if m := tomlVersion.FindStringSubmatch(s.text); m != nil {
			version, _ = strconv.Atoi(m[1]) // digits
		}
		if key := tomlImports.FindString(s.text); key != "" {
			at, n = s.line, s.lines
			if paths, err = tomlStrings(s.text[len(key):]); err != nil {
				return "", "", fmt.Errorf("line %d: imports: %w", s.line+1, err)
			}
		}
	}
	if version < 2 {
		return "", "", errors.New("it has no version, or 1, which names its tables otherwise; first let containerd config migrate write one of version 2 or later")
	}
	grpc, ttrpc := "[grpc]", "[ttrpc]"
	if version >= 4 {
		grpc, ttrpc = `[plugins."io.containerd.server.v1.grpc"]`, `[plugins."io.containerd.server.v1.ttrpc"]`
	}
	if address := valueIn(statements, tomlAddress, grpc, "[plugins.'io.containerd.server.v1.grpc']"); address != "" && address != t.Path {
		return "", "", fmt.Errorf("containerd listens at %s, not at %s; use -takeover %s", address, t.Path, address)
	}
	paths = append(paths, strconv.Quote(filepath.Base(t.imported())))
	imports = strings.Join(replaceLines(lines, at, n, "imports = ["+strings.Join(paths, ", ")+"]"), "")
	imported = fmt.Sprintf(`# Written by criproxy install: criproxy listens at %s in containerd's place.
# criproxy uninstall takes it back.
version = %d

%s
  address = %q
`, t.Path, version, grpc, t.runtimeSocket())
	if valueIn(statements, tomlAddress, ttrpc, "[plugins.'io.containerd.server.v1.ttrpc']") == "" {
		imported += fmt.Sprintf("\n# Containers that run know this one, and report here.\n%s\n  address = %q\n", ttrpc, t.Path+".ttrpc")
	}
	return imports, imported, nil
}

// valueIn is what a key has in one of the tables.
func valueIn(statements []tomlStatement, key *regexp.Regexp, tables ...string) string {
	in := false
	for _, s := range statements {
		if tomlTable.MatchString(s.text) {
			in = slices.ContainsFunc(tables, func(table string) bool { return strings.HasPrefix(strings.TrimSpace(s.text), table) })
		} else if m := key.FindStringSubmatch(s.text); in && m != nil {
			return m[1]
		}
	}
	return ""
}

// criproxyFile returns criproxy's configuration, listening at the path and with
// containerd where that will listen.
func (t *Takeover) criproxyFile(text string) (string, error) {
	if text == "" {
		text = made + "backends:\n- address: " + t.Path + "\n"
	}
	lines := splitLines(text)
	listen, admin := false, false
	address := regexp.MustCompile(`(address:\s*["']?(?:unix://)?)` + regexp.QuoteMeta(t.Path) + `(["']?\s*(?:[,}#]|$))`)
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], "\n")
		switch {
		case strings.HasPrefix(line, "listen:"):
			listen = true
			lines = replaceLines(lines, i, 1, "listen: "+t.Path)
			i++
		case strings.HasPrefix(line, "admin:"):
			admin = true
		case address.MatchString(line) && !strings.HasPrefix(strings.TrimSpace(line), "#"):
			moved := address.ReplaceAllString(line, "${1}"+strings.ReplaceAll(t.runtimeSocket(), "$", "$$")+"${2}")
			lines = replaceLines(lines, i, 1, moved)
			i++
		}
	}
	at := top(lines)
	if !admin { // criproxy's own commands look for it there
		lines = replaceLines(lines, at, 0, "admin: "+config.DefaultAdmin)
	}
	if !listen {
		lines = replaceLines(lines, at, 0, "listen: "+t.Path)
	}
	next := strings.Join(lines, "")
	var c config.Config
	err := c.Parse(t.Config, []byte(next))
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return "", err
	}
	if c.Listen != t.Path || c.Backends[0].Address != t.runtimeSocket() {
		return "", fmt.Errorf("the primary runtime is at %s, and would have to be at %s; write - address: %s for it, on a line of its own", c.Backends[0].Address, t.Path, t.Path)
	}
	return next, nil
}
