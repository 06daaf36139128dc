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
