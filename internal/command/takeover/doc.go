// Package takeover puts criproxy at the path of a runtime's own socket, for criproxy install -takeover, by changing the
// configuration files of both, and can reverse this. The runtime is containerd or CRI-O.
//
// Install and Uninstall are in takeover.go. containerd.go, crio.go and criproxy.go make the contents of the files.
// lines.go marks changed lines, so that Uninstall can restore them.
package takeover
