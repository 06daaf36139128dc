// This file holds the version of criproxy.

package config

// Version is the version of this build. The build of a release sets it.
var Version = "devel"
