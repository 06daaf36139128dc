// Package table merges configurations whose format has tables, such as TOML and YAML.
package table

// A Table is a configuration, or a table in one, by the names of its fields.
type Table = map[string]any

// Merge puts extra into dst: tables are merged, anything else replaces what was there.
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
