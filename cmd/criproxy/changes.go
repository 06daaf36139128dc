package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
)

// settings are the values of a configuration as they are compared: as text, by the path that
// each has in the file. Backends and listeners go by what they are called.
type settings map[string]string

// settings returns what c says, defaults included; what is empty is left out.
func (c *Config) settings() settings {
	s := settings{}
	s.add("", reflect.ValueOf(*c))
	for i, text := range c.sources {
		if text != "" {
			s[fmt.Sprintf("content of file %d of profile and proto", i)] = fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text)))
		}
	}
	return s
}

func (s settings) add(path string, v reflect.Value) {
	if d, ok := v.Interface().(time.Duration); ok {
		if d != 0 {
			s[path] = d.String()
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			if key != "" && key != "-" {
				s.add(strings.TrimPrefix(path+"."+key, "."), v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			key := fmt.Sprint(i)
			switch item := v.Index(i).Interface().(type) {
			case BackendConfig:
				if key = item.Name; key == "" {
					key = "primary"
				}
			case ListenerConfig:
				key = item.Path
			}
			s.add(path+"["+key+"]", v.Index(i))
		}
	default:
		if text, err := json.Marshal(v.Interface()); err == nil && !v.IsZero() {
			s[path] = string(text)
		}
	}
}

// A change is a setting that is another one in a configuration to come. Its JSON is
// stable.
type change struct {
	Setting string `json:"setting"`
	Was     string `json:"was"` // empty if there was nothing
	Will    string `json:"will"`
	Restart bool   `json:"restart,omitempty"` // it waits for one
}

// restartKeys are the settings that take effect in a process that begins with them; see
// Config.needsRestart.
var restartKeys = []string{"admin", "metrics", "tracing", "hooks", "hookSkipLabel", "maxMessageBytes", "flightRecorder", "unsafeRaw", "capture"}

// changes returns what is another in next.
func (s settings) changes(next settings) []change {
	all := []change{}
	for key := range union(s, next) {
		if s[key] == next[key] {
			continue
		}
		top, _, _ := strings.Cut(key, ".")
		all = append(all, change{key, s[key], next[key], slices.Contains(restartKeys, top)})
	}
	slices.SortFunc(all, func(a, b change) int { return strings.Compare(a.Setting, b.Setting) })
	return all
}

func union(a, b settings) map[string]bool {
	all := map[string]bool{}
	for key := range a {
		all[key] = true
	}
	for key := range b {
		all[key] = true
	}
	return all
}

// serveSettings adds the configuration in use to the admin socket.
func (a *admin) serveSettings(p *proxy) {
	a.mux.HandleFunc("GET /settings", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.now.Load().cfg.settings()) })
}

// against returns what would change in the process that serves cfg's admin socket, or
// why that cannot be told.
func (c *Config) against(ctx context.Context) ([]change, error) {
	path := c.Admin
	if path == "" {
		return nil, fmt.Errorf("there is no admin socket in this configuration")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	response, err := newAdminClient(path).get(ctx, "/settings")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() // it was only read
	var running settings
	if err := json.NewDecoder(response.Body).Decode(&running); err != nil {
		return nil, fmt.Errorf("reading the answer of criproxy at %s: %w", path, err)
	}
	return running.changes(c.settings()), nil
}

// printChanges shows what would change to people.
func printChanges(out io.Writer, all []change, unknown string) {
	switch {
	case unknown != "":
		fmt.Fprintf(out, "\nWhat it would change cannot be told: %s\n", unknown)
		return
	case len(all) == 0:
		fmt.Fprintln(out, "\nNothing would change in the criproxy that serves now.")
		return
	}
	fmt.Fprintln(out, "\nIn the criproxy that serves now it would change:")
	for _, c := range all {
		restart := ""
		if c.Restart {
			restart = "   (waits for a restart)"
		}
		fmt.Fprintf(out, "  %s: %s, was %s%s\n", c.Setting, orNone(c.Will), orNone(c.Was), restart)
	}
}
