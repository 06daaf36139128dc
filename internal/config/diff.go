package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Settings are the values of a configuration as text, by their paths in the file, for comparison. Paths have the names
// of backends and listeners in place of numbers.
type Settings map[string]string

// Settings returns the values in c, defaults included. It leaves out empty values.
func (c *Config) Settings() Settings {
	s := Settings{}
	s.add("", reflect.ValueOf(*c))
	for i, text := range c.Sources {
		if text != "" {
			s[fmt.Sprintf("content of file %d of profile and proto", i)] = fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text)))
		}
	}
	return s
}

func (s Settings) add(path string, v reflect.Value) {
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
			case Backend:
				key = cmp.Or(item.Name, "primary")
			case Listener:
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

// A Change is a setting that differs in another configuration. Its JSON is stable.
type Change struct {
	Setting string `json:"setting"`
	Was     string `json:"was"` // empty if there was nothing
	Will    string `json:"will"`
	Restart bool   `json:"restart,omitempty"` // it takes effect only at a restart
}

// String returns the change as text, such as "goneAfter: 20s, was 10s".
func (c Change) String() string {
	return fmt.Sprintf("%s: %s, was %s", c.Setting, OrNone(c.Will), OrNone(c.Was))
}

// Brief says in few words what differs in next of what a reload applies: of a runtime or a socket that is new or no longer
// there, only that. It leaves out that a runtime has another address.
func (s Settings) Brief(next Settings) []string {
	var said []string
	for _, c := range s.Changes(next) {
		text := c.String()
		if name, key, within := strings.Cut(c.Setting, "]."); within {
			switch item := name + "]"; {
			case !s.has(item):
				text = item + " is new"
			case !next.has(item):
				text = item + " is no longer there"
			case key == "address":
				continue
			}
		}
		if !c.Restart && !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	if more := len(said) - mostBrief; more > 0 {
		said = append(said[:mostBrief], fmt.Sprintf("and %d more", more))
	}
	return said
}

// mostBrief bounds how many changes Brief names.
const mostBrief = 5

// has reports whether there is a setting of an item of a list, such as backends[kata.io].
func (s Settings) has(item string) bool {
	for key := range s {
		if strings.HasPrefix(key, item+".") {
			return true
		}
	}
	return false
}

// Changes returns the settings that differ in next.
func (s Settings) Changes(next Settings) []Change {
	all := []Change{}
	keys := maps.Clone(s)
	maps.Copy(keys, next)
	for key := range keys {
		if s[key] == next[key] {
			continue
		}
		top, _, _ := strings.Cut(key, ".")
		all = append(all, Change{key, s[key], next[key], slices.Contains(restartKeys(), top)})
	}
	slices.SortFunc(all, func(a, b Change) int { return strings.Compare(a.Setting, b.Setting) })
	return all
}
