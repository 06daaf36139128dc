package takeover

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/criproxy/criproxy/internal/config"
)

// criproxyFile returns criproxy's configuration, changed to listen at Path and to find the runtime at its new path.
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
	if !admin { // criproxy's own commands look for the admin socket there
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
		return "", fmt.Errorf("the address of the primary runtime is %s, and must be %s before install; write - address: %s for it, on a line of its own", c.Backends[0].Address, t.Path, t.Path)
	}
	return next, nil
}
