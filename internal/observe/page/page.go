package page

import (
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
type parts struct{ head, body, script, style string }

// page returns the parts of the page of a node.
var page = sync.OnceValue(func() parts { return assemble("page.html", scripts) })

// fleetPage returns the page of all nodes, and its policy.
var fleetPage = sync.OnceValues(func() (html []byte, contentSecurityPolicy string) {
	return assemble("fleet.html", []string{"dom.js", "fleet.js"}).live()
})

// Live returns the page for a server that sends it calls, and the policy to send as a header with the page. The page
// requests these paths:
//
//	stream          server-sent events: "info" ([Info]), "calls" ([Batch]), "rewritten" ([rewrites]),
//	                "story" ([Story]), "wrong" ([why.Report]), "status" and "link"
//	call?key=KEY    the details of a call ([Render])
//	older           asks for older calls
func Live() (html []byte, contentSecurityPolicy string) { return page().live() }

// assemble makes a page of files. It uses no template package: it fills in only the program's own text, and text/template
// makes the linker keep every method of every type.
func assemble(body string, scripts []string) parts {
	read := func(name string) string {
		b, err := files.ReadFile("page/" + name)
		if err != nil {
			panic(err) // cannot happen: the file is embedded
		}
		return string(b)
	}
	script := "\"use strict\";\n(() => {\n"
	for _, name := range scripts {
		script += read(name)
	}
	return parts{head: read("head.html"), body: read(body), script: script + "})();\n", style: read("page.css")}
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// policy returns the Content-Security-Policy of a page: it can run its script, and make no requests.
func (p parts) policy() string {
	return "default-src 'none'; script-src " + hash(p.script) + "; style-src " + hash(p.style) +
		"; img-src data:; base-uri 'none'; form-action 'none'"
}

// live returns a page that can ask the server that it came from.
func (p parts) live() (html []byte, contentSecurityPolicy string) {
	policy := p.policy() + "; connect-src 'self'"
	return []byte(p.begin(policy) + p.end()), policy + "; frame-ancestors 'none'"
}

func (p parts) begin(policy string) string {
	return p.head + `<meta http-equiv="Content-Security-Policy" content="` + policy + "\">\n<style>" + p.style + "</style>\n</head>\n<body>\n" + p.body
}

func (p parts) end() string {
	return "<noscript>This page draws what it shows with JavaScript, which is turned off here.</noscript>\n<script>" + p.script + "</script>\n</body>\n</html>\n"
}
