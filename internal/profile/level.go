package profile

// StateChanging is the log level of calls whose methods are not quiet.
const StateChanging = 3

// LogLevel returns the log level of the calls of a method. If several patterns match, the quietest
// counts.
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
