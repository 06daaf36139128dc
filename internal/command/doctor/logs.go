package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/criproxy/criproxy/internal/observe/why"
)

// logs examines the links through which log collectors find the logs of containers.
func (e *examination) logs() {
	const about, folder = "log links", "/var/log/containers"
	entries, err := os.ReadDir(e.file(folder))
	if err != nil {
		return // there is no log yet
	}
	var dangling, strange []string
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".log")
		target, err := os.Readlink(filepath.Join(e.file(folder), entry.Name()))
		if err != nil || name == entry.Name() {
			continue
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(folder, target)
		}
		if !e.leads(target, 5) {
			dangling = append(dangling, entry.Name())
		}
		// NAMESPACE is between _ and _, and the id follows the last dash.
		if prefix, ok := e.prefixOf(name); ok && !slices.ContainsFunc(e.Backends, func(b Backend) bool { return b.Prefix == prefix }) {
			strange = append(strange, prefix)
		}
	}
	if len(dangling) > 0 {
		e.add(why.Warning, about, "links-to-logs-lead-nowhere", fmt.Sprintf("links in %s lead nowhere (%d, such as %s): log collectors miss those containers, or keep deleted files open", folder, len(dangling), dangling[0]),
			"kubelet removes the links of dead containers within a minute; if these stay, remove them with find "+folder+" -xtype l -delete")
	}
	slices.Sort(strange)
	for _, prefix := range slices.Compact(strange) {
		e.add(why.Warning, about, "links-to-logs-lead-nowhere", fmt.Sprintf("there are links to logs of containers of %s, which is no longer a backend", prefix),
			"drain a runtime before you take it out of the configuration; otherwise its pods go on, but kubelet no longer manages them")
	}
}

// leads reports whether path leads to a file of the node. It follows at most so many links, all below Root.
func (e *examination) leads(path string, links int) bool {
	info, err := os.Lstat(e.file(path))
	if err != nil {
		return false
	}
	if info.Mode().Type() != os.ModeSymlink {
		return true
	}
	target, err := os.Readlink(e.file(path))
	if err != nil || links == 0 {
		return false
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return e.leads(target, links-1)
}

// prefixOf returns the prefix of the id in the name of a link: POD_NAMESPACE_NAME-ID,
// where the id is PREFIX, the separator and the runtime's own id.
func (e *examination) prefixOf(name string) (string, bool) {
	at := strings.LastIndex(name, e.Separator)
	if e.Separator == "" || at < 0 || strings.ContainsAny(name[at+len(e.Separator):], "-_") { // no id of a runtime has these
		return "", false
	}
	front := name[:at]
	if i := strings.LastIndex(front, "_"); i >= 0 {
		front = front[i+1:] // NAME-PREFIX; a prefix may contain dashes, too, but config warns about that
	}
	for _, b := range e.Backends {
		if b.Prefix != "" && strings.HasSuffix(front, "-"+b.Prefix) {
			return b.Prefix, true
		}
	}
	return front[strings.LastIndex(front, "-")+1:], true
}
