package profile

// StateChanging is the level of the log that shows the calls of methods which are not quiet.
const StateChanging = 3

// LogLevel returns the level of the log that shows the calls of a method. Of several patterns
// that match, the quietest counts.
func (p *Profile) LogLevel(method string) int {
	level := StateChanging
	for key, quiet := range p.Quiet {
		for _, one := range alternatives(key) {
			if _, ok := rank(one, method); ok {
				level = max(level, quiet)
			}
		}
	}
	return level
}
