// Package table merges configurations in formats with tables, such as TOML and YAML.
package table

// A Table is a configuration, or a table in one: its values by name.
type Table = map[string]any

// Merge merges extra into dst: it merges tables, and replaces other values.
func Merge(dst, extra Table) {
	for key, value := range extra {
		if t, ok := value.(Table); ok {
			if old, ok := dst[key].(Table); ok {
				Merge(old, t)
				continue
			}
		}
		dst[key] = value
	}
}
