package build

// Version returns the version of a component that its pins name.
func Version(name string) (string, error) {
	source, err := SourceDir()
	if err != nil {
		return "", err
	}
	c, err := componentNamed(name)
	if err != nil {
		return "", err
	}
	return c.version(source)
}
