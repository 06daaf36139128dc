// Package version says which criproxy this is.
package version

// Version is set when a release is built.
var Version = "devel"
