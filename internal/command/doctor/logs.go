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
		name, isLog := strings.CutSuffix(entry.Name(), ".log")
		if entry.Type() != os.ModeSymlink || !isLog {
			continue
		}
		if _, err := os.Stat(filepath.Join(e.file(folder), entry.Name())); err != nil {
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
