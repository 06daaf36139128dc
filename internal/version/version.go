// Package version holds the version of criproxy.
package version

// Version is the version of this build. The build of a release sets it.
var Version = "devel"
