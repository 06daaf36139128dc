package testkit

import (
	"strings"
	"sync"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// logged is the log of all proxies in this process. Tests that read it must give their backends
// unique names.
var logged struct {
	sync.Mutex
	lines []string
}

// KeepLog makes klog keep all lines for LogLines instead of printing them.
func KeepLog() {
	klog.SetLogger(funcr.New(func(_, args string) {
		logged.Lock()
		defer logged.Unlock()
		logged.lines = append(logged.lines, args)
	}, funcr.Options{}))
}

// LogLines returns the lines of the log that contain all words.
func LogLines(words ...string) []string {
	logged.Lock()
	defer logged.Unlock()
	var found []string
	for _, line := range logged.lines {
		has := true
		for _, w := range words {
			has = has && strings.Contains(line, w)
		}
		if has {
			found = append(found, line)
		}
	}
	return found
}
