package config

import (
	"fmt"
	"strings"
)

// NameWarnings returns warnings about the problems that a runtime's name will cause.
func NameWarnings(name string) []string {
	var all []string
	if strings.Contains(name, "-") {
		// kubelet, pkg/kubelet/kuberuntime/kuberuntime_gc.go: the id in the name of
		// a log link is what follows the last dash.
		all = append(all, fmt.Sprintf("backend %s: kubelet cuts container ids at the last dash when it cleans up links in /var/log/containers, and will remove links to logs of this runtime while they are rotated; choose a name without a dash", name))
	}
	if !strings.Contains(name, ".") {
		// kubelet, pkg/credentialprovider/keyring.go: isDefaultRegistryMatch.
		all = append(all, fmt.Sprintf("backend %s: kubelet takes an image %s/... for one on Docker Hub, and sends the node's Docker Hub credentials with its pulls, to whatever registry follows the prefix; choose a name with a dot", name, name))
	}
	if len(name) > 40 {
		all = append(all, fmt.Sprintf("backend %s: with a name this long the names of log links exceed 255 characters, and kubelet cuts off the id; choose a shorter name", name))
	}
	return all
}

// separator stands between the name of a runtime and its ids, in CRI's profile.
const separator = "__"

// crictlID is how many characters crictl shows of an id without --no-trunc:
// cmd/crictl/util.go, truncatedIDLen.
const crictlID = 13

// IDWarnings returns warnings about the problems that a runtime's name will cause as a prefix of ids.
func IDWarnings(name string) []string {
	const enough = 4 // characters of an id, to find it by
	room := crictlID - len(separator)
	if left := max(room-len(name), 0); left < enough {
		return []string{fmt.Sprintf("backend %s: crictl shows %d characters of an id, and after this name only %d of them are the runtime's id: too few to use with crictl, unless --no-trunc shows the whole id; choose a name of at most %d characters, or ids: native for a node without pods", name, crictlID, left, room-enough)}
	}
	return nil
}
