package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"sync"
)

//go:embed page
var files embed.FS

// scripts are the parts of the page's script. Each needs only those before it.
var scripts = []string{
	"dom.js", "model.js", "strip.js", "filter.js", "overview.js", "table.js", "compare.js", "detail.js",
	"pods.js", "latency.js", "talk.js", "sequence.js", "status.js", "findings.js", "live.js", "state.js", "main.js",
}

// parts are what the pages of one kind have in common.
type parts struct{ head, body, script, style []byte }

// page returns the parts of the page of a node.
var page = sync.OnceValue(func() parts { return assemble("page.html", scripts) })

// assemble makes a page of files. It uses no template package: it fills in only the program's own text, and text/template
// makes the linker keep every method of every type.
func assemble(html string, scripts []string) (p parts) {
	read := func(name string) []byte {
		b, err := files.ReadFile("page/" + name)
		if err != nil {
			panic(err) // cannot happen: the file is embedded
		}
		return b
	}
	p.head, p.body, _ = bytes.Cut(read(html), []byte("<!-- policy, style and data -->\n"))
	p.style = read("page.css")
	p.script = []byte("\"use strict\";\n(() => {\n")
	for _, name := range scripts {
		p.script = append(p.script, read(name)...)
	}
	p.script = append(p.script, "})();\n"...)
	return p
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// filePolicy lets a page run its script, and make no requests.
const filePolicy = ""

// livePolicy lets it ask the server that it came from.
const livePolicy = "; connect-src 'self'"

// policy returns the Content-Security-Policy of a page.
func policy(more string) string { return page().policy(more) }

func (p parts) policy(more string) string {
	return "default-src 'none'; script-src " + hash(p.script) + "; style-src " + hash(p.style) +
		"; img-src data:; base-uri 'none'; form-action 'none'" + more
}

func pageBegin(more string) []byte { return page().begin(policy(more)) }

func (p parts) begin(policy string) []byte {
	b := append([]byte{}, p.head...)
	b = append(b, `<meta http-equiv="Content-Security-Policy" content="`+policy+"\">\n<style>"...)
	b = append(append(b, p.style...), "</style>\n"...)
	return append(b, p.body...)
}

func pageEnd() []byte { return page().end() }

func (p parts) end() []byte {
	return append(append([]byte("<script>"), p.script...), "</script>\n</body>\n</html>\n"...)
}
