package profile

// StateChanging is the level of the log at which calls are shown that the profile
// does not call quiet.
const StateChanging = 3

// LogLevel is the level of the log at which the calls of a method are shown. Of
// several patterns that match, the quietest counts.
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
