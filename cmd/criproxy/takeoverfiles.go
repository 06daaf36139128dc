package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Lines that install takes out of a file stay in it as comments, and those that it puts
// in are marked, so that uninstall leaves the file as it was, whatever has been changed
// elsewhere in it meanwhile.
const (
	takenOut = "#criproxy install# "
	putIn    = " # criproxy install"
)

// undoLines is text without what install has done to it.
func undoLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if original, ok := strings.CutPrefix(line, takenOut); ok {
			b.WriteString(original)
		} else if !strings.HasSuffix(strings.TrimRight(line, "\n"), putIn) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// replaceLines takes n lines out, from the i-th on, and puts one in.
func replaceLines(lines []string, i, n int, line string) []string {
	var next []string
	next = append(next, lines[:i]...)
	for _, old := range lines[i : i+n] {
		next = append(next, takenOut+old)
	}
	next = append(next, line+putIn+"\n")
	return append(next, lines[i+n:]...)
}

var (
	tomlTable   = regexp.MustCompile(`^\s*\[`)
	tomlVersion = regexp.MustCompile(`^\s*version\s*=\s*(\d+)`)
	tomlImports = regexp.MustCompile(`^\s*imports\s*=`)
	tomlAddress = regexp.MustCompile(`^\s*address\s*=\s*["']([^"']*)["']`)
	tomlString  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'`)
)

// containerdFiles returns containerd's configuration with an import, and what is
// imported: only the address changes. Where running containers report to must not.
func (t *takeover) containerdFiles(main string) (imports, imported string, err error) {
	lines := strings.SplitAfter(main, "\n")
	if main != "" && !strings.HasSuffix(main, "\n") {
		return "", "", errors.New("the last line does not end; put a newline there")
	}
	if main == "" {
		lines = []string{"version = 2" + putIn + "\n"}
	}
	version, at, n := 0, -1, 0
	for i, line := range lines {
		if tomlTable.MatchString(line) {
			break
		}
		if m := tomlVersion.FindStringSubmatch(line); m != nil {
			version, _ = strconv.Atoi(m[1]) // digits
		}
		if tomlImports.MatchString(line) {
			at, n = i, 1
			for text := line; !strings.Contains(text, "]") && i+n < len(lines); n++ {
				text = lines[i+n]
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
	if address := addressIn(lines, grpc, "[plugins.'io.containerd.server.v1.grpc']"); address != "" && address != t.path {
		return "", "", fmt.Errorf("containerd listens at %s, not at %s; use -takeover %s", address, t.path, address)
	}
	var paths []string
	if at >= 0 {
		for _, line := range lines[at : at+n] {
			code, _, _ := strings.Cut(line, "#")
			paths = append(paths, tomlString.FindAllString(code, -1)...)
		}
	} else {
		at = 0
	}
	paths = append(paths, strconv.Quote(filepath.Base(t.imported())))
	imports = strings.Join(replaceLines(lines, at, n, "imports = ["+strings.Join(paths, ", ")+"]"), "")
	imported = fmt.Sprintf(`# Written by criproxy install: criproxy listens at %s in containerd's place.
# criproxy uninstall takes it back.
version = %d

%s
  address = %q
`, t.path, version, grpc, t.runtimeSocket())
	if addressIn(lines, ttrpc, "[plugins.'io.containerd.server.v1.ttrpc']") == "" {
		imported += fmt.Sprintf("\n# Containers that run know this one, and report here.\n%s\n  address = %q\n", ttrpc, t.path+".ttrpc")
	}
	return imports, imported, nil
}

// addressIn is the address in a table of containerd's configuration.
func addressIn(lines []string, tables ...string) string {
	in := false
	for _, line := range lines {
		if tomlTable.MatchString(line) {
			in = false
			for _, table := range tables {
				in = in || strings.HasPrefix(strings.TrimSpace(line), table)
			}
		} else if m := tomlAddress.FindStringSubmatch(line); in && m != nil {
			return m[1]
		}
	}
	return ""
}

// criproxyFile returns criproxy's configuration, listening at the path and with
// containerd where that will listen.
func (t *takeover) criproxyFile(text string) (string, error) {
	if text == "" {
		text = "backends:" + putIn + "\n- address: " + t.path + putIn + "\n"
	}
	lines := strings.SplitAfter(text, "\n")
	listen, admin := false, false
	address := regexp.MustCompile(`(address:\s*["']?(?:unix://)?)` + regexp.QuoteMeta(t.path) + `(["']?\s*(?:[,}#]|$))`)
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], "\n")
		switch {
		case strings.HasPrefix(line, "listen:"):
			listen = true
			lines = replaceLines(lines, i, 1, "listen: "+t.path)
			i++
		case strings.HasPrefix(line, "admin:"):
			admin = true
		case address.MatchString(line) && !strings.HasPrefix(strings.TrimSpace(line), "#"):
			moved := strings.TrimSuffix(address.ReplaceAllString(line, "${1}"+strings.ReplaceAll(t.runtimeSocket(), "$", "$$")+"${2}"), putIn)
			if strings.HasSuffix(line, putIn) {
				lines[i] = moved + putIn + "\n" // install's own
				continue
			}
			lines = replaceLines(lines, i, 1, moved)
			i++
		}
	}
	if !admin { // criproxy's own commands look for it there
		lines = replaceLines(lines, 0, 0, "admin: "+DefaultAdmin)
	}
	if !listen {
		lines = replaceLines(lines, 0, 0, "listen: "+t.path)
	}
	next := strings.Join(lines, "")
	var c Config
	err := c.parse(t.config, []byte(next))
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return "", err
	}
	if c.Listen != t.path || c.Backends[0].Address != t.runtimeSocket() {
		return "", fmt.Errorf("the primary runtime is at %s, and would have to be at %s; write - address: %s for it, on a line of its own", c.Backends[0].Address, t.path, t.path)
	}
	return next, nil
}
